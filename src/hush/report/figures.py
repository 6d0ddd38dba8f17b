"""A round's record in one line, while a run goes."""

from __future__ import annotations

from typing import Any

from hush.privacy.guarantee import at_least


def figures(record: dict[str, Any]) -> str:
    """The running figures of one round's record."""
    words = []
    kinds = [(on, kind) for kind in ("accuracy", "loss") for on in ("test", "validation")]
    for on, kind in [told for told in kinds if record.get("_".join(told)) is not None][:1]:
        value = record[f"{on}_{kind}"]
        words.append(f"{on} {100 * value:.1f}%" if kind == "accuracy" else f"{on} loss {value:.4g}")
    if record.get("clients_accuracy") is not None:
        words.append(f"clients {100 * record['clients_accuracy']:.0f}%")
    if record.get("epsilon") is not None:
        words.append(f"eps {at_least(record['epsilon'])}")
    words.append(f"{record['uplink_bytes_per_client'] / 1e6:.3g} MB")
    if record.get("aborted"):
        words.append(f"{record['aborted']} rounds broke off")
    return "  ".join(words)
