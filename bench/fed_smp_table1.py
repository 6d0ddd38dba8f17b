"""All 16 rows of Fed-SMP's Table 1 (Fashion-MNIST, 180 rounds, one seed), several side by side, and the seconds they take in all.

    HUSH_DATA=... python bench/fed_smp_table1.py --jobs 3 --device cuda --out FOLDER

A row that is there is not computed again.
"""

from __future__ import annotations

import argparse
import json
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from spare import cell

SHARES = 0.001, 0.005, 0.01, 0.1, 0.2, 0.4, 0.8
ASKED = "--data fashion-mnist --sampling fixed"
NOISED = f"{ASKED} --noise 1.4 --set clip=1"
ROWS = {
    "fedavg": f"run fedavg {ASKED}",
    "dp-fedavg": f"run dp-fedavg {NOISED}",
    **{f"rand-k-{p}": f"run fed-smp-rand-k {NOISED} --set ratio={p}" for p in SHARES},
    **{f"top-k-{p}": f"run fed-smp-top-k {NOISED} --set ratio={p} --set public_steps=10" for p in SHARES},
}
"""What is typed for each; everything else is the data set's own, which is the paper's."""
PAPER = (86.98, 72.72, *(27.16, 56.04, 65.61, 77.59, 79.12, 79.88, 79.82), *(77.18, 80.76, 80.76, 80.49, 80.16, 80.26, 79.77))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--commit", default="unknown")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "measured" / "fed-smp-table1")
    asked = parser.parse_args()
    asked.out.mkdir(parents=True, exist_ok=True)
    began = time.perf_counter()
    with ThreadPoolExecutor(asked.jobs) as pool:
        for line in pool.map(lambda row: cell(*row, asked), ROWS.items()):
            print(line, flush=True)
    print(f"{len(ROWS)} rows in {time.perf_counter() - began:.0f} s", flush=True)
    for name, paper in zip(ROWS, PAPER, strict=True):
        found = json.loads((asked.out / f"{name}.json").read_text())
        print(f"| {name} | {100 * found['best_test_accuracy']:.2f}% | {100 * found['test_accuracy']:.2f}% | {paper}% |")


if __name__ == "__main__":
    main()
