"""What a folder's run is known by: its settings, its starting weights and every example. A run goes on with these alone.

The digest is a function of clients' data without noise: it stays in a file that only its owner reads, and goes with the run's end.
"""

from __future__ import annotations

import hashlib
import re

import torch
from torch import Tensor

from hush.core import Method
from hush.tasks.task import Clients, Task
from hush.version import __version__

INITIAL = "initial weights"


def fingerprint(method: Method, task: Task, *settings: object) -> dict[str, str]:
    """Digests of what a run was started with. Code is not in them: a changed sum gets noise of its own (`charging.charge`)."""
    stations = (method.local, *method.pipeline.parts, method.server)
    told = [repr(part) for part in (method.name, *stations, task.model, *settings, __version__)]
    words = re.sub(r" at 0x[0-9a-f]+", "", "\n".join(told))  # addresses differ from process to process
    held = task.train.told()
    if task.by_person and task.train.persons is not None:
        held += [task.train.persons, torch.tensor(task.person_rows)]
    for part in (task.test, task.validation, task.public):
        if part is not None:
            held += [part.x, part.y, part.sizes] if isinstance(part, Clients) else list(part)  # type: ignore[arg-type]
    weights = list(task.model.state_dict().values())
    return {"settings": hashlib.sha256(words.encode()).hexdigest(), INITIAL: _digest(weights), "data": _digest(held)}


def _digest(tensors: list[Tensor]) -> str:
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(f"{tuple(tensor.shape)}{tensor.dtype}".encode())
        digest.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def device_name(place: torch.device) -> str:
    """A GPU's own, or `cpu`."""
    return torch.cuda.get_device_name(place) if place.type == "cuda" else place.type


def arithmetic(place: torch.device) -> tuple[str, ...]:
    """What changes results by more than the order of a sum: the device, PyTorch's version, and how exactly it multiplies."""
    try:
        precision = torch.get_float32_matmul_precision()
    except RuntimeError:  # set through PyTorch's newer interface, one backend at a time
        precision = str(getattr(torch.backends.cuda.matmul, "fp32_precision", "mixed"))
    return device_name(place), torch.__version__, precision
