"""One self-contained HTML page for one run: what was learned, what was proved, what it cost, what limited it."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from typing import Any

from hush.engines.result import Result
from hush.errors import UsageError
from hush.privacy.attack import doubts, risk
from hush.privacy.guarantee import at_least

STYLE = """
body{font:16px/1.5 system-ui,sans-serif;color:#1c2430;max-width:980px;margin:2.5rem auto;padding:0 1.2rem}
h1{font-size:1.5rem;margin:0}h2{font-size:1.1rem;margin:2rem 0 .5rem}.lead{font-size:1.15rem;margin:.6rem 0 1.4rem}
.cards{display:grid;grid-template-columns:repeat(auto-fit,minmax(170px,1fr));gap:.8rem}
.card{border:1px solid #d9dee6;border-radius:8px;padding:.7rem .9rem}.card b{display:block;font-size:1.4rem}
.card span{color:#5b6675;font-size:.85rem}table{border-collapse:collapse;font-size:.92rem}
td{padding:.22rem 1.2rem .22rem 0;vertical-align:top;border-bottom:1px solid #edf0f4}td:first-child{color:#5b6675}
.pictures{display:flex;flex-wrap:wrap;gap:1rem}.pictures svg{max-width:100%;height:auto}.warn{color:#8a3b00}li{margin:.2rem 0}
"""


def run_page(result: Result, diagnostics: list[dict[str, Any]]) -> str:
    """The page as text."""
    proved = result.guarantee
    cards = [
        *_learned(result),
        ("none" if proved is None else at_least(proved.epsilon), "epsilon proved" if proved else "privacy guarantee"),
        (f"{result.uplink_bytes_per_client / 1e6:.3g} MB", "sent per client, on average"),
    ]
    title = escape(f"{result.method} on {result.data}")
    sections = [
        f"<h1>{title}</h1>",
        f"<p class=lead>{escape(result.sentence())}.</p>",
        "<div class=cards>" + "".join(f"<div class=card><b>{a}</b><span>{b}</span></div>" for a, b in cards) + "</div>",
        "<h2>Privacy</h2>" + _privacy(result),
        "<h2>Course of the run</h2>" + _pictures(result, diagnostics) + _un_noised(result),
        "<h2>Settings</h2>" + _settings(result.configuration),
        "<h2>Figures</h2>" + _table(result.to_dict()),
    ]
    return whole_page(title, STYLE, "".join(sections))


def whole_page(title: str, style: str, body: str) -> str:
    """An HTML page that needs nothing besides itself."""
    return f"<!doctype html><html lang=en><meta charset=utf-8><title>{title}</title><style>{style}</style>{body}</html>\n"


def bullets(lines: Iterable[str]) -> str:
    """A list of sentences."""
    return "<ul>" + "".join(f"<li>{escape(line)}</li>" for line in lines) + "</ul>"


def table(rows: Iterable[tuple[str, str]], head: str = "") -> str:
    """What each thing is called, and what it is."""
    return f"<table>{head}" + "".join(f"<tr><td>{escape(a)}</td><td>{escape(b)}</td></tr>" for a, b in rows) + "</table>"


def _learned(result: Result) -> list[tuple[str, str]]:
    """Accuracy, last and best; of a task that has none, its loss; and the task's own metrics."""
    if result.test_accuracy is not None or result.test_loss is None:
        last = (_percent(result.test_accuracy), "test accuracy, last round")
        best = (_percent(result.best_test_accuracy), f"test accuracy, best round by {result.best_by}")
        cards = [last, best] if result.best_by is not None else [last]
    else:
        cards = [(f"{result.test_loss:.4g}", "test loss, last round")]
    names = {"auc": "AUC", "macro_f1": "macro F1", "rmse": "RMSE", "mae": "mean absolute error"}
    for name, value in result.test_metrics.items():
        cards.append(("undefined" if value is None else f"{value:.4g}", f"test {names.get(name, escape(name))}"))
    if result.per_client is not None:
        spread = result.per_client
        keys = ("worst_tenth", "worst", "mean")
        tenth, worst, mean = (f"{100 * spread[k]:.1f}%" if spread["figure"] == "accuracy" else f"{spread[k]:.4g}" for k in keys)
        told = (
            f"{spread['figure']} at which a tenth of {spread['clients']:,} clients is served no better (worst {worst}, mean {mean})"
        )
        cards.append((tenth, told))
    return cards


def _privacy(result: Result) -> str:
    proof = result.proof
    if proof is None:
        why = result.no_guarantee or "This method adds no noise."
        return f"<p class=warn>{escape(why)} Nothing is guaranteed to anybody.</p>"
    proved = proof.guarantee
    weak = doubts(proof.plan, proved, risk(proof.plan))
    mind = dict.fromkeys((*weak, *proved.warnings, *result.caveats))
    minded = f"<div class=warn><p>Mind:</p>{bullets(mind)}</div>" if mind else ""
    claimed = ""
    if result.claimed_epsilon is not None:
        claimed = f"<p>The paper's own accounting would print epsilon {result.claimed_epsilon:.2f}; that is not proved.</p>"
    server = "no guarantee in this run" if proof.server is None else escape(str(proof.server))
    return (
        f"<p>Proved: {escape(str(proved))} ({escape(proved.relation)}, {escape(proved.method)}). It holds if</p>"
        f"{bullets(proved.assumptions)}{minded}{claimed}<p>Against the server itself: {server}.</p>"
        "<p>The statement to file is <a href=certificate.html>certificate.html</a>.</p>"
    )


def _pictures(result: Result, diagnostics: list[dict[str, Any]]) -> str:
    from hush.report.plots import as_svg, line_figure

    def series(records: list[dict[str, Any]], keys: dict[str, str], scale: float = 1.0) -> dict[str, list[tuple[float, float]]]:
        """By the label of each curve, the figures that there are."""
        every = {name: [(r["round"], scale * r[key]) for r in records if r.get(key) is not None] for name, key in keys.items()}
        return {name: points for name, points in every.items() if points}

    held = ("validation", "test")
    accuracy = series(result.history, {name: f"{name}_accuracy" for name in held}, 100)
    shown = accuracy or series(result.history, {name: f"{name}_loss" for name in held})
    mark = " (simulation only)" if any(f"{name}_accuracy" in result.un_noised for name in held) else ""
    norms = series(diagnostics, {k.replace("_", " "): k for k in ("signal_norm", "noise_norm", "clip_bias", "compression_error")})
    norms = {name: points for name, points in norms.items() if any(value > 0 for _, value in points)}
    clipped = series(diagnostics, {"clipped fraction": "clipped_fraction"})
    try:
        pictures = []
        if shown:
            unit = "accuracy in %" if accuracy else "loss"
            pictures.append(line_figure(shown, "round", f"{' and '.join(shown)} {unit}{mark}"))
        if result.guarantee is not None:
            pictures.append(line_figure(series(result.history, {"epsilon": "epsilon"}), "round", "epsilon spent"))
        if norms:
            pictures.append(line_figure(norms, "round", "norm (simulation only)", log=True))
        if clipped:
            pictures.append(line_figure(clipped, "round", "clipped fraction (simulation only)"))
        return "<div class=pictures>" + "".join(as_svg(p) for p in pictures) + "</div>"
    except UsageError:
        return "<p>Pictures need matplotlib: <code>pip install 'hush-fl[plots]'</code>.</p>"


def _settings(configuration: dict[str, Any]) -> str:
    """The run as it was resolved: the method's own settings, and what was said of the run besides."""
    run = dict(configuration.get("run", {}))
    own = run.pop("set", {})
    return f"<p>Of the method:</p>{_table(own)}<p>Of the run:</p>{_table(run)}"


def _un_noised(result: Result) -> str:
    if not result.un_noised:
        return ""
    views = ", ".join(name.replace("_", " ") for name in result.un_noised)
    return (
        f"<p class=warn>Pictures marked 'simulation only', and these figures: {escape(views)}, are un-noised views of the "
        "clients' data: no guarantee covers them, so do not publish them where the clients are real.</p>"
    )


def _table(values: dict[str, Any]) -> str:
    return table((key.replace("_", " "), _told(value)) for key, value in values.items() if value not in (None, [], {}))


def _told(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {item:,.6g}" if isinstance(item, float) else f"{name} {item}" for name, item in value.items())
    return ", ".join(map(str, value)) if isinstance(value, list) else f"{value:,.6g}" if isinstance(value, float) else str(value)


def _percent(value: float | None) -> str:
    return "unknown" if value is None else f"{100 * value:.1f}%"
