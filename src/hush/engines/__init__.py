"""Engines run methods; they hold no algorithm."""

from hush.engines.result import Result
from hush.engines.simulation import simulate

__all__ = ["Result", "simulate"]
