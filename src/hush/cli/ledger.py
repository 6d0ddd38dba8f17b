"""`hush ledger create|show|verify`: what was spent on whom, and whether the record is whole."""

from __future__ import annotations

from contextlib import closing, suppress
from pathlib import Path
from typing import Annotated, Any

import typer

from hush.checks import check_number
from hush.cli import options
from hush.cli.commands import Commands
from hush.cli.console import Json, print_json, print_table, say
from hush.errors import NoGuarantee, UsageError
from hush.names import pick
from hush.privacy.guarantee import Relation, Unit, at_least, check_delta, default_delta
from hush.privacy.ledger import Ledger, LedgerError
from hush.privacy.population import Population, filter_order

ledger = Commands(help="Privacy spent, across runs: create a budget, show what was spent, verify the record.")

File = Annotated[Path, typer.Argument(help="The ledger's file.")]


@ledger.command("create")
def create(
    file: File,
    population: Annotated[str, typer.Option("--population", help="Whose privacy is spent.")],
    epsilon: Annotated[float, typer.Option("--epsilon", help="The most that all runs together may spend.")],
    clients: Annotated[int | None, typer.Option("--clients", help="How many they are.")] = None,
    records: Annotated[
        int | None, typer.Option("--records", help="With --unit record or person: how many the smallest client holds.")
    ] = None,
    unit: Annotated[str, typer.Option("--unit", help="client (default), record or person.")] = "client",
    delta: options.Delta = None,
    relation: Annotated[
        str | None, typer.Option("--relation", help="add-remove (default), zero-out or replace-one (default for records).")
    ] = None,
    adaptive: Annotated[
        bool, typer.Option("--adaptive", help="Enforce it also where later runs are chosen by looking at earlier results.")
    ] = False,
    change: Annotated[bool, typer.Option("--change", help="Change a budget that is there already.")] = False,
    rollback_protection: options.RollbackProtection = None,
    as_json: Json = False,
) -> None:
    """Set the budget of a population; the file is made if it is not there."""
    who = pick({str(u): u for u in Unit}, unit, "unit")
    usual = Relation.ADD_REMOVE if who is Unit.CLIENT else Relation.REPLACE_ONE
    kind = pick({str(r): r for r in Relation}, relation.replace("_", "-"), "relation") if relation is not None else usual
    size = clients if who is Unit.CLIENT else records
    if size is None:
        raise UsageError("Give --clients, or with --unit record --records: how many the smallest client holds.")
    check_number("--clients" if who is Unit.CLIENT else "--records", size, least=1, most=10**15)
    if delta is None and who.within_client:
        raise UsageError(f"How many {who}s there are in all is not known here: give --delta, below one in so many.")
    chosen = delta if delta is not None else default_delta(size)
    check_delta(chosen)
    with closing(_opened(file, rollback_protection)) as book:
        pool = book.set_budget(population, size, epsilon, chosen, kind, adaptive, change, who)
    if as_json:
        print_json(_row(pool))
        return
    how = ", however runs are chosen" if adaptive else ""
    spent = pool.spent(chosen)
    whose = f"{size:,} clients" if who is Unit.CLIENT else f"each {who} of clients that hold {size:,} or more"
    print(f"{file}: '{population}', {whose}, may spend epsilon {epsilon:g} at delta={at_least(chosen, 2)}{how}.")
    if spent > 0:
        print(f"It has spent {at_least(spent)}" + (": nothing is left." if spent >= epsilon else "."))


@ledger.command("show")
def show(
    file: File,
    delta: Annotated[float | None, typer.Option("--delta", help="Tell epsilon at this delta [default: the budget's].")] = None,
    rollback_protection: options.RollbackProtection = None,
    as_json: Json = False,
) -> None:
    """What each population has spent, by which runs."""
    if delta is not None:
        check_delta(delta)
    with closing(_existing(file, rollback_protection)) as book:
        rows = [_row(pool, delta) for pool in book.populations.values()]
        told = {"ledger": str(file), "entries": book.entries, "head": book.head, "populations": rows}
    if as_json:
        print_json(told)
        return
    print_table(("population", "who", "runs", "rounds charged", "spent", "budget", "delta"), map(_words, rows))
    if members := [(row["name"], *client_in_words(one, row["delta"])) for row in rows for one in row["members"]]:
        print_table(("population", *CLIENT), members)
        print("A population's figure counts every run for everybody; a client's, those whose rosters had its name or its key.")
    print(f"{told['entries']} entries; the last one's hash is {told['head']}")


@ledger.command("verify")
def verify(
    file: File,
    head: Annotated[str | None, typer.Option("--head", help="A hash that was published: it must be in the chain.")] = None,
    rollback_protection: options.RollbackProtection = None,
    as_json: Json = False,
) -> None:
    """Check every link of the chain, and that nothing this machine has seen is missing. Exit code 2 if not."""
    if head is not None and (len(head) != 64 or not set(head) <= set("0123456789abcdef")):
        raise UsageError("--head takes the whole hash: 64 digits from 0 to f.")
    with closing(_existing(file, rollback_protection)) as book:
        if head is not None and not book.contains(head):
            raise LedgerError(f"{file} does not contain the entry {head}: it was rewritten, or it is another ledger.")
        charges = sum(run.charges for pool in book.populations.values() for run in pool.runs.values())
        told = {"ledger": str(file), "verified": True, "entries": book.entries, "charges": charges, "head": book.head}
    if as_json:
        print_json(told | {"rollback_checked": book.no_memory is None})
    else:
        print(f"{file} is whole: {told['entries']} entries, {charges} rounds charged; the last one's hash is {told['head']}")


def rows_of(file: Path, delta: float | None = None) -> list[dict[str, Any]]:
    """What each population of a ledger has spent."""
    with closing(_existing(file, None)) as book:
        return [_row(pool, delta) for pool in book.populations.values()]


def _existing(file: Path, rollback_protection: bool | None) -> Ledger:
    if not file.exists() or file.stat().st_size == 0:
        raise UsageError(f"There is no ledger {file}.")
    return _opened(file, rollback_protection, look=True)


def _opened(file: Path, rollback_protection: bool | None, look: bool = False) -> Ledger:
    book = Ledger(file, rollback_protection=rollback_protection is not False, look=look)
    if book.no_memory is not None:
        say(f"note: {book.no_memory}: whether {file} is an older copy of a ledger that went on was not checked")
    return book


CLIENT = ("client", "runs", "rounds charged", "spent at most", "delta")
"""What is said of one of a federation's clients."""


def client_in_words(one: dict[str, Any], delta: float) -> tuple[str, ...]:
    """A client's line of that table."""
    again = "" if len(one["keys"]) == 1 else f" (under {len(one['keys'])} keys)"
    spent = "no proof" if one["epsilon"] is None else at_least(one["epsilon"])
    return one["name"] + again, str(len(one["runs"])), str(one["charged"]), spent, at_least(delta, 2)


def _words(row: dict[str, Any]) -> tuple[str, ...]:
    """A population's line of the table."""
    who = f"{row['clients']:,} clients" if row["unit"] == "client" else f"{row['unit']}s, {row['records']:,} or more to a client"
    figure = row["epsilon_adaptive"] if row["adaptive"] else row["epsilon"]
    spent = "no proof" if figure is None else at_least(figure)
    budget = "none" if row["budget"] is None else f"{row['budget']:g}" + (" (adaptive)" if row["adaptive"] else "")
    charged = sum(run["charged"] for run in row["runs"])
    return row["name"], who, str(len(row["runs"])), str(charged), spent, budget, at_least(row["delta"], 2)


def _row(pool: Population, told: float | None = None) -> dict[str, Any]:
    delta = told if told is not None else pool.delta if pool.delta is not None else default_delta(pool.size)
    try:
        spent, reason = pool.spent(delta), None
    except NoGuarantee as refusal:
        spent, reason = None, str(refusal)
    filtered = order = None
    if pool.epsilon is not None and pool.delta is not None:
        order = filter_order(pool.epsilon, pool.delta)
        with suppress(NoGuarantee):
            filtered = pool.filtered()
    return {
        "name": pool.name,
        "clients": pool.size if pool.unit is Unit.CLIENT else None,
        "records": pool.size if pool.unit.within_client else None,
        "unit": str(pool.unit),
        "relation": str(pool.relation),
        "epsilon": spent,
        "epsilon_adaptive": filtered,
        "no_guarantee": reason,
        "delta": delta,
        "budget": pool.epsilon,
        "adaptive": pool.adaptive,
        "order": order,
        "runs": [{"run": name, "rounds": len(s.rounds), "charged": s.charges} for name, s in pool.runs.items()],
        "members": [one._asdict() for one in pool.by_client(delta)],
    }
