"""Methods side by side."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hush.privacy.guarantee import at_least


def comparison(rows: list[dict[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """Titles, and one line a method: what it learned, what it spent, what it sent."""
    columns: dict[str, Callable[[dict[str, Any]], str]] = {"method": lambda row: row["method"]}
    columns["test"] = lambda row: _figure(row, "test_accuracy")
    if by := rows[0].get("best_by"):
        columns[f"best by {by}"] = lambda row: _figure(row, "best_test_accuracy")
    columns["epsilon"] = lambda row: "none" if row["epsilon"] is None else at_least(row["epsilon"])
    if len({row.get("delta") for row in rows} - {None}) > 1:
        columns["delta"] = lambda row: f"{row['delta']:.1g}" if row.get("delta") else ""
    if len({row.get("unit") for row in rows} - {None}) > 1:  # an epsilon of records is not one of clients
        columns["of a"] = lambda row: str(row.get("unit") or "")
    columns["MB up"] = lambda row: f"{row['uplink_bytes_per_client'] / 1e6:.3g}"
    columns["MB down"] = lambda row: f"{row['downlink_bytes_per_client'] / 1e6:.3g}"
    columns["seconds"] = lambda row: f"{row['seconds']:.1f}"
    return list(columns), [[cell(row) for cell in columns.values()] for row in rows]


def _figure(row: dict[str, Any], key: str) -> str:
    """Accuracy, or of a task that has none the loss."""
    if row[key] is None:
        return f"loss {row['test_loss']:.4g}" if key == "test_accuracy" and row["test_loss"] is not None else ""
    spread = row.get(f"{key}_std")
    return f"{100 * row[key]:.1f}%" + (f" ± {100 * spread:.1f}" if spread is not None else "")
