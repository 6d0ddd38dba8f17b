"""The certificate as a page: what a privacy officer reads, in the order in which the questions come."""

from __future__ import annotations

import math
from html import escape
from typing import Any

from hush.federation.vouching import Signers
from hush.privacy.attack import Risk, doubts
from hush.privacy.guarantee import Guarantee, at_least
from hush.privacy.written import plan_from_dict
from hush.report.page import STYLE, bullets, table, whole_page

_MORE = """
.big{font-size:2.2rem;font-weight:600;margin:0}.yes,.weak,.no{border-left:4px solid #1a7f4b;padding-left:1rem}
.weak{border-color:#b26a00}.no{border-color:#b3261e}.met{color:#1a7f4b}.violated{color:#b3261e}
th{text-align:left;font-weight:600;padding-right:1.2rem}
code{font-size:.85rem;overflow-wrap:anywhere}
"""

_SAMPLING = {
    "poisson": "on average: each by its own coin, drawn by the server",
    "fixed": "exactly, drawn by the server",
    "bounded": "on average; no client more than {times} times in all",
    "secret": "on average: everybody sends noise, and each client's own secret coin decides on its data",
    "rotation": "in turns, which everybody knows; no client more than {times} times in all",
}


_SAID = (
    "<p><code>hush certify</code> derives this page again from the settings of the run and from its ledger. It cannot derive the "
    "names of data and model, what is under 'Mind' and 'Not covered', how many rounds broke off, the versions, how many clients or "
    "records the data hold by themselves, how many parameters the model has, nor, of a run that was started from Python, its "
    "settings. These are the words of whoever ran it. The ledger holds their hash: they are what was said when the run ended.</p>"
)


def certificate_page(certificate: dict[str, Any], signers: Signers | None = None) -> str:
    """One self-contained page; `signers` where clients are real."""
    name = escape(f"{certificate['method']} on {certificate['data']}")
    body = _proved(certificate, signers) if certificate["guarantee"] else _nothing(certificate)
    lead = f"<h1>Privacy certificate</h1><p>{name}, run <code>{certificate['run_id']}</code></p>"
    return whole_page(f"Privacy certificate: {name}", STYLE + _MORE, lead + body)


def _nothing(c: dict[str, Any]) -> str:
    why = c.get("no_guarantee") or "This method adds no noise to what it releases."
    if c.get("rounds_aborted") and c["rounds_aborted"] == c["rounds"]:
        return "<div class=no><p class=big>Nothing was released</p><p>Every round broke off before anything was opened.</p></div>"
    lead = (
        f"<div class=no><p class=big>No guarantee</p><p>{escape(why)} Nothing is proved for anybody, however many clients "
        "took part.</p></div>"
    )
    return lead + ("<h2>What the paper claims</h2>" + _claim(c) if c.get("claim") else "")


def _proved(c: dict[str, Any], signers: Signers | None) -> str:
    proved, words = c["guarantee"], c["statement"]
    guess = Risk(c["attack"]["true_positives_at_1_percent_false_positives"], c["attack"]["membership_advantage"])
    weak = doubts(plan_from_dict(c["plan"]), Guarantee.from_dict(proved), guess)
    little = f"<p>It promises little:</p>{bullets(weak)}" if weak else ""
    lead = (
        f"<div class={'weak' if weak else 'yes'}><p class=big>epsilon {at_least(proved['epsilon'])} at delta "
        f"{at_least(proved['delta'], 2)}</p><p>proved for {escape(words['protected'])}.</p>{little}</div>"
    )
    mind = [line for line in (*proved["warnings"], *c.get("caveats", ())) if line not in weak]
    rows = [
        ("What stays secret", words["hidden"]),
        ("From whom", _against(c, words["against"])),
        *_replaced(c),
        (
            "Clients",
            f"{c['clients']:,}"
            + (f", of the roster {roster}" if (roster := c["configuration"].get("run", {}).get("federation")) else ""),
        ),
        *_records(c),
        ("Rounds released", _rounds(c)),
        ("Who takes part", f"{c['cohort']:g} of them a round ({_taking_part(c)})"),
        ("Noise", _noise(c)),
        *_summed(c),
        *_signed(signers),
    ]
    population = c.get("population")
    sections = {
        "What that means for an attacker": _attack(c),
        "It holds if": bullets(proved["assumptions"]),
        "Not covered": _not_covered(c.get("un_noised")),
        "Mind": bullets(mind) if mind else "",
        "Against the server": _server(c),
        "Epsilon at other deltas": _deltas(c),
        "What the paper claims": _claim(c),
        "All runs on these clients together": _population(population) if population else "",
        "How it was computed": _computed(c),
        "Said by the author": _SAID,
    }
    return lead + table(rows) + "".join(f"<h2>{title}</h2>{told}" for title, told in sections.items() if told)


def _replaced(c: dict[str, Any]) -> list[tuple[str, str]]:
    """The other relation of records, where there is a figure for both."""
    if c.get("epsilon_replaced") is None:
        return []
    return [
        (
            f"Which of two {c['guarantee']['unit']}s it was",
            f"stays secret, too: epsilon {at_least(c['epsilon_replaced'])} at the same delta",
        )
    ]


def _not_covered(un_noised: list[str] | None) -> str:
    if not un_noised:
        return ""
    figures = ", ".join(name.replace("_", " ") for name in un_noised)
    return (
        f"<p>These figures of <code>result.json</code> and <code>rounds.jsonl</code> are computed from "
        f"clients' own examples without noise, for simulation alone: {escape(figures)}. Do not publish them where the "
        "clients are real.</p>"
    )


def _taking_part(c: dict[str, Any]) -> str:
    words, phase = str(_SAMPLING.get(c["sampling"], c["sampling"])), c["plan"]["phases"][0]
    times = phase["sampling"].get("times") or phase["participations"]
    if times is None and phase["period"] is not None:
        times = -(-c["configuration"]["rounds"] // phase["period"])
    return words.format(times=times) if times is not None else words


def _records(c: dict[str, Any]) -> list[tuple[str, str]]:
    """What a record's own statement rests on."""
    unit, most = c["guarantee"]["unit"], c["configuration"].get("rows_of_a_person")
    if unit == "client":
        return []
    phase, sampling = c["plan"]["phases"][0], c["plan"]["phases"][0]["sampling"]
    how = "each by its own coin" if sampling["kind"] == "PoissonSampling" else "without replacement"
    size = sampling["rate"] * sampling["population"] if sampling["kind"] == "PoissonSampling" else sampling["size"]
    return [
        *([("Rows of a person", f"{most:,} at most count, one gradient together, clipped once")] if most is not None else []),
        *_held(c, unit, f"{size:g} of them, {how}"),
        ("Steps in a round", f"{phase['steps']:,}, each under noise of its own"),
        (
            "Rounds of a client",
            f"{phase['participations']} of {phase['rounds']} at most; which clients are drawn amplifies nothing",
        ),
    ]


def _held(c: dict[str, Any], unit: str, read: str) -> list[tuple[str, str]]:
    """How many records clients hold, where anybody knows."""
    secret, sampling = "drawn anew and in secret by the client itself", c["plan"]["phases"][0]["sampling"]
    if "proposal" in c["configuration"]:  # a real federation's: what the plan says is the batch over the rate
        return [
            (f"{unit.capitalize()}s", "each client knows its own number alone, and the statement needs none"),
            ("A step reads", f"each with the chance {sampling['rate']:g}, by its own coin, {secret}"),
        ]
    fewest = f"{c['plan']['population']:,} at the client that holds the fewest; those of larger ones are protected better"
    return [(f"{unit.capitalize()}s", fewest), ("A step reads", f"{read}, {secret}")]


def _against(c: dict[str, Any], words: str) -> str:
    if c.get("secure_sum") is None:
        return words
    kind = "a curious server that follows the protocol" if c["secure_sum"]["threat"] == "curious" else "a malicious server"
    return words.replace("the server", kind, 1)


def _summed(c: dict[str, Any]) -> list[tuple[str, str]]:
    """What the secure sum withstands, where there was one."""
    s = c.get("secure_sum")
    if s is None:
        return []
    server = "follows the protocol, however curious" if s["threat"] == "curious" else "may tell clients different things"
    losses = f"the loss of {s['cohort'] - s['fewest_survivors']:,} of {s['cohort']:,}, at any moment"
    if s["fewest_survivors"] == s["cohort"]:
        losses = f"no loss: all {s['cohort']:,} of a cohort must stay"
    if s["threshold"] is not None:
        losses += f"; each has {s['neighbours']} neighbours, {s['threshold']} of whom can stand in for it"
    return [
        ("Summed by", f"{s['protocol']}: the server {server} and sees the sum alone, in {s['bits']} bits an entry"),
        ("It shows more", _shows_more(s, max(1, c["rounds"], c["rounds_charged"]))),
        ("It withstands", f"{s['corrupted']:.0%} corrupted clients, and {losses}"),
        ("Who draws the noise", f"every client a share; those of {s['honest_min']:,} honest ones carry it in full"),
    ]


def _signed(signers: Signers | None) -> list[tuple[str, str]]:
    """Which clients stand behind it; nobody is to read a signature where there is none."""
    if signers is None:
        return []
    count = len(signers.signed) + len(signers.missing)
    if not signers.signed:
        return [("Signed by", f"none of the {count:,} clients")]
    told = f"{len(signers.signed):,} of {count:,} clients, each for its own plan, its own count and what it was told: "
    rows = [("Signed by", told + _some(signers.signed))]
    return [*rows, ("Not signed by", _some(signers.missing))] if signers.missing else rows


def _some(names: tuple[str, ...]) -> str:
    return ", ".join(names[:20]) + (f" and {len(names) - 20:,} more" if len(names) > 20 else "")


def _shows_more(s: dict[str, Any], rounds: int) -> str:
    """A bound on the chance that the neighbours of some client were drawn so badly that more than the sum shows."""
    chance = s["leak_bound"]
    if not chance:
        return f"in no cohort of {s['cohort']:,}, however its graph is drawn"
    once, often = (f"below 2^-{math.floor(-math.log2(times * chance))}" for times in (1, rounds))
    if s["threat"] == "malicious":
        return f"with a chance {once} for every circle of {s['cohort']:,} clients that the server tries"
    return f"with a chance {once} in a round of {s['cohort']:,} clients, {often} in {rounds:,} rounds"


def _rounds(c: dict[str, Any]) -> str:
    if c.get("rounds_aborted"):
        broke = f"{c['rounds']}, of which {c['rounds_aborted']} broke off before anything was opened"
        return f"{broke}: {c['rounds_charged']} are accounted for"
    if c["rounds_charged"] == c["rounds"]:
        return str(c["rounds"])
    return f"{c['rounds']}, of which some were drawn again after an interruption: {c['rounds_charged']} are accounted for"


def _noise(c: dict[str, Any]) -> str:
    secure = c["noise"] == "secure"
    kind = "exact integers from a cryptographic stream" if secure else "floating-point draws, fit for research alone"
    return f"{c['noise_multiplier']:.4g} times the most that one {c['guarantee']['unit']} can add; {kind}"


def _attack(c: dict[str, Any]) -> str:
    attack = c["attack"]
    caught, ahead = attack["true_positives_at_1_percent_false_positives"], attack["membership_advantage"]
    return (
        f"<p>Somebody who knows everything about all other {c['guarantee']['unit']}s guesses {_guessed(c)}. Accusing 1 in 100 "
        f"wrongly, he is right about at most <b>{100 * caught:.1f} in 100</b> of those of whom it is true (pure guessing: 1 in "
        f"100). His best advantage over guessing is at most <b>{at_least(ahead)}</b> (true minus false positives).</p>"
    )


def _guessed(c: dict[str, Any]) -> str:
    if c["guarantee"]["relation"] == "replace-one":
        return f"which of two {c['guarantee']['unit']}s it was"
    return (
        "whether one client's data were used"
        if c["guarantee"]["unit"] == "client"
        else f"whether a {c['guarantee']['unit']} was used"
    )


def _server(c: dict[str, Any]) -> str:
    server = c["server_guarantee"]
    if server is not None and server["view"] == c["guarantee"]["view"]:
        return "<p>The statement above is one against the server.</p>"
    if server is None:
        return f"<p>No guarantee. {escape(c['no_server_guarantee'] or '')}</p>"
    figure = f"epsilon {at_least(server['epsilon'])} at delta {at_least(server['delta'], 2)}"
    return f"<p>{figure} ({escape(server['relation'])}), if</p>" + bullets(server["assumptions"])


def _deltas(c: dict[str, Any]) -> str:
    rows = ((at_least(row["delta"], 2), at_least(row["epsilon"])) for row in c["epsilon_at"])
    return table(rows, "<tr><th>delta</th><th>epsilon</th></tr>")


def _claim(c: dict[str, Any]) -> str:
    claim = c["claim"]
    if claim is None:
        return "<p>Nothing for this way of taking part.</p>"
    figure = "no figure" if claim["epsilon"] is None else f"epsilon {claim['epsilon']:.2f}"
    items = "".join(
        f"<li><span class={'met' if k['met'] else 'violated'}>{'met' if k['met'] else 'violated'}</span>: "
        f"{escape(k['statement'])} ({escape(k['detail'])})</li>"
        for k in claim["conditions"]
    )
    return (
        f"<p>{escape(claim['source'])}: {figure}. It is not what is proved here. {escape(claim['why'])} "
        f"Its own conditions:</p><ul>{items}</ul>"
    )


def _population(p: dict[str, Any]) -> str:
    budget = "no budget" if p["budget"] is None else f"a budget of {p['budget']:g}"
    adaptive = bool(p.get("adaptive"))
    spent = f"epsilon {at_least(p['epsilon_adaptive'] if adaptive else p['epsilon'])} at delta {at_least(p['delta'], 2)}"
    proviso = "however the runs were chosen" if adaptive else "if later runs were not chosen from the results of earlier ones"
    runs = "one run" if p["runs"] == 1 else f"{p['runs']} runs"
    return (
        f"<p>'{escape(p['name'])}': {runs} spent {spent}, of {budget}, {proviso}. "
        f"Ledger entry {p['ledger_entries']}, <code>{p['ledger_head']}</code>.</p>"
    )


def _computed(c: dict[str, Any]) -> str:
    computed = c["computed"]
    versions = ", ".join(f"{name} {version}" for name, version in computed["versions"].items())
    rows = [
        ("Method", f"{computed['method']}, privacy loss in steps of {computed['step']:g}, rounded up"),
        ("Relation and view", f"{c['guarantee']['relation']}, {c['guarantee']['view']}"),
        ("Versions", versions),
        ("Configuration, SHA-256", c["configuration_sha256"]),
        ("Model, SHA-256", c["model_sha256"] or "not kept"),
        ("To verify", "hush certify followed by the folder of the run"),
    ]
    return table(rows)
