"""A run's clients sign it when it is over, and whoever changes, drops or borrows a signature is found out."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hush import certify
from hush.certify import Check, verify_run
from hush.engines.rundir import RunDir
from hush.errors import DataError
from hush.federation import kept, letters, signatures, statement, vouching
from hush.federation.folders import ClientFolder
from hush.federation.letters import BadLetter
from hush.federation.signatures import FILE
from hush.federation.statement import Signed
from hush.privacy.ledger import Ledger
from hush.report.pages import write_certificate
from hush.secagg.identity import Identity
from hush.secagg.messages import Kind
from tests.cli.test_cli import hush as command
from tests.federation.conftest import MakeWorld
from tests.federation.test_server import dies_while_it_opens
from tests.federation.world import Clock, Sent, World
from tests.test_certify import SLOW, cached, changes

Values = dict[str, Any]


def trained(made: World) -> Path:
    """A whole run, as `hush server` keeps it; and its page."""
    kept.keep(RunDir(made.out), made.proposal)
    made.train(resume=True)
    write_certificate(RunDir(made.out))
    return made.out


@pytest.fixture(scope="module")
def signed(tmp_path_factory: pytest.TempPathFactory) -> World:
    """One run for all tests, which change copies of its folder. Nobody waits in it, so its clock may be the real one."""
    made = World(tmp_path_factory.mktemp("signed") / "world", Clock(), {"rounds": 2})
    trained(made)
    return made


@pytest.fixture
def run(signed: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in SLOW:
        monkeypatch.setattr(certify, name, cached(getattr(certify, name)))
    return shutil.copytree(signed.out, tmp_path / "run")


def of(path: Path, name: str = "signatures") -> Check:
    return next(check for check in verify_run(path).checks if check.name == name)


def wrong(path: Path) -> set[str]:
    return {check.name for check in verify_run(path).checks if check.passed is False}


def statements(path: Path) -> list[Values]:
    return json.loads((path / FILE).read_text())["statements"]


def write(path: Path, told: list[Values]) -> None:
    (path / FILE).write_text(json.dumps({"format": 1, "statements": told}))


def identity(world: World, number: int) -> Identity:
    return ClientFolder.of(world.folder(number)).identity


def signed_anew(own: Identity, one: Values, **change: Any) -> Values:
    """What the owner of a key signs, whether it is true or not."""
    said = one["statement"] | change
    return Signed(said, own.sign(statement._DOMAIN + statement._written(said)).hex()).to_dict()


def counting(own: Identity, one: Values, sums: int) -> Values:
    """The same of another number of sums, in its ledger as well."""
    return signed_anew(own, one, participations=sums, ledger=one["statement"]["ledger"] | {"charges": sums})


# -- what is signed ----------------------------------------------------------------------------------------------------------------


def test_every_client_signs_what_it_found_and_counted(signed: World) -> None:
    check = of(signed.out)
    assert check.passed
    assert signed.proposal.members.fingerprint in check.detail
    assert not wrong(signed.out)
    assert check.clients is not None
    assert list(check.clients) == list(signed.proposal.members.names)
    assert all("2 sums of at most 2" in words for words in check.clients.values())
    for number, one in enumerate(map(Signed.of, statements(signed.out))):
        assert one.is_by(signed.proposal.members.cards[number].key)
        assert one.statement["participations"] == signed.diary(number)[1] == 2
        with closing(Ledger(signed.folder(number) / "ledger.sqlite", look=True)) as ledger:
            assert one.statement["ledger"] == {"charges": 2, "head": ledger.head}
    assert FILE not in verify_run(signed.out).unchecked


def test_a_client_signs_once_and_says_the_same_to_whoever_asks_again(signed: World) -> None:
    (first,) = (one for one in statements(signed.out) if one["statement"]["client"] == "client-0")
    signed.restart(0)
    other = dict.fromkeys(first["statement"]["told"], "0" * 64)
    assert json.loads(signed.ask(0, {"kind": "over", "released": other}).pieces[0]) == first


@pytest.mark.parametrize(
    "told", [None, {}, {"model": "0" * 64}, {"model": "any text", **dict.fromkeys(("certificate", "result", "rounds"), "0" * 64)}]
)
def test_a_server_has_nothing_signed_but_hashes(told: Any, world: MakeWorld) -> None:
    made = world()
    made.propose(0)
    with pytest.raises(BadLetter, match="does not say what the run gives out"):
        made.ask(0, {"kind": "over", "released": told})
    assert made.propose(0).head["kind"] == "yes", "the run goes on"


def test_who_never_agreed_signs_nothing(world: MakeWorld) -> None:
    assert world().ask(0, {"kind": "over", "released": {}}).pieces == ()


def test_of_a_run_without_a_guarantee_no_charges_are_signed(world: MakeWorld) -> None:
    out = trained(world(rounds=1, noise_seed=1))
    check = of(out)
    assert check.passed
    assert "nothing is proved" in str(check.clients)
    assert all(one["statement"]["ledger"] is None and one["statement"]["epsilon"] is None for one in statements(out))


def counts(path: Path) -> list[int]:
    return [one["statement"]["participations"] for one in statements(path)]


def test_counts_that_differ_for_honest_reasons_agree(world: MakeWorld) -> None:
    """One who is away when a sum is opened has counted it; one who is away for the round has not."""
    made = world(clients=6, tolerate=0.34, rounds=3)

    def on_letter(sent: Sent) -> list[bytes]:
        away = sent.number == 5 and sent.asks(Kind.DELIVERY) and sent.letter.head["index"] > 0
        return [] if away or (sent.number == 0 and sent.asks(Kind.SURVIVORS)) else [sent.raw]

    made.post.on_letter = on_letter
    out = trained(made)
    assert max(counts(out)) == 3 > counts(out)[5]
    assert of(out).passed, of(out)
    assert not wrong(out)


def test_a_round_that_was_drawn_again_is_one_sum_more(world: MakeWorld) -> None:
    made = world(rounds=2)
    kept.keep(RunDir(made.out), made.proposal)
    dies_while_it_opens(made, resume=True)
    result = made.train(resume=True)
    assert (result.rounds_charged, result.rounds_counted, counts(made.out)) == (3, 2, [2] * 4)
    assert of(made.out).passed, of(made.out)
    assert not wrong(made.out)


# -- what was changed --------------------------------------------------------------------------------------------------------------


def test_every_leaf_that_is_changed_is_found(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vouching, "agree", cached(vouching.agree))
    tried = 0
    for leaf, text in changes(run / FILE):
        (run / FILE).write_text(text)
        assert "signatures" in wrong(run), leaf
        tried += 1
    assert tried > 4 * 15


STRANGER = Identity.generate()
FORGED: dict[str, tuple[Callable[[World, list[Values]], list[Values]], str]] = {
    "by another key of the roster": (lambda w, s: [signed_anew(identity(w, 1), s[0]), *s[1:]], "not signed with the key"),
    "under another's key": (
        lambda w, s: [signed_anew(identity(w, 1), s[0], key=s[1]["statement"]["key"]), *s[1:]],
        "under another name",
    ),
    "by a stranger": (
        lambda w, s: [signed_anew(STRANGER, s[0], client="stranger", key=STRANGER.public.hex()), *s],
        "its key is not in the roster",
    ),
    "as a letter": (
        lambda w, s: [{**s[0], "signature": identity(w, 0).sign(statement._written(s[0]["statement"])).hex()}, *s[1:]],
        "not signed with the key",
    ),
    "twice": (lambda w, s: [*s, signed_anew(identity(w, 0), s[0], participations=1)], "signed twice"),
    "another run": (lambda w, s: [signed_anew(identity(w, 0), s[0], proposal="0" * 64), *s[1:]], "another run"),
    "another plan": (lambda w, s: [signed_anew(identity(w, 0), s[0], plan="0" * 64), *s[1:]], "something else of plan"),
    "less epsilon": (lambda w, s: [signed_anew(identity(w, 0), s[0], epsilon=1.0), *s[1:]], "something else of epsilon"),
    "a larger limit": (lambda w, s: [signed_anew(identity(w, 0), s[0], at_most=9), *s[1:]], "how many sums it agreed to"),
    "more than it agreed to": (
        lambda w, s: [
            signed_anew(identity(w, 0), s[0], participations=3, ledger=s[0]["statement"]["ledger"] | {"charges": 3}),
            *s[1:],
        ],
        "in 3 sums, and had agreed to 2; it was in 3 sums, and 2 of one client are accounted for",
    ),
    "not what it charged": (lambda w, s: [signed_anew(identity(w, 0), s[0], participations=1), *s[1:]], "2 charges for 1 sums"),
    "no ledger": (lambda w, s: [signed_anew(identity(w, 0), s[0], ledger=None), *s[1:]], "does not go with"),
    "another model": (
        lambda w, s: [signed_anew(identity(w, 0), s[0], told=s[0]["statement"]["told"] | {"model": "0" * 64}), *s[1:]],
        "told of another model",
    ),
    "fewer than a sum needs": (
        lambda w, s: [counting(identity(w, n), one, 1) for n, one in enumerate(s)],
        "2 rounds of 4 clients or more were opened, and clients counted 4 at most",
    ),
}
"""What somebody signs, whose key or folder it may be, and what is said of it."""


@pytest.mark.parametrize(("forge", "why"), FORGED.values(), ids=FORGED)
def test_a_statement_that_is_forged_or_says_otherwise_is_found(
    forge: Callable[[World, list[Values]], list[Values]], why: str, run: Path, signed: World, capsys: pytest.CaptureFixture[str]
) -> None:
    write(run, forge(signed, statements(run)))
    assert why in of(run).detail
    code, out, _ = command(capsys, "certify", str(run))
    assert code == 2
    assert "WRONG signatures" in out


def test_statements_of_another_run_are_of_no_use(signed: World, run: Path, world: MakeWorld, tmp_path: Path) -> None:
    """Of the same clients, and of other ones with the same names."""
    ours, other = statements(run), trained(world(rounds=2))
    write(run, statements(other))
    assert "its key is not in the roster" in of(run).detail
    signed.proposal = replace(signed.proposal, name="ab" * 16)
    signed.out.rename(signed.place / "first")
    try:
        write(run, statements(trained(signed)))
    finally:
        shutil.rmtree(signed.out)
        (signed.place / "first").rename(signed.out)
        signed.proposal = replace(signed.proposal, name=kept.kept(RunDir(signed.out)).name)
    assert "another run" in of(run).detail
    write(run, ours)
    assert not wrong(run)


def test_a_run_that_was_written_anew_is_not_the_one_that_was_signed(run: Path) -> None:
    """Its ledger as well, on a machine that never saw it: here it is not even looked at."""
    (run / "ledger.sqlite").unlink()
    result = json.loads((run / "result.json").read_text())
    (run / "result.json").write_text(json.dumps(result | {"test_accuracy": 0.99}))
    assert wrong(run) == {"signatures"}
    assert "told of another result" in of(run).detail


# -- who is missing ----------------------------------------------------------------------------------------------------------------


def test_a_signature_is_written_in_one_way_alone(run: Path) -> None:
    for change in (str.upper, " {}".format, "{} ".format):
        write(run, [one | {"signature": change(one["signature"])} for one in statements(run)])
        assert "not signed with the key" in of(run).detail


@pytest.mark.filterwarnings("ignore:.*has no budget")
def test_what_all_runs_cost_together_was_signed_as_well(world: MakeWorld, tmp_path: Path) -> None:
    """Also where nobody has the ledger that it follows from."""
    run = trained(world(rounds=1, ledger=str(tmp_path / "study.sqlite"), population="study"))
    assert of(run).passed
    for name in ("certificate.json", "result.json"):
        told = json.loads((run / name).read_text())
        told["population"]["epsilon"] = 0.1
        (run / name).write_text(json.dumps(told))
    write_certificate(RunDir(run))
    (tmp_path / "study.sqlite").unlink()
    assert wrong(run) == {"signatures"}
    assert "it was told of another certificate and result" in of(run).detail


def test_a_signer_who_is_dropped_is_missed_by_ledger_and_page(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(run, statements(run)[:2])
    assert wrong(run) == {"ledger", "page"}
    assert "lacks what client-2, client-3 signed" in of(run, "ledger").detail
    (run / "ledger.sqlite").unlink()
    (run / "certificate.html").unlink()
    write_certificate(RunDir(run))
    check = of(run)
    assert not wrong(run), "nobody has to sign"
    assert "2 of 4 clients" in check.detail
    assert "not signed by 2" in check.detail
    code, out, _ = command(capsys, "certify", str(run))
    assert code == 1, "the ledger"
    assert out.count("has not signed") == 2
    assert "<td>Not signed by</td><td>client-2, client-3</td>" in (run / "certificate.html").read_text()


def test_a_file_that_is_removed_is_missed(run: Path) -> None:
    (run / FILE).unlink()
    assert wrong(run) == {"ledger", "page"}
    assert of(run).passed is None
    (run / "ledger.sqlite").unlink()
    write_certificate(RunDir(run))
    assert "none of the 4 clients" in (run / "certificate.html").read_text()


def test_both_forms_of_certify_say_who_vouches(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = command(capsys, "certify", str(run))
    assert code == 0
    assert "client-3: vouches for the plan, with epsilon" in out
    _, out, _ = command(capsys, "certify", str(run), "--json")
    (row,) = (row for row in json.loads(out)["checks"] if row["name"] == "signatures")
    assert list(row["clients"]) == [f"client-{number}" for number in range(4)]


def without(made: World, number: int) -> None:
    """This client hears nothing of the end."""
    made.post.on_letter = lambda sent: [] if sent.number == number and sent.kind == "over" else [sent.raw]


def test_one_who_was_away_at_the_end_signs_later(world: MakeWorld) -> None:
    made = world(rounds=1)
    without(made, 3)
    out, folder = trained(made), RunDir(made.out)
    assert of(out).passed
    assert of(out).clients["client-3"] == "has not signed"  # type: ignore[index]
    assert not made.members[3].over.is_set()
    made.kill(3)
    made.post.on_letter = lambda sent: [sent.raw]
    _, again = made.ready(kept.kept(folder))
    made.clock.on_wait = lambda: made.restart(3) if 3 not in made.members else None
    assert again.finish(folder, wait=True, after=lambda: write_certificate(folder)) == []
    assert made.members[3].over.is_set()
    assert not wrong(out)
    assert "4 of 4" in of(out).detail


def test_the_server_waits_no_longer_than_it_was_told_to(world: MakeWorld) -> None:
    made = world(rounds=1)
    without(made, 3)
    trained(made)
    made.kill(3)
    _, again = made.ready()
    began = made.clock.now
    assert again.finish(RunDir(made.out), wait=True) == ["client-3"]
    assert made.clock.now - began < 2 * made.patience.absent


def test_what_is_no_statement_of_this_client_on_this_run_is_not_kept(world: MakeWorld) -> None:
    made = world(rounds=1)
    mine: list[bytes] = []

    def on_answer(sent: Sent, answer: bytes) -> list[bytes]:
        if sent.kind != "over" or sent.number == 3:
            return [answer]
        told = letters.read(answer, made.members[sent.number].key)
        mine.extend(told.pieces)
        own = identity(made, sent.number)
        other = {
            0: b"{" * 100_000,
            1: mine[0],
            2: json.dumps(signed_anew(own, json.loads(told.pieces[0]), proposal="0" * 64)).encode(),
        }[sent.number]
        return [letters.write(own, told.head, [other])]

    made.post.on_answer = on_answer
    out = trained(made)
    assert [one["statement"]["client"] for one in statements(out)] == ["client-3"]
    for why in ("longer than any statement", "another client", "another run"):
        assert any(why in line for line in made.heard), why
    assert of(out).passed


def test_a_server_that_dies_before_its_ledger_knows_loses_no_signature(world: MakeWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    made, right = world(rounds=1), Ledger.sign

    def full(*given: Any) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(Ledger, "sign", full)
    with pytest.raises(OSError, match="no space left"):
        trained(made)
    assert of(made.out).passed
    assert not wrong(made.out)
    monkeypatch.setattr(Ledger, "sign", right)
    _, again = made.ready()
    (made.out / FILE).unlink()  # whatever became of it: clients kept what they signed
    assert again.finish(RunDir(made.out)) == []
    write(made.out, statements(made.out)[:2])
    assert wrong(made.out) == {"ledger"}


def test_a_file_that_was_changed_is_not_added_to(run: Path, signed: World) -> None:
    write(run, [signed_anew(identity(signed, 1), one) for one in statements(run)])
    with pytest.raises(DataError, match="delete it, and its clients sign again"):
        signatures.Book(RunDir(run), signed.proposal)
