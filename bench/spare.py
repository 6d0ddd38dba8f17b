"""Runs that are missing from the papers' tables, several side by side; one small JSON each under bench/measured/spare/.

    python bench/spare.py --jobs 6 --device cuda NAME='run dp-fedavg --data cifar10 ...' NAME='...'

A cell that is there is not computed again. `--validation 0 --track-test` are added to each; `--out` says where else to write.
"""

from __future__ import annotations

import argparse
import datetime
import json
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

KEPT = (
    *(
        "method",
        "data",
        "model",
        "clients",
        "cohort",
        "rounds",
        "seed",
        "parameters",
        "test_accuracy",
        "best_test_accuracy",
        "test_loss",
    ),
    *("epsilon", "delta", "noise_multiplier", "clip", "claimed_epsilon", "seconds", "device", "hush_version"),
)


def cell(name: str, command: str, asked: argparse.Namespace) -> str:
    """Run one, and keep what matters of it."""
    file = asked.out / f"{name}.json"
    if file.is_file():
        return f"{name}: there already"
    flags = [*command.split(), "--validation", "0", "--track-test", "--device", asked.device]
    with tempfile.TemporaryDirectory() as folder:
        run = [sys.executable, "-c", "from hush.cli import main; main()", *flags, "--out", f"{folder}/run"]
        done = subprocess.run(run, check=False, capture_output=True, text=True)
        if done.returncode:
            return f"{name}: {done.stderr.strip().splitlines()[-1:]}"
        result: dict[str, Any] = json.loads(Path(folder, "run", "result.json").read_text())
        rounds = [json.loads(line) for line in Path(folder, "run", "rounds.jsonl").read_text().splitlines()]
    told = {"command": f"hush {' '.join(flags)}", "commit": asked.commit, "date": str(datetime.date.today())}
    told |= {key: result[key] for key in KEPT} | {"accuracies": [r.get("test_accuracy") for r in rounds]}
    file.write_text(json.dumps(told) + "\n")
    return f"{name}: {result['test_accuracy']:.4f}, best {result['best_test_accuracy']:.4f}, epsilon {result['epsilon']}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cells", nargs="+", metavar="NAME=COMMAND")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--commit", default="unknown")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "measured" / "spare")
    asked = parser.parse_args()
    asked.out.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(asked.jobs) as pool:
        for line in pool.map(lambda pair: cell(*pair.split("=", 1), asked), asked.cells):
            print(line, flush=True)


if __name__ == "__main__":
    main()
