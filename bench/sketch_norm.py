"""By how much a client can make DPSFL's sketch longer than its gradient: `python bench/sketch_norm.py [--dim N]`.

The paper takes sqrt(rows) for the norm of its sketch, whose rows are not scaled. Measured from below by power iteration, with
hashes of single coordinates as in the paper and of tiles as in Hush; bounded from above by what the fullest counters allow.
"""

from __future__ import annotations

import argparse
import math

import torch

from hush.sketch import fullest_counter, hashes_of, largest_norm, sketch, whole_tiles, worst_vector

SIZES = (500_000, 300_000, 80_000)
"""Columns of the paper's compression levels 1, 2 and 5."""


def main() -> None:
    """One line a size and kind of hashes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dim", type=int, default=7_000_000)
    parser.add_argument("--rows", type=int, default=5)
    parser.add_argument("--steps", type=int, default=25, help="of power iteration")
    parser.add_argument("--cols", type=int, nargs="*", default=SIZES)
    asked = parser.parse_args()
    root = math.sqrt(asked.rows)
    print(f"{asked.rows} rows over {asked.dim:,} coordinates: the paper's norm is {root:.3f}")
    for cols in asked.cols:
        for name, lanes in (("single coordinates", 1), ("tiles", None)):
            h = hashes_of(0, asked.rows, whole_tiles(cols), asked.dim, torch.device("cpu"), lanes)
            full = float(sketch(fullest_counter(h)[None], h).norm()) * root
            _, reached = worst_vector(h, asked.steps)
            told = f"a full counter {full:.3f}, power iteration {reached * root:.3f}, proved at most {largest_norm(h) * root:.3f}"
            print(f"{cols:>8,} columns, {name:18}: {told}", flush=True)


if __name__ == "__main__":
    main()
