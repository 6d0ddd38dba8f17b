"""Time Hush's simulator, and beside it Apple's pfl-research on the same workload in the same run, as a ratio.

    python bench/simulation.py [--device cuda] [--pfl path/to/pfl_bench.py] [--procs 1,5,8]

The workload: McMahan's CNN (1,663,370 parameters), 1,000 clients with 50 synthetic examples each, 50 clients a round, one local
epoch of batches of 10, clip and Gaussian noise on the sum. Local training, clip, sum, noise and server step are timed; nothing is
evaluated. `--pfl` names a script that prints a JSON object with `round_s_median` as its last line. One JSON object is printed.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from itertools import pairwise
from typing import Any

import torch

import hush
from hush.tasks.models import build_model


def hush_round_seconds(args: argparse.Namespace) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(0)
    count = args.clients * args.samples
    task = hush.Task(
        model=build_model("fed-smp-cnn", torch.Size((1, 28, 28)), 10, seed=0),
        clients=hush.Clients(
            torch.randn(count, 1, 28, 28, generator=generator),
            torch.randint(0, 10, (count,), generator=generator),
            torch.full((args.clients,), args.samples),
        ),
    )
    method = hush.methods.dp_fedavg(clip=0.4, noise=1.0, lr=0.1, batch_size=args.batch, local_epochs=1)
    stamps = [time.perf_counter()]

    def on_round(record: dict[str, Any]) -> None:
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        stamps.append(time.perf_counter())

    hush.simulate(
        method,
        task,
        rounds=args.warmup + args.rounds,
        cohort=hush.FixedSize(args.cohort),
        device=args.device,
        diagnostics=False,
        eval_every=10**9,
        on_round=on_round,
    )
    rounds = [b - a for a, b in pairwise(stamps)][args.warmup :]
    # the last round also computes the final epsilon; the median does not see it
    return {"round_s_median": statistics.median(rounds), "round_s_min": min(rounds), "round_s_max": max(rounds)}


def pfl_round_seconds(args: argparse.Namespace, procs: int) -> dict[str, Any]:
    command = [sys.executable, args.pfl, "--model", "fmnist_cnn", "--dp", "central_gaussian", "--procs", str(procs)]
    command += ["--clients", str(args.clients), "--cohort", str(args.cohort), "--samples", str(args.samples)]
    command += ["--batch", str(args.batch), "--rounds", str(args.rounds), "--warmup", str(args.warmup)]
    command += ["--device", args.device] if args.device != "auto" else []
    answer = subprocess.run(command, capture_output=True, text=True, timeout=600, check=True)
    return dict(json.loads(answer.stdout.strip().splitlines()[-1]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--clients", type=int, default=1000)
    parser.add_argument("--cohort", type=int, default=50)
    parser.add_argument("--samples", type=int, default=50)
    parser.add_argument("--batch", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--warmup", type=int, default=3)
    parser.add_argument("--pfl", default=None)
    parser.add_argument("--procs", default="1")
    args = parser.parse_args()

    ours = hush_round_seconds(args)
    floor_bytes = args.cohort * (args.samples // args.batch) * 1_663_370 * 4 * 8
    figures: dict[str, Any] = {
        "workload": {k: getattr(args, k) for k in ("clients", "cohort", "samples", "batch")},
        "torch": torch.__version__,
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() and args.device != "cpu" else "cpu",
        "hush": ours,
        "weight_traffic_gb_per_round": floor_bytes / 1e9,
    }
    if args.pfl:
        theirs = {p: pfl_round_seconds(args, int(p)) for p in args.procs.split(",")}
        best = min(t["round_s_median"] for t in theirs.values())
        figures["pfl"] = {p: t["round_s_median"] for p, t in theirs.items()}
        figures["pfl_version"] = next(iter(theirs.values()))["framework"]
        figures["hush_times_faster"] = best / ours["round_s_median"]
    print(json.dumps(figures, indent=2))


if __name__ == "__main__":
    main()
