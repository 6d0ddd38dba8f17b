"""Exactly which privacy was proved: derived from the objects that run, or refused with the reason and the fix."""

from hush.privacy.accountant import account, calibrate, spent
from hush.privacy.guarantee import Budget, Guarantee, Relation, Unit, View
from hush.privacy.plan import Plan, plan_of

__all__ = ["Budget", "Guarantee", "Plan", "Relation", "Unit", "View", "account", "calibrate", "plan_of", "spent"]
