"""Convolutions that learned to tell kinds of drawn images apart: minutes on a CPU, once, since the result is kept.

They depend on the model's architecture and on nothing else, least of all on anybody's data.
"""

from __future__ import annotations

import copy
import hashlib
import inspect
import sys
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import track
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from hush.errors import UsageError
from hush.tasks.decoded import cache_dir, ours
from hush.tasks.start import processes
from hush.tasks.start.ending import Ending, zeros
from hush.tasks.start.processes import Draws, Silhouettes

_KINDS, _BATCH = 1000, 256
_LR, _DECAY, _LARGEST = 0.08, 5e-4, 2.0


def pretrained(ending: Ending, shape: tuple[int, ...], steps: int, in_bytes: bool) -> None:
    """Give the body weights after so many steps of telling drawn images apart, by the model's own hidden layer."""
    if not any(True for _ in ending.body.parameters()):
        raise UsageError(
            f"--start ...:{steps} trains on drawn images what comes before the last two linear layers, and this model has nothing "
            "to train there: leave the steps out, or choose a convolutional model (hush models)."
        )
    where = _kept_at(ending, shape, steps)
    if (kept := _read(where)) is not None:
        ending.body.load_state_dict(kept)
        return
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        whole = _fresh(ending).to(device)
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
    found = {name: value.contiguous() for name, value in whole[0].cpu().state_dict().items()}
    ending.body.load_state_dict(found)
    _keep(where, found)


def _fresh(ending: Ending) -> nn.Sequential:
    """A copy of the body with new weights, and layers behind it that tell kinds apart."""
    last = nn.Linear(ending.hidden or ending.features, _KINDS)
    between = (zeros(ending.features, ending.hidden), nn.ReLU()) if ending.hidden else ()
    whole = nn.Sequential(copy.deepcopy(ending.body).requires_grad_(True), *between, last)
    for layer in whole.modules():
        if isinstance(layer, nn.Conv2d | nn.Linear):
            nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)
    last.weight.data *= 0.3
    return whole


def _kept_at(ending: Ending, shape: tuple[int, ...], steps: int) -> Path:
    """A name for everything that the weights depend on."""
    fixed = repr([buffer.tolist() for buffer in ending.body.buffers()])  # how images are standardised
    sources = (inspect.getsource(processes), inspect.getsource(sys.modules[__name__]))
    told = "\n".join((repr(ending.body), repr(ending.hidden), fixed, repr(shape), str(steps), *sources))
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
        where.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        draft = where.with_suffix(".draft")
        save_file(weights, draft)
        draft.chmod(0o600)  # what others could have written is not read back
        draft.replace(where)
    except OSError:
        pass
