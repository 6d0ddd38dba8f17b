"""One round of every data set at hand with every model that papers train on it: seconds and peak memory.

    python bench/tasks.py                       # on this machine's CPU, local training cut to 2 steps
    python bench/tasks.py --steps 30 --device cuda

Each combination runs in a process of its own, as `hush run` would, so that its peak is its own. Test and validation examples are
cut to 500: a round is measured, not an evaluation.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys

ONE = """
import json, resource, sys, time
import torch, hush
from hush.config import RunConfig
from hush.experiment import resolve

data, model, steps, cohort, device = sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4]), sys.argv[5]
began = time.perf_counter()
held = {} if hush.tasks.catalogue.dataset(data).evaluation == "clients" else {"validation": 500}
values = {"method": "fedavg", "data": data, "model": model, "rounds": 2, "test_examples": 500, "device": device, **held}
values |= {"cohort": cohort} if cohort else {}
experiment = resolve(RunConfig(**values, set={"max_local_steps": steps}))
task = experiment.task()
loaded = time.perf_counter() - began
run = experiment.set_up(task)
ready = time.perf_counter() - began - loaded
times = []
hush.engines.simulation.train(run, on_round=lambda record: times.append(record["seconds"]))
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
gpu = torch.cuda.max_memory_allocated() / 2**20 if device == "cuda" else None
data = run.data
print(json.dumps({"parameters": data.learner.dim, "clients": data.train.count, "cohort": run.cohort.size, "chunk": run.chunk,
    "vectorised": data.learner.vectorised, "load": loaded, "set_up": ready, "round": times[1] - times[0],
    "peak": peak, "gpu": gpu}))
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--cohort", type=float, default=0, help="0: the data set's own")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--only", default="", help="a data set or a model")
    asked = parser.parse_args()
    from hush.tasks.catalogue import CATALOGUE
    from hush.tasks.fetch import data_dir

    print(f"| data | model | parameters | cohort | chunk | load s | set-up s | round s ({asked.steps} steps) | peak MiB |")
    print("|---|---|---|---|---|---|---|---|---|")
    for entry in CATALOGUE.values():
        if entry.found(data_dir()) is None:
            continue
        for model in entry.papers or (entry.model,):
            if asked.only and asked.only not in (entry.name, model):
                continue
            command = [sys.executable, "-c", ONE, entry.name, model, str(asked.steps), str(asked.cohort), asked.device]
            done = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ)
            if done.returncode:
                print(f"| {entry.name} | {model} | failed: {done.stderr.strip().splitlines()[-1]} |", flush=True)
                continue
            r = json.loads(done.stdout.strip().splitlines()[-1])
            peak = f"{r['peak']:,.0f}" + (f" (GPU {r['gpu']:,.0f})" if r["gpu"] is not None else "")
            chunk = f"{min(r['chunk'], round(r['cohort']))}" + ("" if r["vectorised"] else " in turn")
            figures = f"{r['load']:.1f} | {r['set_up']:.1f} | {r['round']:.2f} | {peak}"
            print(f"| {entry.name} | {model} | {r['parameters']:,} | {r['cohort']:g} | {chunk} | {figures} |", flush=True)


if __name__ == "__main__":
    main()
