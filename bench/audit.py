"""How often an audit cries wolf, and how small a fault it sees: `python bench/audit.py [--runs 50] [--power 10]`.

False alarms are counted on whole audits of dp-fedavg, whose first attack stands at the exact boundary: two rounds with everybody in
are a plain Gaussian, and the planted victims attain its profile. Power is the share of audits in which the attacks alone, and the
structural checks alone, catch noise that is too small.
"""

from __future__ import annotations

import argparse
import time

from torch import Tensor

from hush import methods
from hush.audit import audit
from hush.core import Public, Round, State
from hush.secret import Secret
from hush.transforms import Gaussian


def low_noise(factor: float) -> None:
    def decode(self: Gaussian, total: Tensor, state: State, rnd: Round, public: Public, secret: Secret) -> tuple[Tensor, State]:
        return total + factor * secret.noise(rnd.index, total, self.std), state

    Gaussian.decode = decode  # type: ignore[method-assign]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=50)
    parser.add_argument("--power", type=int, default=10)
    asked = parser.parse_args()
    method, began = methods.dp_fedavg(noise=1.0), time.perf_counter()
    alarms, margins = [], []
    for _ in range(asked.runs):
        report = audit(method)
        alarms += [c.name for c in report.checks if not c.passed] + [a.name for a in report.attacks if not a.passed]
        margins.append(max(float(a.detail.split()[1].rstrip(";")) for a in report.attacks))
    each = (time.perf_counter() - began) / asked.runs
    print(f"{len(alarms)} false alarms in {asked.runs} audits ({each:.1f} s each); largest margin {max(margins):+.4f}; {alarms}")
    print(f"{'noise':>8} {'attacks':>9} {'structural':>11}   share of {asked.power} audits that catch it")
    for factor in (0.99, 0.95, 0.92, 0.9, 0.85, 0.8, 0.5):
        low_noise(factor)
        reports = [audit(method) for _ in range(asked.power)]
        by_attack = sum(any(not a.passed for a in r.attacks) for r in reports) / asked.power
        by_check = sum(any(not c.passed for c in r.checks) for r in reports) / asked.power
        print(f"{factor:8.2f} {by_attack:9.1f} {by_check:11.1f}")


if __name__ == "__main__":
    main()
