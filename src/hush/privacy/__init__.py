"""Exactly which privacy was proved: derived from the objects that run, or refused with the reason and the fix.

`plan_of` is loaded when it is first used: it reads objects that train, and figures alone need no PyTorch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hush.privacy.accountant import account, calibrate, lower_bound, profile, spent
from hush.privacy.client_plan import server_plan
from hush.privacy.guarantee import Budget, Guarantee, Relation, Unit, View
from hush.privacy.vocabulary import Phase, Plan, Release

if TYPE_CHECKING:
    from hush.privacy.plan import plan_of

__all__ = [
    "Budget",
    "Guarantee",
    "Phase",
    "Plan",
    "Relation",
    "Release",
    "Unit",
    "View",
    "account",
    "calibrate",
    "lower_bound",
    "plan_of",
    "profile",
    "server_plan",
    "spent",
]


def __getattr__(name: str) -> Any:
    if name != "plan_of":
        raise AttributeError(f"module 'hush.privacy' has no attribute '{name}'")
    from hush.privacy.plan import plan_of

    return plan_of
