"""A client's end of a federation: what it answers to a letter. Bytes in, bytes out, and no trust in who carries them.

It answers what the pinned server signed, about a run that it agreed to, and nothing else. Data, keys and noise never leave; a
vector leaves masked by `hush.secagg`, with this client's share of the noise in it.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from hush.engines.run import Placed, pick_device
from hush.engines.setup import place_data
from hush.errors import HushError, UsageError
from hush.federation import letters
from hush.federation.contribution import Contributor, Steps
from hush.federation.data import FEW, Held, stand_in_task, task_of
from hush.federation.diary import Before, Diary
from hush.federation.folders import ClientFolder
from hush.federation.letters import BadLetter, Letter
from hush.federation.models import HeldModel, Lacking
from hush.federation.proposal import Agreement, Proposal, agree
from hush.federation.statement import can_be_told
from hush.local.record_gradients import MUCH_MORE, RecordGradients
from hush.privacy.guarantee import Unit
from hush.secagg import BadMessage, Client, Refused
from hush.secret import Secret
from hush.tasks.task import Task

KEYS_AHEAD = 64
"""Rounds of the secure sum that a client sends keys for at once."""

Decide = Callable[[Agreement, int, Before], "bool | str | None"]
"""Whether to take part, as this number, after all that was agreed to before: True, or why not; None where nobody has said yet."""


@dataclass(frozen=True)
class Joined:
    """A run that this client takes part in: its half of the secure sum, and what it adds."""

    client: Client
    adds: Contributor
    model: HeldModel
    tried: threading.Event = field(default_factory=threading.Event)
    """Set when what protects records was seen to hold here."""

    @property
    def told(self) -> Agreement:
        return self.adds.told


class Member:
    """One client of a federation. `decide` is its consent, `source` its data."""

    def __init__(
        self, folder: ClientFolder, source: str, decide: Decide, own_code: str | None = None, say: Callable[[str], None] = print
    ) -> None:
        self._folder, self._source, self._decide, self._own_code = folder, source, decide, own_code
        self._say: Callable[[str], None] = lambda line: say(letters.printable(line))
        self._identity, self._server = folder.identity, folder.invitation.server
        self.name = folder.card.name
        self._diary = Diary(folder.path, folder.invitation.name)
        self._joined: Joined | None = None
        self._lock = threading.Lock()
        self.over = threading.Event()
        """Set when the run is over, and the server has what this client signed."""

    @property
    def key(self) -> bytes:
        return self._identity.public

    @property
    def largest(self) -> int:
        """Bytes of the largest letter that makes sense: the model, and what belongs to a round."""
        joined = self._joined
        return 2**24 if joined is None else 2**24 + 32 * joined.adds.data.learner.dim

    def answer(self, letter: bytes) -> bytes:
        """The answer to a letter; `BadLetter` where it deserves none."""
        told = letters.read(letter, self._server)
        kind = told.text("kind")
        if kind == "who":  # whom this machine answers for; it binds nobody to anything
            return self._write(told, {"kind": "here", "name": self.name})
        if told.text("key") != self.key.hex():
            raise BadLetter("A letter is for another client.")
        with self._lock:  # one at a time: a second one waits until a person or the training is done
            try:
                if kind == "propose":
                    return self._consider(told)
                if kind == "round":
                    return self._take_part(told)
                if kind == "over":
                    return self._end(told)
            except BadLetter:
                raise
            except (Refused, BadMessage, UsageError) as refusal:
                self._say(f"refused: {refusal}")
                return self._write(told, {"kind": "refused", "why": str(refusal)})
            except Exception as error:  # this machine's: its owner must mend it, and what it is about is nobody else's business
                self._say(f"CANNOT TAKE PART: {error or type(error).__name__}")
                return self._write(told, {"kind": "refused", "why": "it cannot take part, and its owner is told why"})
        raise BadLetter(f"A letter asks for {kind!r}, which a client does not do.")

    # -- consent -------------------------------------------------------------------------------------------------------------------

    def _consider(self, letter: Letter) -> bytes:
        """Yes, with keys for the rounds to come; no, and why; or later."""
        if not letter.pieces:
            raise BadLetter("A proposal is missing.")
        with _told_to_both():
            proposal = Proposal.read(_text(letter.pieces[0]))
        if self._diary.ended(proposal.digest):
            raise UsageError("This run is over: propose another one.")
        if self._joined is None or self._joined.told.proposal.digest != proposal.digest:
            with _told_to_both():
                told = self._understood(proposal)
            number = proposal.members.roster.numbers[self.key]
            said = self._decide(told, number, self._diary.before(told))
            if said is None:
                return self._write(letter, {"kind": "later"})
            if said is not True:
                return self._write(letter, {"kind": "no", "why": str(said)})
            try:
                held = Held.read(self._source, proposal.examples, proposal.run.unit == Unit.RECORD)
            except HushError as error:  # where it lies is nobody's business
                self._say(f"the data cannot be read: {error}")
                return self._write(letter, {"kind": "no", "why": "its table cannot be read"})
            if lacking := held.missing_columns(proposal.examples):
                why = f"its table has no column {', '.join(lacking)}"
                self._say(f"does not take part: {why}")
                return self._write(letter, {"kind": "no", "why": why})
            joined = self._join(self._placed(told, number, held))
            if not self._diary.knows(proposal.digest):
                self._diary.agreed(told)
            self._joined = joined
        return self._yes(letter, self._joined)

    def _understood(self, proposal: Proposal) -> Agreement:
        members = proposal.members
        if members.server != self._server:
            raise UsageError("The proposal names another server than the one that invited this client.")
        if self.key not in members.roster.numbers:
            raise UsageError("This client is not in the roster of the proposal: it has to be admitted first.")
        return agree(proposal, self._own_code)

    def _join(self, adds: Contributor) -> Joined:
        told = adds.told
        next_round, opened = self._diary.standing(told)
        client = Client(self._identity, told.proposal.members.roster, told.terms, next_round, opened)
        return Joined(client, adds, HeldModel(adds.data.learner.dim, len(told.method.pipeline.parts)))

    def _placed(self, told: Agreement, number: int, held: Held) -> Contributor:
        """Model and examples. A server must learn neither from a yes or no nor from a clock what the rows say, so a client whose
        rows do not fit the proposal trains on as many of nobody and sends its noise alone; it says so here, and to nobody else."""
        run, place = told.run, pick_device("auto")
        own = None if run.noise_seed is None else Secret.of_seed(run.seed, run.noise_seed)
        model = told.proposal.model()  # once, whatever the rows are: building it takes time

        def placed(task: Task) -> Placed:
            return place_data(task, place, getattr(torch, run.dtype), apart=True)

        with _told_to_both():  # before any row: a proposal that fails on nobody's examples alone would tell who needs them
            few = placed(stand_in_task(told.proposal, model, FEW))
        try:
            usable, data = True, placed(task_of(told.proposal, model, held))
        except Exception as error:  # whatever it is, it may be about the data
            self._say(f"THE DATA CANNOT BE USED, and only noise is sent: {error}")
            usable, data = False, few
            with suppress(Exception):  # what cannot be for so many: a yes it is all the same
                data = placed(stand_in_task(told.proposal, model, held.records(told.proposal.examples)))
        self._mind_the_room(told, held)
        return Contributor(told, number, data, usable, own)

    def _mind_the_room(self, told: Agreement, held: Held) -> None:
        """A sum of more records than it was made for may wrap around, which nobody sees in it. Its owner may tell the server's."""
        local = told.method.local
        if not isinstance(local, RecordGradients):
            return
        drawn = round(local.rate * held.records(told.proposal.examples))
        if drawn > MUCH_MORE * local.batch_size:
            self._say(
                f"MIND: a step reads about {drawn:,} of the records here, and the sum has room for {local.batch_size:,}. "
                "It may wrap around, and the model learn the less: the server's --set batch_size should be about rate times the "
                "records of a client"
            )

    def _yes(self, letter: Letter, joined: Joined) -> bytes:
        keys = self._keys(joined, letter.number("round"))
        standing = {"kind": "yes", "next": joined.client.next_round, "opened": joined.client.opened}
        return self._write(letter, standing, [keys])

    def _keys(self, joined: Joined, first: int) -> bytes:
        """Keys for the rounds from `first` on, those included that were sent before and not used."""
        first = max(first, joined.client.next_round)
        if first >= 2**62:
            raise BadLetter("A letter asks for keys of a round that never comes.")
        drawn = joined.client.prepared_rounds
        fresh = [round for round in range(first, first + KEYS_AHEAD) if round not in drawn]
        if fresh:
            joined.client.prepare(fresh)
        return joined.client.prepared(sorted(round for round in joined.client.prepared_rounds if round >= first))

    # -- a round -------------------------------------------------------------------------------------------------------------------

    def _take_part(self, letter: Letter) -> bytes:
        joined = self._joined
        if joined is None or joined.told.proposal.digest.hex() != letter.text("run"):
            raise Refused("This client has not agreed to this run, or was started again since: propose it anew.")
        try:
            values, taken = joined.model.receive(letter.head, letter.pieces)
        except Lacking:  # nothing else of the letter was looked at: the server sends it once more, with the whole model
            return self._write(letter, {"kind": "lacking"})
        answers, why = [], []
        before = joined.client.opened
        for message in letter.pieces[taken:]:
            try:
                answers.append(joined.client.answer(message, lambda: self._trained(joined, letter, values)))
                why.append("")
            except Refused as refusal:
                answers.append(refusal.complaint or b"")
                why.append(str(refusal))
            except BadMessage as error:
                answers.append(b"")
                why.append(str(error))
        digest = joined.told.proposal.digest
        try:
            if joined.client.opened > before:  # on disk, and paid for, before the server can open anything
                self._diary.charge(joined.told, joined.client.opened)
                self._say(f"takes part in sum {joined.client.opened} of at most {joined.told.participations}")
            self._diary.note(digest, joined.client.next_round, joined.client.opened)
        except Exception as error:  # what cannot be counted is not said: this client leaves, with all that its rounds are hidden by
            self._joined = None
            self._say(f"what it takes part in cannot be written down, so it leaves: {error}")
            raise Refused("This client left the round.") from None
        for line in filter(None, why):
            self._say(f"refused: {line}")
        head: dict[str, Any] = {"kind": "answers", "why": why}
        wanted = letter.head.get("keys_from")
        if isinstance(wanted, int):
            answers.append(self._keys(joined, wanted))
            head["keys"] = True
        return self._write(letter, head, answers)

    def _trained(self, joined: Joined, letter: Letter, values: list[Any]) -> np.ndarray:
        """This client's vector. What goes wrong in training may be about its data: it is said here, and the server gets noise,
        after as many steps as ever."""
        index, steps = letter.number("index"), Steps()
        if not joined.tried.is_set():
            joined.adds.try_records(index, values)
            joined.tried.set()
        try:
            vector = joined.adds.vector(index, values, steps)
        except Refused:
            raise
        except Exception as error:
            self._say(f"TRAINING FAILED, and only noise is sent: {type(error).__name__}: {error}")
            return joined.adds.silenced().vector(index, values, steps.again())
        if not steps.finite:
            self._say("TRAINING GAVE NaN OR INFINITY, which counts as nothing: look for such numbers in the data")
        return vector

    def _end(self, letter: Letter) -> bytes:
        """The run that this client is in, or was in before it was started again, is over: what it signs of it. It may go once the
        server has that. Of a run that it never agreed to it signs nothing."""
        run, told = _digest(letter), letter.head.get("released")
        if not self._diary.knows(run):
            return self._write(letter, {"kind": "bye"})
        if not can_be_told(told):
            raise BadLetter("A letter ends a run, and does not say what the run gives out.")
        again = self._diary.ended(run)
        signed = self._diary.over(run, self._identity, self.name, told)
        if not again:
            own = signed.statement
            self._say(f"the run is over; this client was in {own['participations']} sums of at most {own['at_most']}, and signs it")
            if self._joined is not None and self._joined.told.proposal.digest == run:
                self._joined = None
        if letter.head.get("kept") == signed.sha256 and self._diary.kept(run) and self._joined is None:
            self.over.set()
        return self._write(letter, {"kind": "bye"}, [json.dumps(signed.to_dict()).encode()])

    def _write(self, letter: Letter, head: dict[str, Any], pieces: list[bytes] | None = None) -> bytes:
        return letters.write(self._identity, head | {"re": letter.name, "key": self.key.hex()}, pieces or [])


@contextmanager
def _told_to_both() -> Iterator[None]:
    """What is wrong with a proposal, of which nothing is about this client's data, is a refusal that the server reads, too."""
    try:
        yield
    except BadLetter:
        raise
    except HushError as error:
        raise UsageError(str(error)) from error
    except Exception as error:
        raise UsageError(f"The proposal makes no sense here: {type(error).__name__}.") from error


def _digest(letter: Letter) -> bytes:
    """Which run a letter is of."""
    try:
        return bytes.fromhex(letter.text("run"))
    except ValueError:
        raise BadLetter("A letter names no run.") from None


def _text(piece: bytes) -> str:
    try:
        return piece.decode()
    except UnicodeDecodeError:
        raise BadLetter("A proposal is not text.") from None
