"""Seconds and bytes of a sketch beside its peers, in one run: `python bench/sketch_speed.py [--device cuda --clients 100]`.

Peers: `index_add_` and `scatter_add_` of precomputed hashes of single coordinates, and `bincount`, which is what the code of
FetchSGD's authors (csvec) does. On a GPU the yardstick is the time to read every update once a row at the speed of a plain copy.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable

import torch
from torch import Tensor

from hush.sketch import hashes_of, sketch, unsketch, whole_tiles


def seconds(work: Callable[[], object], device: torch.device, repeats: int) -> float:
    """The best of some."""
    best = float("inf")
    for _ in range(repeats + 1):  # the first pays for set-up
        began = time.perf_counter()
        work()
        if device.type == "cuda":
            torch.cuda.synchronize()
        best = min(best, time.perf_counter() - began)
    return best


def main() -> None:
    """One JSON line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--dim", type=int, default=7_000_000)
    parser.add_argument("--rows", type=int, default=5)
    parser.add_argument("--cols", type=int, default=500_000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int)
    asked = parser.parse_args()
    if asked.threads:
        torch.set_num_threads(asked.threads)
    device = torch.device(asked.device)
    cols = whole_tiles(asked.cols)
    hashes = hashes_of(0, asked.rows, cols, asked.dim, device)
    x = torch.randn(asked.clients, asked.dim, device=device)
    g = torch.Generator().manual_seed(0)
    bucket = [torch.randint(cols, (asked.dim,), generator=g).to(device) for _ in range(asked.rows)]
    sign = [(torch.randint(2, (asked.dim,), generator=g) * 2 - 1).float().to(device) for _ in range(asked.rows)]

    def peer(add: Callable[[Tensor, Tensor, Tensor], Tensor]) -> Callable[[], None]:
        def work() -> None:
            for client in x:
                for row in range(asked.rows):
                    add(x.new_zeros(cols), bucket[row], client * sign[row])

        return work

    peers = {
        "index_add": lambda table, where, values: table.index_add_(0, where, values),
        "scatter_add": lambda table, where, values: table.scatter_add_(0, where, values),
        "bincount (csvec)": lambda table, where, values: torch.bincount(where, weights=values, minlength=len(table)),
    }
    found: dict[str, object] = {
        "device": asked.device,
        "clients": asked.clients,
        "dim": asked.dim,
        "rows": asked.rows,
        "cols": cols,
    }
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
        held = torch.cuda.memory_allocated()
    own = seconds(lambda: sketch(x, hashes), device, asked.repeats) / asked.clients
    if device.type == "cuda":
        table_bytes = asked.clients * asked.rows * cols * 4
        found["peak_beyond_updates_in_sketches"] = (torch.cuda.max_memory_allocated() - held) / table_bytes
        copy = torch.empty_like(x)
        reading = seconds(lambda: copy.copy_(x), device, asked.repeats) / 2  # a copy reads and writes
        del copy
        found["over_reading_once_a_row"] = own * asked.clients / (reading * asked.rows)
    found["hush_ms_a_client"] = 1e3 * own
    found["unsketch_ms"] = 1e3 * seconds(lambda: unsketch(sketch(x[:1], hashes)[0], hashes), device, asked.repeats)
    for name, add in peers.items():
        took = seconds(peer(add), device, max(1, asked.repeats // 2)) / asked.clients
        found[f"{name}_ms_a_client"] = 1e3 * took
        found[f"{name}_over_hush"] = took / own
    print(json.dumps({key: round(value, 4) if isinstance(value, float) else value for key, value in found.items()}, indent=1))


if __name__ == "__main__":
    main()
