"""Hush's figures beside dp-accounting's and Opacus', for the papers' settings: `python bench/accounting.py`.

Opacus is not among Hush's dependencies: `pip install opacus` first, or its columns stay empty. Times are of one call after import.
"""

from __future__ import annotations

import logging
import math
import time
import warnings
from collections.abc import Callable
from functools import partial

import dp_accounting
from dp_accounting import pld, rdp

from hush import FixedSize, Poisson, account, calibrate, methods, plan_of
from hush.cohort import Cohort
from hush.privacy.accountant import QUICK_STEP, lower_bound, spent
from hush.privacy.vocabulary import Plan

warnings.simplefilter("ignore")
logging.getLogger("absl").setLevel(logging.ERROR)

SETTINGS = [
    ("Fed-SMP, Fashion-MNIST, z=1.0", 1.0, 100, 6000, 180, 6000**-1.1, "2.02"),
    ("Fed-SMP, Fashion-MNIST, z=1.4", 1.4, 100, 6000, 180, 6000**-1.1, "1.01"),
    ("Fed-SMP, Fashion-MNIST, z=2.0", 2.0, 100, 6000, 180, 6000**-1.1, "0.58"),
    ("Fed-SMP, Fashion-MNIST, z=2.5", 2.5, 100, 6000, 180, 6000**-1.1, "0.44"),
    ("Fed-SMP, Shakespeare, real n", 0.3162, 10, 715, 1000, 715**-1.1, "6.99"),
    ("BLUR+LUS, EMNIST, eps 2", 2.178, 136, 3400, 1000, 1 / 3400, "2"),
    ("BLUR+LUS, EMNIST, eps 8", 0.924, 136, 3400, 1000, 1 / 3400, "8"),
    ("grid, z=1, q=0.01", 1.0, 100, 10_000, 1000, 1e-5, ""),
]


def library(kind: str, noise: float, rate: float, rounds: int, delta: float) -> float:
    event = dp_accounting.PoissonSampledDpEvent(rate, dp_accounting.GaussianDpEvent(noise))
    accountant = rdp.RdpAccountant() if kind == "rdp" else pld.PLDAccountant(value_discretization_interval=1e-4)
    return float(accountant.compose(event, rounds).get_epsilon(delta))


def opacus(kind: str, noise: float, rate: float, rounds: int, delta: float) -> float | None:
    try:
        from opacus.accountants import PRVAccountant, RDPAccountant
    except ImportError:
        return None
    accountant = RDPAccountant() if kind == "rdp" else PRVAccountant()
    accountant.history = [(noise, rate, rounds)]
    try:
        return float(accountant.get_epsilon(delta))
    except (RuntimeError, ValueError, MemoryError):
        return math.inf


def timed(call: Callable[[], float | None]) -> tuple[str, float]:
    began = time.perf_counter()
    value = call()
    took = time.perf_counter() - began
    return ("" if value is None else f"{value:.3f}"), took


def figures(noise: float, size: float, clients: int, rounds: int, delta: float) -> dict[str, Callable[[], float | None]]:
    """One call for each column."""

    def plan(cohort: Cohort) -> Plan:
        return plan_of(methods.dp_fedavg(noise=noise), cohort, clients, rounds)

    setting = (noise, size / clients, rounds, delta)
    return {
        "Hush": lambda: account(plan(Poisson(size)), delta).epsilon,
        "from below": lambda: lower_bound(plan(Poisson(size)), delta),
        "dp-acc PLD": lambda: library("pld", *setting),
        "dp-acc RDP": lambda: library("rdp", *setting),
        "Opacus PRV": lambda: opacus("prv", *setting),
        "Opacus RDP": lambda: opacus("rdp", *setting),
        "Hush fixed": lambda: account(plan(FixedSize(size)), delta).epsilon,
        "fixed, below": lambda: lower_bound(plan(FixedSize(size)), delta),
    }


def main() -> None:
    import torch

    torch.set_num_threads(1)
    times: dict[str, list[float]] = {}
    for label, noise, size, clients, rounds, delta, claimed in SETTINGS:
        calls = figures(noise, size, clients, rounds, delta)
        if not times:
            print(f"{'':32}{'claimed':>14}" + "".join(f"{name:>14}" for name in calls))
        row = []
        for name, call in calls.items():
            shown, took = timed(call)
            row.append(shown)
            times.setdefault(name, []).append(took)
        print(f"{label:32}{claimed:>14}" + "".join(f"{value:>14}" for value in row))
    print("\nslowest call of each, in seconds: " + ", ".join(f"{name} {max(took):.2f}" for name, took in times.items()))
    quick = plan_of(methods.dp_fedavg(noise=1.3), Poisson(100), 6000, 181)
    print(f"interactive answer (step 1e-3): {timed(lambda: spent(quick, 1e-5, 181, QUICK_STEP))[1]:.2f} s")
    for cohort in (Poisson(100), FixedSize(100)):
        wanted = plan_of(methods.dp_fedavg(noise=1.0), cohort, 6000, 180)
        print(f"calibration, {type(cohort).__name__}: {timed(partial(calibrate, wanted, 1.0, 1e-5))[1]:.2f} s")


if __name__ == "__main__":
    main()
