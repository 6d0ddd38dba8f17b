"""Convolutions that learned to tell kinds of drawn images apart: minutes on a CPU, once, since the result is kept.

They depend on the model's architecture and on nothing else, least of all on anybody's data.
"""

from __future__ import annotations

import copy
import hashlib
import inspect
import sys
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import track
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from hush.tasks.decoded import cache_dir, ours
from hush.tasks.start import processes
from hush.tasks.start.processes import Draws, Silhouettes

_KINDS, _BATCH = 1000, 256
_LR, _DECAY, _LARGEST = 0.08, 5e-4, 2.0


def pretrained(model: nn.Module, network: nn.Sequential, shape: tuple[int, ...], steps: int, in_bytes: bool) -> None:
    """Give `network`, which `model` ends in, weights after so many steps of telling drawn images apart."""
    where = _kept_at(model, shape, steps)
    if (kept := _read(where)) is not None:
        network.load_state_dict(kept)
        return
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        whole = _fresh(model).to(device)
    world, draws = Silhouettes(_KINDS, seed=1), Draws(2)
    optimiser = torch.optim.SGD(whole.parameters(), _LR, momentum=0.9, weight_decay=_DECAY, nesterov=True)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, _LR, total_steps=steps, pct_start=0.15)
    bar = Console(stderr=True)
    for _ in track(range(steps), "learning to see", console=bar, transient=True, disable=not sys.stderr.isatty()):
        x, kind = world.draw(_BATCH, shape, draws)
        images = (x * 255).round().to(torch.uint8) if in_bytes else x
        with torch.autocast(device.type, dtype=torch.bfloat16):
            outputs = whole(images.to(device))
        loss = nn.functional.cross_entropy(outputs.float(), kind.to(device))
        optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(whole.parameters(), _LARGEST)
        optimiser.step()
        schedule.step()
    learned = getattr(whole, "network", whole).cpu().state_dict()
    own = network.state_dict()
    found = {name: value.contiguous() if value.shape == own[name].shape else own[name] for name, value in learned.items()}
    network.load_state_dict(found)
    _keep(where, found)


def _fresh(model: nn.Module) -> nn.Module:
    """A copy with new weights, and a last layer for all kinds."""
    whole = copy.deepcopy(model)
    network: Any = getattr(whole, "network", whole)
    last = nn.Linear(network[-1].in_features, _KINDS)
    network[-1] = last
    for layer in network.modules():
        if isinstance(layer, nn.Conv2d | nn.Linear):
            nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)
    last.weight.data *= 0.3
    return whole


def _kept_at(model: nn.Module, shape: tuple[int, ...], steps: int) -> Path:
    """A name for everything that the weights depend on."""
    fixed = repr([buffer.tolist() for buffer in model.buffers()])  # how images are standardised
    sources = (inspect.getsource(processes), inspect.getsource(sys.modules[__name__]))
    told = "\n".join((repr(model), fixed, repr(shape), str(steps), *sources))
    name: str = hashlib.sha256(told.encode()).hexdigest()[:24]
    return cache_dir() / "starts" / f"{name}.safetensors"


def _read(where: Path) -> dict[str, Tensor] | None:
    try:
        return load_file(where) if ours(where) else None
    except (OSError, SafetensorError):
        return None


def _keep(where: Path, weights: dict[str, Tensor]) -> None:
    """For the next time; where there is no place for it, it is learned again."""
    try:
        where.parent.mkdir(parents=True, exist_ok=True)
        draft = where.with_suffix(".draft")
        save_file(weights, draft)
        draft.replace(where)
    except OSError:
        pass
