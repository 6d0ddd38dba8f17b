"""What FetchSGD's server carries over in its table, under noise: `python bench/sketch_feedback.py [--cols 1000 --lanes 1]`.

Every round adds the sketch of a random vector of norm 1 and applies the k largest estimates. Where k is too large for the table,
the estimates are mostly collisions, and taking them off adds more than it removes. Printed is the table's norm after 150 rounds, or
the round in which it passed 10,000.
"""

from __future__ import annotations

import argparse

import torch

from hush.sketch import hashes_of, sketch, unsketch

SHARES, CROWDS = (0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 1.0), (1.5, 2.6, 5.0, 8.0, 13.0, 26.0)


def carried(cols: int, crowd: float, share: float, rows: int, lanes: int, seed: int, rounds: int = 150) -> str:
    dim = int(crowd * cols)
    hashes, g = hashes_of(seed, rows, cols, dim, torch.device("cpu"), lanes), torch.Generator().manual_seed(seed)
    k, table = max(1, min(dim, int(share * cols))), torch.zeros(rows * cols)
    for number in range(rounds):
        table = table + sketch(torch.randn(1, dim, generator=g) / dim**0.5, hashes)[0]
        found = unsketch(table, hashes)
        where = found.abs().topk(k).indices
        table = table - sketch(torch.zeros(1, dim).index_copy_(1, where, found[None, where]), hashes)[0]
        if not float(table.norm()) < 1e4:
            return f"round {number + 1}"
    return f"{float(table.norm()):.1f}"


def main() -> None:
    """One table for each number of rows."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cols", type=int, default=1000)
    parser.add_argument("--lanes", type=int, default=1, help="16: hashed by tiles")
    parser.add_argument("--rows", type=int, nargs="*", default=[3, 5, 9])
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    for rows in asked.rows:
        print(f"\n| {rows} rows, k / cols | " + " | ".join(f"d = {crowd:g} cols" for crowd in CROWDS) + " |")
        print("|---" * (len(CROWDS) + 1) + "|")
        for share in SHARES:
            cells = [carried(asked.cols, crowd, share, rows, asked.lanes, asked.seed) for crowd in CROWDS]
            print(f"| {share:g} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
