"""What makes a run this run: two that could release different models must not share noise, nor cohorts.

Settings and data are hashed as they are. Code is hashed too: the bytecode of every station, and what the model, its loss and the
local training really do to one client (in float64 on the CPU, so that neither the chunk nor the device matters). The digest is a
function of clients' data without noise: it goes into the checkpoint, which only its owner reads, and nowhere else.
"""

from __future__ import annotations

import hashlib
import re
import warnings
from dataclasses import replace
from types import CodeType, FunctionType

import torch
from torch import Tensor

from hush.cohort import Cohort
from hush.core import Method, Round
from hush.local.sgd import Sgd
from hush.random import keys_of, uniform
from hush.tasks.task import Task
from hush.version import __version__


def fingerprint(method: Method, task: Task, cohort: Cohort, *facts: object) -> str:
    """A digest that changes with anything that changes a run's result beyond rounding."""
    stations = (method, method.local, *method.pipeline.parts, method.server, cohort)
    trainable = [name for name, p in task.model.named_parameters() if p.requires_grad]
    told = [_stable(part) for part in (*stations, task.model, task.loss, trainable, *facts, __version__)]
    told += [_code_of(type(part)) for part in stations]
    told += [_code_of(type(layer)) for layer in task.model.modules()]
    told += [_behaviour(method, task), _digest_of(task)]
    return hashlib.sha256("\n".join(told).encode()).hexdigest()


def _stable(value: object) -> str:
    """`repr` without the addresses of objects, which differ from process to process."""
    code = _function_code(value) if isinstance(value, FunctionType) else ""
    return re.sub(r" at 0x[0-9a-f]+", "", repr(value)) + code


def _code_of(kind: type) -> str:
    """The bytecode of a class and of what it inherits; PyTorch's and Python's own go by name."""
    told = []
    for cls in kind.__mro__:
        told.append(f"{cls.__module__}.{cls.__qualname__}")
        if not cls.__module__.startswith(("torch", "builtins")):
            told += [name + _function_code(f) for name, f in sorted(vars(cls).items()) if isinstance(f, FunctionType)]
    return " ".join(told)


def _function_code(function: FunctionType) -> str:
    return _code(function.__code__) + _stable(function.__defaults__)


def _code(code: CodeType) -> str:
    constants = [_code(c) if isinstance(c, CodeType) else repr(c) for c in code.co_consts]
    return hashlib.sha256(f"{code.co_code.hex()}{code.co_names}{constants}".encode()).hexdigest()


def _behaviour(method: Method, task: Task) -> str:
    """Eight projections of the first client's update, to six digits."""
    try:
        with warnings.catch_warnings(action="ignore"):
            learner, train = task.learner("cpu", torch.float64), task.placed_train("cpu", torch.float64)
            first = torch.nonzero(train.sizes)[:1, 0]
            keys = keys_of(0, torch.zeros_like(first))
            local = replace(method.local, epochs=None, steps=2) if isinstance(method.local, Sgd) else method.local
            updates = local(learner, learner.initial(), train.shard(first), Round(0, 0, 1.0), keys, None).updates
    except Exception:  # a model that cannot be run so is known by its settings, weights and code alone
        return "unknown"
    signs = uniform(keys_of(1, torch.arange(8)), (updates.shape[1],)).double() - 0.5
    return " ".join(f"{value:.5e}" for value in (signs @ updates.double().sum(0)).tolist())


def _digest_of(task: Task) -> str:
    """Every example and every starting weight."""
    digest = hashlib.sha256()
    train = task.train
    tensors: list[Tensor] = [train.x, train.y, train.sizes, *task.model.state_dict().values()]
    for pair in (task.test, task.validation, task.public):
        tensors += list(pair) if pair is not None else []
    for tensor in tensors:
        digest.update(f"{tuple(tensor.shape)}{tensor.dtype}".encode())
        digest.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
