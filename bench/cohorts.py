"""What a cohort takes, whatever its size: seconds a round and memory, each in a process of its own.

HUSH_DATA=... python bench/cohorts.py [--device cuda] [--cohorts 500 1000 5000] [--memory 2GiB]

Fed-SMP's CNN (1.66M parameters) on Fashion-MNIST's 6,000 clients of ten images, one local step each, clipped and noised.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from itertools import pairwise
from statistics import median

SCRIPT = """
import json, resource, sys, warnings, torch, hush
warnings.simplefilter("ignore")
cohort, rounds, device, memory = sys.argv[1:]
task = hush.load_task("fashion-mnist", "fed-smp-cnn", clients=6000, validation=0, test_examples=100)
method = hush.methods.dp_fedavg(noise=1.0, local_steps=1, batch_size=10)
seconds = []
hush.simulate(
    method, task, rounds=int(rounds), cohort=hush.FixedSize(int(cohort)), device=device, memory=memory or None, eval_every=1000,
    on_round=lambda record: seconds.append(record["seconds"]),
)
held = torch.cuda.max_memory_allocated() if device == "cuda" else 0
print(json.dumps([seconds, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20, held / 2**30]))
"""


def measure(cohort: int, rounds: int, device: str, memory: str) -> tuple[float, float, float]:
    """Seconds a round after the first, which tries the method out; and GiB: of the process, and of a GPU."""
    words = [sys.executable, "-c", SCRIPT, str(cohort), str(rounds), device, memory]
    done = subprocess.run(words, check=False, capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stderr)
    seconds, resident, held = json.loads(done.stdout)
    return median(b - a for a, b in pairwise(seconds)), resident, held


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--memory", default="")
    parser.add_argument("--cohorts", type=int, nargs="+", default=[500, 1000, 5000])
    parser.add_argument("--rounds", type=int, default=3)
    said = parser.parse_args()
    for cohort in said.cohorts:
        seconds, resident, held = measure(cohort, said.rounds, said.device, said.memory)
        each = f"{seconds:7.2f} s a round, {1e3 * seconds / cohort:6.2f} ms a client"
        print(f"{cohort:5} clients: {each}, peak {resident:.2f} GiB" + (f", {held:.2f} GiB on the GPU" if held else ""), flush=True)
