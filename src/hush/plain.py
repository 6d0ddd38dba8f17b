"""Objects as plain data: what a certificate says of the parts that ran, and a ledger of a plan."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from enum import StrEnum
from typing import Any


def plain(value: Any) -> Any:
    """Dictionaries, lists, words and numbers for JSON; a dataclass says its kind, what is the user's own also where it is from."""
    if value is None or isinstance(value, bool | int) or (isinstance(value, float) and math.isfinite(value)):
        return value
    if isinstance(value, StrEnum | str | float):
        return str(value)
    if is_dataclass(value) and not isinstance(value, type):
        shown = (f.name for f in fields(value) if f.repr)
        return {"kind": _kind(type(value))} | {name: plain(getattr(value, name)) for name in shown}
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [plain(item) for item in value]
    return _tensor(value) if hasattr(value, "untyped_storage") else _kind(value if hasattr(value, "__qualname__") else type(value))


def _tensor(value: Any) -> dict[str, Any]:
    held = value.detach().cpu().contiguous().numpy().tobytes()
    return {"kind": "Tensor", "shape": list(value.shape), "sha256": hashlib.sha256(held).hexdigest()}


def _kind(what: Any) -> str:
    home = str(getattr(what, "__module__", ""))
    return what.__qualname__ if home.split(".", maxsplit=1)[0] == "hush" else f"{home}.{what.__qualname__}"


def differing(expected: dict[str, Any], told: dict[str, Any]) -> list[str]:
    """The names of what is told otherwise; figures are compared to nine digits."""
    return [key for key, value in expected.items() if key not in told or not _close(value, told[key])]


def _close(a: Any, b: Any) -> bool:
    """Equal, figures to nine digits."""
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(_close(a[k], b[k]) for k in a)
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(_close(x, y) for x, y in zip(a, b, strict=True))
    if isinstance(a, float) and isinstance(b, int | float):
        return math.isclose(a, b, rel_tol=1e-9, abs_tol=1e-12)
    return bool(a == b)
