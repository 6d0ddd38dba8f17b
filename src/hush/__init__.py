"""Hush: federated learning that says as little as possible."""

from hush import methods
from hush.cohort import Bounded, FixedSize, Poisson
from hush.core import Bound, Chain, Method, Round, Transform, Wire, chain
from hush.engines import Result, simulate
from hush.errors import DataError, Diverged, HushError, NoGuarantee, UsageError
from hush.privacy import Budget, Guarantee, Plan, account, calibrate, plan_of
from hush.tasks.build import load_task
from hush.tasks.task import Clients, Examples, Task
from hush.version import __version__

__all__ = [
    "Bound",
    "Bounded",
    "Budget",
    "Chain",
    "Clients",
    "DataError",
    "Diverged",
    "Examples",
    "FixedSize",
    "Guarantee",
    "HushError",
    "Method",
    "NoGuarantee",
    "Plan",
    "Poisson",
    "Result",
    "Round",
    "Task",
    "Transform",
    "UsageError",
    "Wire",
    "__version__",
    "account",
    "calibrate",
    "chain",
    "load_task",
    "methods",
    "plan_of",
    "simulate",
]
