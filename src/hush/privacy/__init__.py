"""Exactly which privacy was proved: derived from the objects that run, or refused with the reason and the fix."""

from hush.privacy.accountant import account, calibrate, lower_bound, profile, spent
from hush.privacy.guarantee import Budget, Guarantee, Relation, Unit, View
from hush.privacy.plan import plan_of, server_plan
from hush.privacy.vocabulary import Phase, Plan, Release

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
