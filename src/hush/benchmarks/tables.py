"""What `hush bench simulation` measured, as rows for a screen and for the docs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hush.benchmarks.simulation import TITLES

Cells = list[list[str]]


def cells(found: Sequence[dict[str, Any]]) -> tuple[list[str], Cells]:
    """Milliseconds a round of everybody's best way, and in brackets how many times Hush's they are."""
    present = [peer for peer in TITLES if any(peer in one["best"] for one in found)]
    gpu = any(one["device"] == "cuda" for one in found)
    titles = ["", *(TITLES[peer] for peer in present), "floor, fused", *(["GPU computes", "launches"] if gpu else [])]
    return titles, [_cells(one, present, gpu) for one in found]


def screen(found: Sequence[dict[str, Any]]) -> tuple[list[str], Cells]:
    """The same, a row for everybody."""
    rows = []
    for one in found:
        rows.append([one["says"] + _precision(one), "", ""])
        for peer, best in sorted(one["best"].items(), key=lambda item: float(item[1]["round_s"])):
            times = one.get("over_hush", {}).get(peer)
            shown = "" if times is None else f"{times:.2f}"
            way = f", {best['way']}" if best["way"] else ""
            rows.append([f"  {TITLES[peer]}{way}", _milliseconds(best["round_s"]), shown])
        if "floor_s" in one:
            rows.append(["  memory floor", _milliseconds(one["floor_s"]), ""])
            rows.append(["  memory floor, fused", _milliseconds(one["fused_floor_s"]), ""])
        hush: dict[str, Any] = next((r for r in one["rows"] if r["peer"] == "hush"), {})
        if "gpu_share" in hush:
            rows.append([f"  the GPU computes ({hush['launches']:,.0f} launches)", f"{100 * hush['gpu_share']:.0f}%", ""])
    return ["", "a round", "/ Hush"], rows


def _precision(one: dict[str, Any]) -> str:
    return "" if one["device"] != "cuda" else ", TF32" if one["tf32"] else ", float32"


def _cells(one: dict[str, Any], present: list[str], gpu: bool) -> list[str]:
    row = [one["says"] + _precision(one)]
    for peer in present:
        best = one["best"].get(peer)
        row.append("" if best is None else _milliseconds(best["round_s"]) + _beside(one, peer, best["way"]))
    row.append(f"{_milliseconds(one['floor_s'])}, {_milliseconds(one['fused_floor_s'])}" if "floor_s" in one else "")
    if gpu:
        hush: dict[str, Any] = next((r for r in one["rows"] if r["peer"] == "hush"), {})
        row.append(f"{100 * hush['gpu_share']:.0f}%" if "gpu_share" in hush else "")
        row.append(f"{hush['launches']:,.0f}" if "launches" in hush else "")
    return row


def _beside(one: dict[str, Any], peer: str, way: str) -> str:
    told = [f"{one['over_hush'][peer]:.2g}x" if peer in one.get("over_hush", {}) else "", way]
    told = [word for word in told if word]
    return f" ({', '.join(told)})" if told else ""


def _milliseconds(seconds: float) -> str:
    return f"{1e3 * seconds:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"


def markdown(found: Sequence[dict[str, Any]], machine: str) -> str:
    """The table of the docs: Hush first, in bold."""
    titles, rows = cells(found)
    at = titles.index(TITLES["hush"]) if TITLES["hush"] in titles else None
    lines = [f"Seconds a round on {machine}, medians; in brackets how many times Hush's, and the fastest way of that peer:", ""]
    lines += [f"| {' | '.join(titles)} |", f"|{'---|' * len(titles)}"]
    for row in rows:
        shown = [f"**{cell}**" if i == at else cell for i, cell in enumerate(row)]
        lines.append(f"| {' | '.join(shown)} |")
    return "\n".join([*lines, "", *(f"* {line}" for line in notes(found))])


def notes(found: Sequence[dict[str, Any]]) -> list[str]:
    """Who was there in which version, and who was not."""
    versions = sorted({row["framework"] for one in found for row in one["rows"] if "framework" in row})
    told = [f"Versions: {', '.join(versions)}."] if versions else []
    absent = {TITLES[row["peer"]] for one in found for row in one["rows"] if not row["installed"]}
    if absent:
        told.append(f"Not installed: {', '.join(sorted(absent))}.")
    for one in found:
        for row in one["rows"]:
            if row["failed"] and row["installed"]:
                told.append(f"{one['says']}: {TITLES[row['peer']]} {row['way']} failed ({row['failed']}).".replace("  ", " "))
    return told
