"""Engines run methods; they hold no algorithm. Loaded when they are first used: what passes letters on needs no torch."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hush.engines.result import Result
    from hush.engines.simulation import simulate

_HOMES = {"Result": "result", "simulate": "simulation"}

__all__ = ["Result", "simulate"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'hush.engines' has no attribute '{name}'")
    return getattr(import_module(f"hush.engines.{_HOMES[name]}"), name)
