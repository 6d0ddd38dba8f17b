"""What a dry run says a run takes, beside what it takes: processor seconds of one thread, so that a busy machine does not matter.

    HUSH_DATA=... python bench/estimates.py [NAME ...]

Judging and the test at the end are in both; loading data and PyTorch is in neither.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import sys
import time
from typing import Any

SMALL = "--clients 1000 --noise 1 --set local_epochs=1"
CASES = {
    "fedavg, digits": "fedavg --data digits",
    "dp-fedavg, digits": "dp-fedavg --data digits --noise 1",
    "dp-sgd, digits": "dp-sgd --data digits --noise 1",
    "fed-smp-top-k, digits": "fed-smp-top-k --data digits --noise 1",
    "ae-dpfl, digits": "ae-dpfl --data digits --rounds 5 --noise 1",
    "cpfed, adult": "cpfed --data adult --noise 1",
    "logistic, fashion-mnist": "dp-fedavg --data fashion-mnist --model logistic --clients 6000 --cohort 100 --rounds 5 --noise 1",
    "mlp, Dirichlet(0.1)": "fedavg --data fashion-mnist --model mlp --clients 200 --cohort 20 --rounds 3 --partition dirichlet:0.1",
    "fed-spa-mnist-cnn": f"dp-fedavg --data mnist --model fed-spa-mnist-cnn --cohort 50 --rounds 3 {SMALL}",
    "fed-smp-cnn": f"fed-smp-rand-k --data fashion-mnist --cohort 20 --rounds 2 {SMALL}",
    "fed-spa-cifar-cnn": "fedavg --data cifar10 --model fed-spa-cifar-cnn --clients 500 --cohort 10 --rounds 2 --set local_steps=2",
    "char-lstm": "fedavg --data shakespeare --cohort 5 --rounds 2 --set local_steps=2",
}


def one(name: str) -> None:
    """In a process of its own, whose clock is the processor's."""
    time.perf_counter = time.process_time
    import hush.engines.simulation as engine
    from hush.cli.app import app

    took = []
    rounds = engine._all_rounds

    def timed(*args: Any) -> Any:
        began = time.process_time()
        result = rounds(*args)
        took.append(time.process_time() - began)
        return result

    engine._all_rounds = timed

    def run(*more: str) -> Any:
        out = io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()):
            app(["run", *CASES[name].split(), *more, "--json"], standalone_mode=False)
        return json.loads(out.getvalue())

    told = run("--dry-run")["estimated_seconds"]
    run()
    print(f"{name:26} told {told:7.2f} s, took {took[0]:7.2f} s: {told / took[0]:.2f}", flush=True)


def main() -> None:
    for name in sys.argv[1:] or CASES:
        subprocess.run([sys.executable, __file__, "--one", name], env=os.environ | {"OMP_NUM_THREADS": "1"}, check=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--one"]:
        one(sys.argv[2])
    else:
        main()
