"""The sum over a cohort: added up as it is, or by secure aggregation, chunk by chunk; clients of like size train together."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import count, islice
from typing import NamedTuple

import torch
from torch import Tensor

from hush import rows
from hush.cohort import SecretParticipation
from hush.core import Method, Public, Round, Shard, Trained
from hush.engines.diagnostics import Recorder
from hush.engines.federation import MOMENTS, AmortisedFederation, Federation
from hush.engines.memory import chunks_at_once
from hush.engines.mixing import refuse_mixed_records, refuse_mixed_rows, refuse_mixed_training
from hush.engines.run import Run, Snapshot
from hush.engines.sharded import added_up, hand_out, is_mine, of_all, share_of
from hush.engines.threads import at_once
from hush.errors import NoGuarantee, UsageError
from hush.local.flat import FlatModel
from hush.own import OwnSecrets
from hush.random import derive, keys_of
from hush.secagg import Aborted


class Summed(NamedTuple):
    """A round's sum, if there is one, and what it cost."""

    total: Tensor | None
    charges: int
    """Rounds paid for by now."""
    broke_off: bool = False
    """Before anything was opened, or paid for."""
    why: str = ""
    sent: int = 0
    received: int = 0
    tried_again: int = 0
    """Times that it broke off before it counted, where real clients come back."""
    begun: int = 0
    """Rounds of the secure sum that real clients were asked for by now, those that broke off included."""
    trip_seconds: Mapping[str, float] | None = None
    """How long real clients were waited for, by what they were waited for."""
    traffic: Mapping[str, Mapping[str, int]] | None = None
    """Bytes between real clients and their server, up and down: counted, and in letters."""


def plain_sum(run: Run, method: Method, params: Tensor, ids: Tensor, rnd: Round, public: Public, recorder: Recorder) -> Tensor:
    """In float64, or in integers."""
    message = run.method.uplink(run.data.learner.dim)
    kind = torch.int64 if message.integer else torch.float64
    hand_out(run, params, ids, rnd, public)
    total = torch.zeros(message.summed, dtype=kind, device=params.device)
    for _, encoded, keys in _contributions(run, method, params, ids, rnd, public, recorder):
        rows.add(method.pipeline.unpack(encoded, rnd, keys, public), total)
    return added_up(run, total, recorder)


def all_rows(
    run: Run, method: Method, params: Tensor, ids: Tensor, rnd: Round, public: Public, recorder: Recorder
) -> Iterator[tuple[Tensor, Tensor]]:
    """Chunks of clients and what they send, where somebody adds it up who asks for each by itself."""
    hand_out(run, params, ids, rnd, public, rows=True)
    yield from of_all(run, _contributions(run, method, params, ids, rnd, public, recorder), recorder)


def secure_sum(
    run: Run,
    method: Method,
    now: Snapshot,
    ids: Tensor,
    rnd: Round,
    public: Public,
    recorder: Recorder,
    pay: Callable[[Tensor | None], int],
) -> Summed:
    """By the protocol itself. The round is paid for when enough vectors are in, before anybody opens anything.

    Under secret participation everybody is asked, and those whose coin says no send their share of the noise alone.
    """
    federation = run.privacy.federation
    assert isinstance(federation, Federation | AmortisedFederation)
    asked = torch.arange(run.data.train.count) if isinstance(run.cohort, SecretParticipation) else ids
    coins = run.identity.secret.coins("dropout", rnd.index, len(asked)).tolist()
    share = run.config.dropout
    lost = {i: int(MOMENTS * coin / share) for i, coin in zip(asked.tolist(), coins, strict=True) if coin < share}
    total, charges, paid, why = None, now.charges, False, ""
    secure = None
    try:
        secure = federation.begin(rnd.index, asked.tolist(), lost)
        secure.share()
        if secure.opens_at_once:  # whoever may be missing later: nobody knows before
            charges, paid = pay(None), True
        there, chosen = secure.training, set(ids.tolist())
        training = torch.tensor([i for i in there if i in chosen], dtype=torch.int64)
        for part, encoded in all_rows(run, method, now.params, training, rnd, public, recorder):
            secure.send(part.tolist(), encoded)
        for others, noise in _noise_alone(run, [i for i in there if i not in chosen], rnd):
            secure.send(others, noise)
        secure.close()
        if not paid:
            charges, paid = pay(None), True
        total = secure.open().to(now.params.device)
    except Aborted as reason:
        why = str(reason)
    sent, received = (0, 0) if secure is None else (secure.bytes_up, secure.bytes_down)
    return Summed(total, charges, not paid, why, sent, received)


def _contributions(
    run: Run, method: Method, params: Tensor, ids: Tensor, rnd: Round, public: Public, recorder: Recorder
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Chunks of clients, what they send, and their public keys."""
    message = run.method.uplink(run.data.learner.dim)
    untried = run.privacy.plan is not None and rnd.index == 0
    ids = ids.cpu()
    if untried and is_mine(run, 0) and (two := _two_with_data(run, ids)) is not None:
        refuse_mixed_training(run, params, two.to(params.device), rnd, public)

    def contribute(part: Tensor, learner: FlatModel) -> tuple[Tensor, Shard, Tensor, Tensor, Trained]:
        data, keys = clients_of(run, part, rnd)
        return part, data, keys, *method.contribute(learner, params, data, rnd, keys, public)

    most = chunks_at_once(run.data.learner, run.chunk, run.config.memory)
    parts, ahead = list(_chunks(run, ids)), _ahead(run)
    done = at_once(contribute, parts, run.data.learner, method, most, run.privacy.apart)
    for later in parts[:ahead]:
        run.data.train.expect(later)
    for number, one_part in enumerate(done):
        for later in parts[number + ahead : number + ahead + 1]:
            run.data.train.expect(later)
        part, data, keys, encoded, trained = one_part
        if encoded.shape != (len(part), message.entries) or len(trained.updates) != len(part):
            raise UsageError(
                f"{method.name} returned {tuple(encoded.shape)} values for {len(part)} clients of {message.entries} entries each: "
                "a client contributes exactly one row, of the length that wire() counts."
            )
        having = torch.nonzero(data.size).flatten().tolist()
        if untried and having:
            refuse_mixed_records(method, run.data.learner, params, data, having[0], keys, rnd, public)
        if run.privacy.plan is not None and len(having) > 1:
            if untried and run.privacy.apart:
                _refuse_neighbours(run, params, part, having[0], (encoded, trained.updates), rnd, public)
            untried = False
            # three of every chunk in the first round; later one of the first chunk, each time another
            tried = (0, len(having) // 2, -1) if rnd.index == 0 else (rnd.index % len(having),) if number == 0 else ()
            tried = () if run.method.local.by_record else tried
            for i in sorted({having[i] for i in tried}):
                one, own = slice(i, i + 1), None if data.own is None else data.own.pick([i])
                refuse_mixed_rows(run.method, encoded[one], _some(trained, one), rnd, keys[one], public, own)
        if message.integer and encoded.is_floating_point():
            raise UsageError(f"The pipeline of {method.name} promises integers and returns {encoded.dtype}.")
        if run.privacy.apart:  # empty slots held their place, and say nothing
            there = (part >= 0).to(encoded.device)
            encoded, keys, trained = encoded[there], keys[there], _some(trained, there)
        recorder.trained(trained.updates, trained.losses)
        if run.config.diagnostics:
            recorder.work.append(partial(run.method.local.work, data.size, run.privacy.apart))
        yield part[part >= 0], encoded, keys


def _ahead(run: Run) -> int:
    """How many chunks' examples are read before they are asked for: those that train at once, and the next."""
    return 2 if run.data.learner.device.type == "cuda" else torch.get_num_threads() + 2


def read_ahead(run: Run, ids: Tensor) -> None:
    """Have the examples read that the round of these clients begins with."""
    for part in islice(_chunks(run, ids), _ahead(run)):
        run.data.train.expect(part)


def _some(trained: Trained, which: Tensor | slice) -> Trained:
    return Trained(*(None if values is None else values[which] for values in trained))  # type: ignore[arg-type]


def _two_with_data(run: Run, ids: Tensor) -> Tensor | None:
    """The largest and the smallest client of a cohort, or of all where it has no two: a lone one, too, could read others' rows."""
    sizes = run.data.train.sizes
    for some in (ids, torch.arange(len(sizes), device=ids.device)):
        having = some[sizes[some] > 0]
        if len(having) > 1:
            return having[sizes[having].argsort(descending=True, stable=True)][[0, -1]]
    return None


def _chunks(run: Run, ids: Tensor) -> Iterator[Tensor]:
    """Clients that train side by side, those of like size together.

    Where a row must not depend on neighbours: as many slots in every pass, each client's by its own number, and -1 where nobody
    stands. In the same shape and at the same place a client's arithmetic is the same, whoever else is there.
    """
    ids = ids[run.data.train.sizes[ids].argsort(descending=True, stable=True)]
    if not run.privacy.apart:
        ids = share_of(run, ids)
        yield from torch.split(ids, run.chunk) if len(ids) else ()
        return
    queues, passes = dict[int, dict[int, list[int]]](), count()
    for client, kind in zip(ids.tolist(), run.method.local.size_class(run.data.train.sizes[ids]).tolist(), strict=True):
        queues.setdefault(kind, {}).setdefault(client % run.chunk, []).append(client)
    for slots in queues.values():
        for turn in range(max(map(len, slots.values()))):
            if is_mine(run, next(passes)):
                numbers = [slots[slot][turn] if turn < len(slots.get(slot, ())) else -1 for slot in range(run.chunk)]
                yield torch.tensor(numbers, device=ids.device)


def _refuse_neighbours(
    run: Run, params: Tensor, part: Tensor, slot: int, rows: tuple[Tensor, Tensor], rnd: Round, public: Public
) -> None:
    """Train one client again with all other slots empty: its update and its row must be the same, to the last bit."""
    alone = part.new_full(part.shape, -1)
    alone[slot] = part[slot]

    def contribute(part: Tensor, learner: FlatModel) -> tuple[Tensor, Trained]:
        data, keys = clients_of(run, part, rnd)
        return run.method.contribute(learner, params, data, rnd, keys, public)

    ((again, trained),) = at_once(contribute, [alone], run.data.learner, run.method, 1, apart=True)
    if not all(_same_bits(a[slot], b[slot]) for a, b in zip((again, trained.updates), rows, strict=True)):
        raise NoGuarantee(
            f"With {run.method.name} on this device, a client's row changes with who trains beside it, so no bound holds for it.",
            "Train clients one by one (chunk=1), or on a CPU.",
        )


def _same_bits(a: Tensor, b: Tensor) -> bool:
    return torch.equal(a.contiguous().view(torch.uint8), b.contiguous().view(torch.uint8))


def _noise_alone(run: Run, ids: list[int], rnd: Round) -> Iterator[tuple[list[int], Tensor]]:
    """Chunks of clients that add nothing but their share of the noise."""
    entries = run.method.uplink(run.data.learner.dim).entries
    for begin in range(0, len(ids), run.chunk):
        part = ids[begin : begin + run.chunk]
        rows, own = torch.zeros(len(part), entries, dtype=torch.int64), OwnSecrets.simulated(run.identity.secret, part)
        for station in run.method.pipeline.parts:
            rows = station.cover(rows, rnd, own)
        yield part, rows


def clients_of(run: Run, ids: Tensor, rnd: Round) -> tuple[Shard, Tensor]:
    """What some clients have in a round: their data and own secrets, and their public keys. Nobody, -1, has nothing."""
    own = OwnSecrets.simulated(run.identity.secret, ids.tolist()) if run.method.draws_its_own else None
    shard = run.data.train.shard(ids)._replace(own=own, slots=run.privacy.apart)
    return shard, keys_of(derive(run.config.seed, 2, rnd.index), ids.cpu()).to(shard.size.device)
