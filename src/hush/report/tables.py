"""Methods side by side."""

from __future__ import annotations

from typing import Any

from hush.privacy.guarantee import at_least


def comparison(rows: list[dict[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """Titles, and one line a method: what it learned, what it spent, what it sent."""
    by = rows[0].get("best_by")
    units = len({row.get("unit") for row in rows} - {None}) > 1  # an epsilon of records is not one of clients
    deltas = len({row.get("delta") for row in rows} - {None}) > 1
    extra = [*(["delta"] if deltas else []), *(["of a"] if units else [])]
    lines = [
        [
            row["method"],
            _figure(row, "test_accuracy"),
            *([_figure(row, "best_test_accuracy")] if by else []),
            "none" if row["epsilon"] is None else at_least(row["epsilon"]),
            *([f"{row['delta']:.1g}" if row.get("delta") else ""] if deltas else []),
            *([str(row.get("unit") or "")] if units else []),
            f"{row['uplink_bytes_per_client'] / 1e6:.3g}",
            f"{row['downlink_bytes_per_client'] / 1e6:.3g}",
            f"{row['seconds']:.1f}",
        ]
        for row in rows
    ]
    return ["method", "test", *([f"best by {by}"] if by else []), "epsilon", *extra, "MB up", "MB down", "seconds"], lines


def _figure(row: dict[str, Any], key: str) -> str:
    """Accuracy, or of a task that has none the loss."""
    if row[key] is None:
        return f"loss {row['test_loss']:.4g}" if key == "test_accuracy" and row["test_loss"] is not None else ""
    spread = row.get(f"{key}_std")
    return f"{100 * row[key]:.1f}%" + (f" ± {100 * spread:.1f}" if spread is not None else "")
