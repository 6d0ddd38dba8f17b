"""A population larger than memory: a million clients of 50 images (39 GB of files), made once and run by `hush run`.

python bench/populations.py make FOLDER [--clients 1000000] [--each 50]
python bench/populations.py run FOLDER [--limit 8] [...]      # what `hush run` takes; address space limited to so many GiB

The images are drawn: noise, and a bar whose place is the label. Every byte is written: the files are not sparse.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

DESCRIPTION = """train = "train"
test = "test"
target = "y"
classes = 10
model = "{model}"
mean = [0.25]
std = [0.3]
"""
_AT_ONCE = 50_000


def make(folder: Path, clients: int, each: int, model: str) -> None:
    rng = np.random.default_rng(0)
    noise = rng.integers(0, 64, (_AT_ONCE, 28, 28), dtype=np.uint8)
    for part, rows in (("train", clients * each), ("test", 2000)):
        (folder / part).mkdir(parents=True, exist_ok=True)
        with (folder / part / "x.npy").open("wb") as images, (folder / part / "y.npy").open("wb") as labels:
            _begin(images, (rows, 1, 28, 28))
            _begin(labels, (rows,))
            for first in range(0, rows, _AT_ONCE):
                y = rng.integers(0, 10, min(_AT_ONCE, rows - first), dtype=np.uint8)
                x = noise[: len(y)] ^ rng.integers(0, 64, (28, 28), dtype=np.uint8)  # no image comes twice
                for label in range(10):
                    x[y == label, 2 * label : 2 * label + 3, 4:24] += 150
                images.write(x.data)
                labels.write(y.data)
    np.save(folder / "train" / "sizes.npy", np.full(clients, each))
    (folder / "data.toml").write_text(DESCRIPTION.format(model=model))


def _begin(file: object, shape: tuple[int, ...]) -> None:
    np.lib.format.write_array_header_1_0(file, {"descr": "|u1", "fortran_order": False, "shape": shape})  # type: ignore[arg-type]


def run(folder: Path, limit: int, words: list[str]) -> None:
    def limited() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (limit * 2**30, limit * 2**30))

    command = [sys.executable, "-m", "hush", "run", *words, "--data", str(folder)]
    began = time.perf_counter()
    done = subprocess.run(command, check=False, preexec_fn=limited if limit else None)
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 2**20
    bytes_there = sum(file.stat().st_size for file in folder.rglob("*.npy"))
    told = f"{bytes_there / 1e9:.1f} GB of files, peak {peak:.2f} GiB resident, {time.perf_counter() - began:.0f} s in all"
    print(told, f"(address space limited to {limit} GiB)" if limit else "", file=sys.stderr)
    sys.exit(done.returncode)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("make", "run"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--clients", type=int, default=1_000_000)
    parser.add_argument("--each", type=int, default=50)
    parser.add_argument("--model", default="fed-smp-cnn")
    parser.add_argument("--limit", type=int, default=8)
    said, others = parser.parse_known_args()
    if said.what == "make":
        make(said.folder, said.clients, said.each, said.model)
    else:
        run(said.folder, said.limit, others)
