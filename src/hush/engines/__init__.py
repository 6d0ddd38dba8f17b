"""Engines run methods; they hold no algorithm."""

from hush.engines.simulation import Result, simulate

__all__ = ["Result", "simulate"]
