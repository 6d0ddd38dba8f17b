"""What makes a run this run: two that could release different models must not share noise, nor cohorts.

Settings and data are hashed as they are. Code is hashed too: the bytecode of every station, and what the model, its loss and the
local training really do to one client (in float64 on the CPU, so that neither the chunk nor the device matters). The digest is a
function of clients' data without noise: it goes into the checkpoint, which only its owner reads, and nowhere else.
"""

from __future__ import annotations

import hashlib
import re
import warnings
from functools import partial
from types import CellType, CodeType, FunctionType, MethodType, ModuleType

import numpy as np
import torch
from torch import Tensor, nn

from hush.cohort import Cohort
from hush.core import Method, Round, Server
from hush.own import OwnSecrets
from hush.random import coins, keys_of
from hush.secret import Secret
from hush.tasks.task import Clients, Task, whole
from hush.version import __version__


def fingerprint(method: Method, task: Task, cohort: Cohort, *facts: object) -> str:
    """A digest that changes with anything that changes a run's result beyond rounding."""
    stations = (method, method.local, *method.pipeline.parts, method.server, cohort)
    trainable = [name for name, p in task.model.named_parameters() if p.requires_grad]
    told = [_stable(part) for part in (*stations, task.model, task.loss, trainable, *facts, __version__)]
    told += [_code_of(type(part)) for part in stations]
    told += [_contents(part) for part in stations[1:]]  # a station that wraps another does what that does, too
    told += [_code_of(type(layer)) for layer in task.model.modules()]
    told += [_contents(task.model), _contents(task.loss), str(task.ignored)]
    told += [_behaviour(method, task), _digest_of(task)]
    return hashlib.sha256("\n".join(told).encode()).hexdigest()


def arithmetic(place: torch.device) -> tuple[str, ...]:
    """What changes results by more than the order of a sum: the device, PyTorch's version, and how exactly it multiplies."""
    name = torch.cuda.get_device_name(place) if place.type == "cuda" else place.type
    try:
        precision = torch.get_float32_matmul_precision()
    except RuntimeError:  # set through PyTorch's newer interface, one backend at a time
        precision = str(getattr(torch.backends.cuda.matmul, "fp32_precision", "mixed"))
    return name, torch.__version__, precision


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
            told += [name + _member(value) for name, value in sorted(vars(cls).items()) if not name.startswith("__")]
            told += [name + _member(vars(cls)[name]) for name in ("__init__", "__call__") if name in vars(cls)]
    return " ".join(told)


def _member(value: object) -> str:
    """A method, a property, a static or class method, or a plain value of a class."""
    if isinstance(value, staticmethod | classmethod):
        value = value.__func__
    if isinstance(value, property):
        return "".join(_function_code(f) for f in (value.fget, value.fset) if isinstance(f, FunctionType))
    return _function_code(value) if isinstance(value, FunctionType) else _plain(value)


def _function_code(function: FunctionType, depth: int = 2) -> str:
    """Its bytecode, its defaults, what it closes over, and the globals that it reads: all that decides what it does."""
    told = [_code(function.__code__), _plain(function.__defaults__), _plain(function.__kwdefaults__)]
    cells = [cell.cell_contents for cell in function.__closure__ or () if not _is_empty(cell)]
    known = [function.__globals__[name] for name in function.__code__.co_names if name in function.__globals__]
    for value in (*cells, *known):
        if isinstance(value, FunctionType):
            told.append(
                _function_code(value, depth - 1) if depth and not value.__module__.startswith("torch") else value.__qualname__
            )
        else:
            told.append(_plain(value))
    return hashlib.sha256(" ".join(told).encode()).hexdigest()


def _contents(value: object, depth: int = 6, seen: dict[int, object] | None = None) -> str:
    """All that an object holds and that `repr` may not show: a loss's weights, a layer's own numbers, what a partial binds."""
    seen = {} if seen is None else seen
    inside = _inside(value) if depth > 0 else None
    if inside is not None and not isinstance(value, dict | list | tuple | set | frozenset):
        if id(value) in seen:  # objects may hold each other
            return f"again {type(value).__qualname__}"
        seen[id(value)] = value
    if inside is not None:
        told = [_contents(item, depth - 1, seen) for item in inside]
        return str(sorted(told) if isinstance(value, set | frozenset) else told)
    if isinstance(value, FunctionType):
        return _function_code(value)
    if isinstance(value, np.ndarray):
        return hashlib.sha256(np.ascontiguousarray(value).tobytes()).hexdigest() + f"{value.dtype}{value.shape}"
    return _plain(value) if isinstance(value, Tensor | int | float | complex | str | bytes | bool | None) else _stable(value)


def _inside(value: object) -> list[object] | None:
    """What an object is made of, in an order that does not change from process to process; None for what is one piece."""
    if isinstance(value, partial | MethodType):
        return [value.func, value.args, value.keywords] if isinstance(value, partial) else [value.__func__, value.__self__]
    if isinstance(value, dict):
        return [(str(key), value[key]) for key in sorted(value, key=str)]
    if isinstance(value, list | tuple | set | frozenset):
        return list(value)
    if isinstance(value, nn.Module):  # every layer by its name, however deep; in which mode it came does not matter
        return [(name, _code_of(type(m)), _attributes(m, "_modules", "training")) for name, m in value.named_modules()]
    if isinstance(value, type | ModuleType | Tensor | FunctionType) or not hasattr(value, "__dict__"):
        return None
    return [_code_of(type(value)), _attributes(value)]


def _attributes(value: object, *but: str) -> dict[str, object]:
    return {key: item for key, item in vars(value).items() if key not in but}


_SIMPLE = (int, float, complex, str, bytes, bool, type(None))


def _is_empty(cell: CellType) -> bool:
    try:
        return cell.cell_contents is None
    except ValueError:  # a name that is bound later
        return True


def _plain(value: object) -> str:
    """Numbers, words, tensors and what is made of them; other objects by their kind and the numbers and words that they hold."""
    if isinstance(value, Tensor):
        return hashlib.sha256(value.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes()).hexdigest()
    if isinstance(value, dict):
        return str(sorted((str(key), _plain(item)) for key, item in value.items()))
    if isinstance(value, set | frozenset):  # whose order differs from process to process
        return str(sorted(_plain(item) for item in value))
    if isinstance(value, list | tuple):
        return str([_plain(item) for item in value])
    if isinstance(value, _SIMPLE):
        return repr(value)
    held = {} if isinstance(value, type | ModuleType) else getattr(value, "__dict__", {})  # a configuration that functions read
    return f"{type(value).__qualname__} {sorted((str(key), repr(v)) for key, v in held.items() if isinstance(v, _SIMPLE))}"


def _code(code: CodeType) -> str:
    constants = [_code(c) if isinstance(c, CodeType) else _plain(c) for c in code.co_consts]
    return hashlib.sha256(f"{code.co_code.hex()}{code.co_names}{constants}".encode()).hexdigest()


def _behaviour(method: Method, task: Task) -> str:
    """Eight projections of what the first clients send when they train on two examples each, to six digits."""
    try:
        with warnings.catch_warnings(action="ignore"):
            learner, train = task.learner("cpu", torch.float64), task.placed_train("cpu", torch.float64)
            first = torch.nonzero(train.sizes)[:4, 0]
            keys = keys_of(0, torch.arange(len(first)))
            few = train.shard(first)._replace(size=train.sizes[first].clamp_max(2))  # enough to tell models apart, and quick
            few = few._replace(own=OwnSecrets.simulated(Secret(bytes(32)), first.tolist()))
            local = method.local.shortened(2)
            start, rnd = learner.initial(), Round(0, 0, 1.0, method.pipeline.room())
            public = task.placed("public", torch.device("cpu"), torch.float64)
            updates = local(learner, start, few, rnd, keys, None).updates
            if not method.pipeline.needs_public:  # a mask from public data takes a training of its own
                told = method.prepare(start, method.init(start), rnd, Server(learner, None if public is None else whole(public)))
                updates = method.pipeline.encode(updates, rnd, keys, told)
    except Exception:  # a model that cannot be run so is known by its settings, weights and code alone
        return "unknown"
    signs = coins(keys_of(1, torch.arange(8)), (updates.shape[1],), 0.5).double() - 0.5
    return " ".join(f"{value:.5e}" for value in (signs @ updates.double().sum(0)).tolist())


def _digest_of(task: Task) -> str:
    """Every example and every starting weight."""
    digest = hashlib.sha256()
    train = task.train
    tensors: list[Tensor] = [train.x, train.y, train.sizes, *task.model.state_dict().values()]
    for part in (task.test, task.validation, task.public):
        if part is not None:
            tensors += [part.x, part.y, part.sizes] if isinstance(part, Clients) else list(part)  # type: ignore[arg-type]
    for tensor in tensors:
        digest.update(f"{tuple(tensor.shape)}{tensor.dtype}".encode())
        digest.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
