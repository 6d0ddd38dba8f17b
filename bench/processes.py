"""Seconds a round by how many processes share the cohort, each a run as it is typed; the models must agree.

    python bench/processes.py --processes 1 2 4 --threads 1 -- dp-fedavg --data fashion-mnist --cohort 50 --rounds 12
    python bench/processes.py --processes 1 2 8 -- fed-smp-top-k --data cifar10 --cohort 100 --device cuda     # NCCL

The median over all rounds but the first, in which clients are tried against each other; one process is run without torchrun, too.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from safetensors.torch import load_file

_TIMED = """
import sys, time
from hush.engines import simulation
play, times = simulation.play_round, []
def timed(*given):
    began = time.perf_counter()
    try:
        return play(*given)
    finally:
        times.append(time.perf_counter() - began)
simulation.play_round = timed
from hush.cli import main
try:
    main()
finally:
    import os
    if os.environ.get("RANK", "0") == "0":
        import json
        json.dump(times, open(os.environ["HUSH_TIMES"], "w"))
"""


def measured(processes: int, threads: int | None, typed: list[str], folder: Path) -> float:
    """The median; 0 processes stand for one without torchrun."""
    script, times, out = folder / "timed.py", folder / f"{processes}.json", folder / str(processes)
    script.write_text(_TIMED)
    how = (
        [sys.executable]
        if not processes
        else [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    )
    own = {"HUSH_TIMES": str(times)} | ({} if threads is None else {"OMP_NUM_THREADS": str(threads)})
    seeded = ["run", *typed, "--noise-seed", "1", "--no-diagnostics", "--out", str(out)]
    subprocess.run([*how, str(script), *seeded], check=True, env=os.environ | own, stdout=subprocess.DEVNULL)
    return statistics.median(json.loads(times.read_text())[1:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--threads", type=int, help="of each process")
    parser.add_argument("typed", nargs="+")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        first = None
        for processes in (0, *asked.processes):
            seconds = measured(processes, asked.threads, asked.typed, Path(place))
            model = load_file(Path(place) / str(processes) / "model.safetensors")
            first = first or (seconds, model)
            far = max(float((model[name].double() - first[1][name].double()).abs().max()) for name in model)
            name = f"{processes} by torchrun" if processes else "1 alone"
            print(
                f"{name:>16}: {seconds:.3f} s a round, {first[0] / seconds:.2f} times as fast, at most {far:.1e} from it",
                flush=True,
            )


if __name__ == "__main__":
    main()
