"""Hush: federated learning that says as little as possible.

Names are loaded when they are first used: `import hush` is immediate, and the command line hears Ctrl-C while torch loads.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from hush.version import __version__

if TYPE_CHECKING:
    from hush import methods
    from hush.cohort import Bounded, FixedSize, Poisson, Rotation, SecretParticipation
    from hush.core import Bound, Chain, Method, Round, Transform, Wire, chain
    from hush.engines import Result, simulate
    from hush.errors import DataError, Diverged, HushError, NoGuarantee, UsageError
    from hush.privacy import Budget, Guarantee, Plan, account, calibrate, lower_bound, plan_of, profile, server_plan
    from hush.privacy.ledger import Ledger
    from hush.privacy.shares import SecureSum
    from hush.privacy.vocabulary import Enrolled
    from hush.tasks.build import load_task
    from hush.tasks.columns import Columns
    from hush.tasks.stored import Stored
    from hush.tasks.task import Clients, Examples, Task
    from hush.tuning import tune

_HOMES = {
    "cohort": ("Bounded", "FixedSize", "Poisson", "Rotation", "SecretParticipation"),
    "core": ("Bound", "Chain", "Method", "Round", "Transform", "Wire", "chain"),
    "engines": ("Result", "simulate"),
    "errors": ("DataError", "Diverged", "HushError", "NoGuarantee", "UsageError"),
    "privacy": ("Budget", "Guarantee", "Plan", "account", "calibrate", "lower_bound", "plan_of", "profile", "server_plan"),
    "privacy.ledger": ("Ledger",),
    "privacy.shares": ("SecureSum",),
    "privacy.vocabulary": ("Enrolled",),
    "tasks.build": ("load_task",),
    "tasks.columns": ("Columns",),
    "tasks.stored": ("Stored",),
    "tasks.task": ("Clients", "Examples", "Task"),
    "tuning.study": ("tune",),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}
_ROOMS = ("audit", "engines", "federation", "local", "methods", "privacy", "secagg", "server", "tasks", "transforms", "tuning")

__all__ = [
    "Bound",
    "Bounded",
    "Budget",
    "Chain",
    "Clients",
    "Columns",
    "DataError",
    "Diverged",
    "Enrolled",
    "Examples",
    "FixedSize",
    "Guarantee",
    "HushError",
    "Ledger",
    "Method",
    "NoGuarantee",
    "Plan",
    "Poisson",
    "Result",
    "Rotation",
    "Round",
    "SecretParticipation",
    "SecureSum",
    "Stored",
    "Task",
    "Transform",
    "UsageError",
    "Wire",
    "__version__",
    "account",
    "calibrate",
    "chain",
    "load_task",
    "lower_bound",
    "methods",
    "plan_of",
    "profile",
    "server_plan",
    "simulate",
    "tune",
]


def __getattr__(name: str) -> Any:
    if name in _HOME_OF:
        value = getattr(import_module(f"hush.{_HOME_OF[name]}"), name)
    elif name in _ROOMS:
        value = import_module(f"hush.{name}")
    else:
        raise AttributeError(f"module 'hush' has no attribute '{name}'")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*__all__, *_ROOMS})
