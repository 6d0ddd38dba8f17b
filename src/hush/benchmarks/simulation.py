"""`hush bench simulation`: a round of Hush's simulator beside its peers', in turns, each in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, TextIO

from hush.benchmarks.workloads import Workload

Tell = Callable[[str], None]
MODULES = {
    "hush": "hush_round",
    "pfl": "pfl_research",
    "jax": "jax_cohort",
    "flower": "flower_engine",
    "loop": "plain_loop",
}
"""A peer, and its file in `peers`."""
TITLES = {"hush": "Hush", "pfl": "pfl-research", "jax": "JAX, jitted", "flower": "Flower", "loop": "plain loop"}
_WAYS: dict[str, dict[str, tuple[str, ...]]] = {
    "cpu": {"pfl": ("1 process", "2 processes"), "jax": ("vmap", "scan"), "loop": ("1 thread", "{cores} threads")},
    "cuda": {"pfl": ("1 process", "5 processes", "8 processes"), "jax": ("vmap", "scan"), "flower": ("8 actors",)},
}
"""How a peer can be run: the fastest counts."""


@dataclass(frozen=True)
class Asked:
    """How long and on what everybody is timed."""

    device: str
    tf32: bool = False
    rounds: int = 5
    """Timed in each pass."""
    passes: int = 3
    warmup: int = 2
    seconds: float = 20.0
    """After so many a pass ends, with one round at least."""
    python: str = sys.executable
    """The interpreter that peers are installed for."""
    patience: float = 400.0
    """Seconds for a peer to be imported, and as many for its first rounds."""

    def ways(self, peer: str) -> tuple[str, ...]:
        cores = os.cpu_count() or 1
        found = (way.format(cores=cores) for way in _WAYS[self.device].get(peer, ("",)))
        return tuple(way for way in found if not (way == "1 threads" and cores == 1))


@dataclass
class Runner:
    """A peer that has been started, one way."""

    peer: str
    way: str
    process: subprocess.Popen[str]
    errors: TextIO
    facts: dict[str, Any] = field(default_factory=dict)
    seconds: list[float] = field(default_factory=list)
    failed: str | None = None

    def ask(self, patience: float, line: dict[str, Any] | None = None) -> dict[str, Any]:
        """Its next answer; nothing where it fails, and from then on."""
        if self.failed is not None:
            return {}
        assert self.process.stdin is not None
        try:
            if line is not None:
                self.process.stdin.write(json.dumps(line) + "\n")
                self.process.stdin.flush()
            return dict(json.loads(self._line(patience)))
        except (OSError, ValueError) as error:
            self.failed = self._why() or f"{type(error).__name__}: {error}"
            self.stop()
            return {}

    def _line(self, patience: float) -> str:
        import select

        assert self.process.stdout is not None
        if not select.select([self.process.stdout], [], [], patience)[0]:
            raise TimeoutError(f"no answer within {patience:g} s")
        return self.process.stdout.readline()

    def _why(self) -> str:
        with _patiently():
            self.process.wait(1)
        if self.process.poll() is None:
            return ""
        self.errors.seek(0)
        said = [line.strip() for line in self.errors if line.strip()]
        return next((line for line in reversed(said) if "Error" in line), said[-1] if said else "")

    def stop(self) -> None:
        """It, and whatever it started."""
        if self.process.poll() is None and self.failed is None and self.process.stdin is not None:
            self.process.stdin.close()
            with _patiently():
                self.process.wait(10)
        with _patiently():
            os.killpg(self.process.pid, 9)  # a session of its own
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                with suppress(BrokenPipeError):
                    pipe.close()

    def row(self) -> dict[str, Any]:
        missing = self.failed is not None and ("No module named" in self.failed or "ImportError" in self.failed)
        row = {"peer": self.peer, "way": self.way, "failed": self.failed, "installed": not missing} | self.facts
        if self.seconds:
            row |= {"round_s": median(self.seconds), "round_s_min": min(self.seconds), "round_s_max": max(self.seconds)}
        return row | {"rounds": len(self.seconds)}


@contextmanager
def _patiently() -> Iterator[None]:
    with suppress(subprocess.TimeoutExpired, ProcessLookupError):
        yield


def machine(device: str) -> str:
    """What it is, in words."""
    import torch

    if device == "cuda":
        return f"one {torch.cuda.get_device_name()}, PyTorch {torch.__version__}"
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return f"{cores} CPU cores, PyTorch {torch.__version__}"


def measure(workload: Workload, peers: Sequence[str], asked: Asked, tell: Tell = lambda _: None) -> dict[str, Any]:
    """Seconds a round of everybody on one workload, the ratios to Hush's, and the floor."""
    from hush.benchmarks.floor import copy_speed, floors

    folder = tempfile.TemporaryDirectory(prefix="hush-bench-")
    with folder as place:
        runners = [_started(workload, peer, way, asked, Path(place)) for peer in peers for way in asked.ways(peer)]
        try:
            _time(runners, workload, asked, tell)
        finally:
            for runner in runners:
                runner.stop()
                runner.errors.close()
    rows = [runner.row() for runner in runners]
    sizes = {row["peer"]: row["parameters"] for row in rows if "parameters" in row}
    found = {"workload": workload.to_json(), "says": workload.says(), "device": asked.device, "tf32": asked.tf32, "rows": rows}
    if "hush" in sizes:
        odd = [peer for peer, size in sizes.items() if size != sizes["hush"]]
        if odd:
            raise AssertionError(f"{odd} trained another model: {sizes}")
        speed = copy_speed(asked.device)
        found |= {"parameters": sizes["hush"], "copy_bytes_s": speed} | floors(workload, sizes["hush"], speed)
    best = {row["peer"]: row for row in sorted((r for r in rows if "round_s" in r), key=lambda r: -r["round_s"])}
    found["best"] = {peer: {"round_s": row["round_s"], "way": row["way"]} for peer, row in best.items()}
    if "hush" in best:
        found["over_hush"] = {peer: row["round_s"] / best["hush"]["round_s"] for peer, row in best.items() if peer != "hush"}
    return found


def _started(workload: Workload, peer: str, way: str, asked: Asked, place: Path) -> Runner:
    told = {
        "workload": workload.to_json(),
        "device": asked.device,
        "tf32": asked.tf32,
        "way": way,
        "rounds": asked.warmup + asked.passes * (asked.rounds + 1) + 10,
        "warmup": asked.warmup,
    }
    errors = open(place / f"{peer} {way}", "w+")  # noqa: SIM115  # closed with the runner
    home = str(Path(__file__).parents[2])
    given = os.environ.get("PYTHONPATH")
    env = os.environ | {"PYTHONPATH": home + (os.pathsep + given if given else "")}
    if peer != "hush" and env.get("OMP_WAIT_POLICY") == "PASSIVE":  # as the hush command sets it for itself
        del env["OMP_WAIT_POLICY"]
    process = subprocess.Popen(
        [asked.python if peer != "hush" else sys.executable, "-m", f"hush.benchmarks.peers.{MODULES[peer]}", json.dumps(told)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=errors,
        text=True,
        env=env,
        start_new_session=True,
    )
    return Runner(peer, way, process, errors)


def _time(runners: list[Runner], workload: Workload, asked: Asked, tell: Tell) -> None:
    """Imported all at once, set up one by one, then timed in turns."""
    for runner in runners:
        tell(f"{workload.name}: {_named(runner)} is imported")
        runner.ask(asked.patience)
    for runner in runners:
        tell(f"{workload.name}: {_named(runner)}, first rounds")
        began = time.perf_counter()
        runner.facts = runner.ask(asked.patience, {"rounds": 0, "seconds": 0})
        runner.facts |= {"first_rounds_s": time.perf_counter() - began} if runner.facts else {}
    for turn in range(asked.passes):
        for runner in runners:
            tell(f"{workload.name}: {_named(runner)}, pass {turn + 1} of {asked.passes}")
            line = {"rounds": asked.rounds, "seconds": asked.seconds}
            runner.seconds += runner.ask(asked.patience, line).get("seconds", [])
    for runner in runners:
        if runner.peer == "hush" and asked.device == "cuda" and runner.seconds:
            tell(f"{workload.name}: what the GPU does in Hush's rounds")
            seen = runner.ask(asked.patience, {"rounds": min(3, asked.rounds), "seconds": asked.seconds, "watch": True})
            if "gpu_s" in seen:
                each = 1 / len(seen["seconds"])
                runner.facts |= {"gpu_s": seen["gpu_s"] * each, "launches": seen["launches"] * each}
                runner.facts["gpu_share"] = min(1.0, seen["gpu_s"] * each / median(runner.seconds))


def _named(runner: Runner) -> str:
    return TITLES[runner.peer] + (f", {runner.way}" if runner.way else "")
