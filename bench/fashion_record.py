"""The record on Fashion-MNIST: `python bench/fashion_record.py [--seeds 5] [--rows NAME ...]`.

6,000 clients, epsilon 1.01 at delta 6000^-1.1 for each of them against anyone who reads the model, Poisson cohorts, Fed-SMP's CNN,
figures of the *last* round. Settings were chosen on validation examples (--validation 6000); test figures are without these. Every
row is one JSON file in --out, and is not computed twice.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional

import hush
from hush import methods
from hush.tasks.models import build_model
from hush.tasks.models.pixels import on_pixels

COMMON = {"local_steps": 1, "batch_size": 10, "lr": 1.0, "clip": 0.05, "server": "momentum", "server_lr": 20.0}
PUBLIC = {"public": 1000, "clients": 5900, "cohort": 5900 / 12}
"""A hundred clients' worth of examples is public; the others hold ten each, and are drawn at the same rate."""
ROWS: dict[str, dict[str, Any]] = {
    "no public examples": {"start": "processes:2500"},
    "... convolutions at random": {"start": "processes"},
    "... without momentum, at ten times the rate": {"start": "processes:2500", "server": "average", "server_lr": 200.0},
    "... cohorts of 1,000": {"start": "processes:2500", "cohort": 1000},
    "... half the rounds": {"start": "processes:2500", "rounds": 100},
    "1,000 public examples": {"start": "public:2500"} | PUBLIC,
    "... convolutions at random, public": {"start": "public"} | PUBLIC,
    "... cohorts of 1,000, public": {"start": "public:2500"} | PUBLIC | {"cohort": 5900 / 6},
}
PUBLIC_ONLY = "public examples alone"


def private(row: dict[str, Any], seed: int, validation: int, device: str) -> dict[str, float | None]:
    """One training, by the library a user has."""
    settings = COMMON | {key: value for key, value in row.items() if key in COMMON}
    task = hush.load_task(
        "fashion-mnist",
        "fed-smp-cnn",
        clients=row.get("clients", 6000),
        validation=validation,
        public=row.get("public", 0),
        start=row["start"],
        seed=seed,
    )
    result = hush.simulate(
        methods.dp_fedavg(**settings),
        task,
        rounds=row.get("rounds", 200),
        cohort=row.get("cohort", 500),
        privacy=hush.Budget(epsilon=1.01, delta=6000**-1.1),
        seed=seed,
        device=device,
        eval_every=10**6,
        diagnostics=False,
    )
    return {"test": result.test_accuracy, "validation": result.validation_accuracy, "epsilon": result.epsilon}


def public_only(seed: int, validation: int, device: str, steps: int = 800, lr: float = 0.1) -> dict[str, float | None]:
    """The same CNN on the 1,000 public examples, moved, mirrored and turned a little: what the private rows must beat."""
    task = hush.load_task("fashion-mnist", "fed-smp-cnn", clients=6000, validation=validation, public=1000, seed=seed)
    assert task.public is not None
    x, y = (torch.as_tensor(part).to(device) for part in task.public)
    g = torch.Generator().manual_seed(seed)
    torch.manual_seed(seed)
    mean, std = (0.2860,), (0.3530,)
    net = on_pixels(build_model("fed-smp-cnn", torch.Size((1, 28, 28)), 10, seed), mean, std).to(device)
    optimiser = torch.optim.SGD(net.parameters(), lr, momentum=0.9, weight_decay=1e-3, nesterov=True)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, lr, total_steps=steps)
    for _ in range(steps):
        rows = torch.randint(len(x), (128,), generator=g)
        angle, scale = 0.14 * torch.randn(128, generator=g), 1 + 0.08 * torch.randn(128, generator=g)
        move, mirror = 0.14 * (torch.rand(128, 2, generator=g) - 0.5) * 2, 1 - 2 * (torch.rand(128, generator=g) < 0.5).float()
        turn = torch.stack(
            [
                torch.stack([mirror * scale * angle.cos(), -scale * angle.sin(), move[:, 0]], 1),
                torch.stack([mirror * scale * angle.sin(), scale * angle.cos(), move[:, 1]], 1),
            ],
            1,
        ).to(device)
        images = functional.grid_sample(
            x[rows].float(), functional.affine_grid(turn, [128, 1, 28, 28], align_corners=False), align_corners=False
        )
        loss = nn.functional.cross_entropy(net(images), y[rows].long(), label_smoothing=0.1)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        schedule.step()
    net.eval()

    def accuracy(part: Any) -> float | None:
        if part is None or not len(part[0]):
            return None
        with torch.no_grad():
            answers = torch.cat([net(chunk.to(device)).argmax(1).cpu() for chunk in torch.split(torch.as_tensor(part[0]), 2000)])
        return float((answers == torch.as_tensor(part[1])).float().mean())

    return {"test": accuracy(task.test), "validation": accuracy(task.validation), "epsilon": None}


def main() -> None:
    """Rows by seeds, and a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("runs/fashion-record"))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--rows", nargs="*")
    parser.add_argument("--validation", type=int, default=0)
    parser.add_argument("--device", default="auto")
    asked = parser.parse_args()
    warnings.simplefilter("ignore")
    device = asked.device if asked.device != "auto" else ("cuda" if torch.cuda.is_available() else "cpu")
    asked.out.mkdir(parents=True, exist_ok=True)
    for name in asked.rows or (PUBLIC_ONLY, *ROWS):
        cells = []
        for seed in range(asked.seeds):
            key = f"{name.strip('. ').replace(' ', '-').replace(',', '')}-v{asked.validation}-{seed}.json"
            where = asked.out / key
            if not where.exists():
                began = time.perf_counter()
                run = public_only if name == PUBLIC_ONLY else None
                cell = run(seed, asked.validation, device) if run else private(ROWS[name], seed, asked.validation, device)
                where.write_text(json.dumps(cell | {"seconds": round(time.perf_counter() - began, 1)}))
            cells.append(json.loads(where.read_text()))
        told = []
        for part in ("test", "validation"):
            values = [100 * cell[part] for cell in cells if cell[part] is not None]
            if values:
                told.append(f"{part} {statistics.mean(values):.2f} ± {statistics.stdev(values) if len(values) > 1 else 0:.2f}")
        spent = f"epsilon {cells[0]['epsilon']:.3f}" if cells[0]["epsilon"] else "no private data"
        print(f"{name:45} {'  '.join(told)}  {spent}", flush=True)


if __name__ == "__main__":
    main()
