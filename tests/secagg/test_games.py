"""Games that an attacker plays with what a server sees, and searches for secrets where none may be."""

from __future__ import annotations

import ast
import logging
import subprocess
import sys
from collections.abc import Iterator
from contextlib import nullcontext, suppress
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest

import hush.secagg
from hush.secagg import Aborted, AmortisedClient, BadMessage, Graph, Refused, ServerRound, Terms, shamir
from hush.secagg.keys import self_seed
from hush.secagg.masks import add_masks
from hush.secagg.messages import Kind
from hush.secagg.packing import unpack
from tests.secagg.drive import (
    Vectors,
    World,
    answers,
    body_of,
    cuts_that_open,
    exact,
    open_sum,
    ring_of,
    true_sum,
    until,
    vectors_for,
)

SOURCE = Path(hush.secagg.__file__).parent
ENTRIES = 20_000


# -- what the server sees --------------------------------------------------------------------------------------------------------


def chi_square(data: bytes) -> float:
    """Of the bytes against the uniform distribution, as a normal deviate."""
    counts = np.bincount(np.frombuffer(data, dtype=np.uint8), minlength=256)
    mean = len(data) / 256
    return float((((counts - mean) ** 2 / mean).sum() - 255) / np.sqrt(2 * 255))


def uploads(world: World, vectors: np.ndarray, round: int = 0) -> tuple[ServerRound, dict[int, bytes]]:
    current, letters = until(world, 1, vectors, round=round)
    return current, {number: body_of(world.people[number].answer(letter, vectors[number])) for number, letter in letters.items()}


@pytest.mark.parametrize("bits", [8, 16, 24, 32, 64])
def test_a_masked_upload_is_uniform_to_the_byte(bits: int) -> None:
    world = World(3, Terms(ENTRIES, bits=bits))
    _, seen = uploads(world, np.zeros((3, ENTRIES), dtype=np.int64))
    for upload in seen.values():
        assert abs(chi_square(upload)) < 6


def test_an_upload_of_odd_bits_is_uniform_in_every_plane() -> None:
    world = World(3, Terms(ENTRIES, bits=13))
    _, seen = uploads(world, np.zeros((3, ENTRIES), dtype=np.int64))
    for upload in seen.values():
        values = unpack(upload, ENTRIES, 13)
        for bit in range(13):
            ones = int((values >> bit & 1).sum())
            assert abs(ones - ENTRIES / 2) < 6 * np.sqrt(ENTRIES) / 2


def two_worlds() -> tuple[np.ndarray, np.ndarray]:
    """Two ways to divide the same sum: one client has it all, or each has a part."""
    one = np.zeros((3, ENTRIES), dtype=np.int64)
    one[0] = 90
    other = np.full((3, ENTRIES), 30, dtype=np.int64)
    return one, other


def difference(a: bytes, b: bytes) -> float:
    """A two-sample chi-square over bytes, as a normal deviate."""
    x, y = (np.bincount(np.frombuffer(data, dtype=np.uint8), minlength=256).astype(float) for data in (a, b))
    both = x + y
    there = both > 0
    chi = ((x - y)[there] ** 2 / both[there]).sum()
    freedom = int(there.sum()) - 1
    return float((chi - freedom) / np.sqrt(2 * freedom))


def test_two_inputs_with_the_same_sum_look_the_same_to_the_server() -> None:
    one, other = two_worlds()
    views = []
    for inputs in (one, other):
        world = World(3, Terms(ENTRIES, bits=8))
        _, seen = uploads(world, inputs)
        views.append(seen)
    for number in range(3):
        assert abs(difference(views[0][number], views[1][number])) < 6
    for a, b in ((0, 1), (0, 2), (1, 2)):  # nor do two uploads together, of which the pair's mask is in both
        joint = [bytes((np.frombuffer(view[a], np.uint8) + np.frombuffer(view[b], np.uint8)).astype(np.uint8)) for view in views]
        assert abs(difference(*joint)) < 6


@pytest.mark.parametrize("planted", ["no own mask", "no pairs"])
def test_the_games_notice_masks_that_are_missing(planted: str) -> None:
    """Without own masks, one who knows all pairs sees the vectors; without pairs, one who is given the own masks does."""
    one, other = two_worlds()
    views = []
    for inputs in (one, other):
        world = World(3, Terms(ENTRIES, bits=8))

        def fewer(vector: np.ndarray, plus: list[bytes], minus: list[bytes]) -> None:
            add_masks(vector, plus[1:] if planted == "no own mask" else plus[:1], minus if planted == "no own mask" else [])

        with patch("hush.secagg.client.add_masks", fewer):
            current, seen = uploads(world, inputs)
        opened = {}
        for number, upload in seen.items():
            inside = world.people[number]._rounds[0]
            values = unpack(upload, ENTRIES, 8)
            seeds = {j: pair.seed(current.session.digest, number, j) for j, pair in inside._pairs.items()}
            if planted == "no own mask":
                add_masks(values, [s for j, s in seeds.items() if j < number], [s for j, s in seeds.items() if j > number])
            else:
                add_masks(values, [], [self_seed(inside._own, current.session.digest, number)])
            opened[number] = values.tobytes()
        views.append(opened)
    assert difference(views[0][0], views[1][0]) > 100


def test_the_same_vector_is_masked_anew_in_every_round() -> None:
    world = World(3, Terms(1000, bits=32))
    vectors = np.ones((3, 1000), dtype=np.int64)
    first, second = uploads(world, vectors)[1], uploads(world, vectors, round=1)[1]
    for number in range(3):
        same = unpack(first[number], 1000, 32) == unpack(second[number], 1000, 32)
        assert same.mean() < 0.01
        shift = unpack(first[number], 1000, 32) - unpack(second[number], 1000, 32)
        assert len(set(shift.tolist())) > 990  # nor do the two masks differ by a constant


def test_masks_of_all_uploads_but_own_ones_cancel() -> None:
    world = World(5, Terms(50, bits=32))
    vectors = vectors_for(world)
    current, seen = uploads(world, vectors)
    total = sum(unpack(upload, 50, 32) for upload in seen.values())
    own = [self_seed(client._rounds[0]._own, current.session.digest, client.number) for client in world.people]
    add_masks(total, [], own)
    assert (total == vectors.sum(0).astype(np.uint32)).all()


def test_a_vanished_clients_late_upload_stays_hidden_when_its_pairs_are_open() -> None:
    """The server has opened its mask key, and now its vector comes after all: the own mask is still on it."""
    world = World(5, Terms(ENTRIES, bits=8, dropout=0.2, corrupted=0))
    vectors = np.full((5, ENTRIES), 7, dtype=np.int64)
    current, letters = until(world, 1, vectors)
    late = body_of(world.people[4].answer(letters[4], vectors[4]))
    inside = world.people[4]._rounds[0]
    seeds = [pair.seed(current.session.digest, 4, j) for j, pair in inside._pairs.items()]
    answers(world, current, letters, vectors, silent={4})
    answers(world, current, current.advance(), vectors)
    current.advance()
    assert exact(world, current, vectors)
    values = unpack(late, ENTRIES, 8)
    add_masks(values, seeds, [])  # 4 comes after all others: it has taken their masks off
    assert abs(chi_square(values.tobytes())) < 6


@pytest.mark.parametrize(("helpers", "threshold", "opens"), [(0, 10, True), (0, 11, False), (2, 12, True), (2, 13, False)])
def test_a_server_that_only_chooses_whom_not_to_wait_for_opens_no_smaller_sum(helpers: int, threshold: int, opens: bool) -> None:
    """It says nothing false. It lets a deadline pass for two runs of the ring, of which only the corrupted clients answer, and the
    masks of the arc between them with all others can be taken off. What stops it is 2 t > degree + corrupted: with less it works.
    """
    world = World(100, Terms(4, dropout=0.2, corrupted=0.05, smallest=100))
    vectors = vectors_for(world)
    with patch("hush.secagg.terms.graph_for", lambda *_: Graph(20, threshold, complete=False)):
        current, letters = until(world, 1, vectors)
        ring = ring_of(current._around)
        corrupted = {*ring[:helpers], *ring[22 : 22 + helpers]}
        assert _opens_an_arc(world, current, letters, vectors, ring, 12, corrupted) == opens


@pytest.mark.parametrize("graph", [Graph(36, 21, complete=False), None], ids=["of before", "of now"])
def test_corrupted_clients_that_were_chosen_before_the_ring_do_not_help_such_a_server(graph: Graph | None) -> None:
    """A tenth of 300 are corrupted, whatever the ring, and 36 neighbours with a threshold of 21 were once thought enough. Then some
    two runs hold six of them, and the sum of the few between these opens beside one of 270. Now there are no such runs."""
    terms = Terms(2, dropout=0.1, corrupted=0.1, smallest=300)
    corrupted, missing = set(range(30)), 300 - terms.fewest(300)
    with patch("hush.secagg.terms.graph_for", lambda *_: graph) if graph else nullcontext():
        world = World(300, terms)
        world.keys([0])
        current = world.open(0)
        ring = ring_of(current._around)
        cuts = cuts_that_open([number in corrupted for number in ring], current.session.graph, missing)
        if graph is None:
            assert not any(cuts)
            return
        vectors, letters = vectors_for(world), current.start()
        answers(world, current, letters, vectors)
        start, size = next(cut for cut in cuts if cut[1] >= graph.degree)  # the shortest arc all of whose seeds open
        assert size < 150
        turned = ring[start:] + ring[:start]
        assert _opens_an_arc(world, current, current.advance(), vectors, turned, size, corrupted)


def _opens_an_arc(
    world: World,
    current: ServerRound,
    letters: dict[int, bytes],
    vectors: Vectors,
    ring: list[int],
    size: int,
    corrupted: set[int],
) -> bool:
    """Whether the sum of so many clients, after the first run on the ring, can be told from what the server has by not waiting."""
    graph = current.session.graph
    half = graph.degree // 2
    arc = ring[half : half + size]
    gone = {*ring[:half], *ring[half + size : 2 * half + size]} - corrupted
    assert len(gone) <= world.clients - current.session.fewest
    told = {number: world.people[number]._rounds[0]._keys.mask_secret() for number in corrupted}
    uploads = {number: world.people[number].answer(letter, vectors[number]) for number, letter in letters.items()}
    for number in uploads.keys() - gone:
        current.receive(number, uploads[number])
    for number, letter in current.advance().items():
        with suppress(Refused):
            current.receive(number, world.people[number].answer(letter))

    def secret(number: int) -> bytes | None:
        shown = current._shown.get(number, {})
        return shamir.combine(dict(sorted(shown.items())[: graph.threshold])) if len(shown) >= graph.threshold else None

    own = {number: secret(number) for number in arc if number not in corrupted}
    lost = {number: secret(number) for number in gone}
    if not all(own.values()) or not all(lost.values()):
        return False
    assert (open_sum(current, uploads, own, lost | told).astype(np.uint64) == true_sum(vectors, own, world.terms.bits)).all()
    return True


# -- secrets stay where they are -------------------------------------------------------------------------------------------------


def things(root: object, seen: set[int]) -> Iterator[object]:
    """Everything of the package that can be reached from here."""
    if id(root) in seen:
        return
    seen.add(id(root))
    if isinstance(root, dict):
        for value in root.values():
            yield from things(value, seen)
    elif isinstance(root, tuple | list | set) and not hasattr(root, "_fields"):
        for value in root:
            yield from things(value, seen)
    elif type(root).__module__.startswith("hush.secagg"):
        yield root
        names = [*getattr(root, "__dict__", {}), *getattr(type(root), "__slots__", ()), *getattr(type(root), "_fields", ())]
        for name in names:
            if hasattr(root, name):
                yield from things(getattr(root, name), seen)


def secrets_of(world: World) -> list[bytes]:
    """Keys, seeds and shares of everybody, in every round that is not over."""
    found = [identity.to_bytes() for identity in (world.who, *world.own)]
    for client in world.people:
        rounds = [*client._rounds.values()]
        for keys in [*client._prepared.values(), *(own._keys for own in rounds if not own.over)]:
            found += [keys.mask_secret(), keys._cipher.private_bytes_raw()]
        for own in rounds:
            found.append(own._own)
            for pair in own._pairs.values():
                found += [pair._letters, pair._masks]
            for held in own._held.values():
                found += [held.own, held.mask]
    return [secret for secret in found if len(secret) >= 32]


def shows(text: str, secrets: list[bytes]) -> bool:
    """Whether eight bytes of a secret are in a text, as hex, as Python's own writing, or as a list of numbers."""
    for secret in secrets:
        for start in range(0, len(secret) - 8, 8):
            piece = secret[start : start + 8]
            if any(
                written in text for written in (piece.hex(), repr(piece)[2:-1], repr(list(piece))[1:-1], piece.decode("latin1"))
            ):
                return True
    return False


@pytest.mark.parametrize("stage", range(4))
def test_nothing_that_is_printed_shows_a_secret(stage: int) -> None:
    world = World(4, Terms(4, threat="malicious"))
    world.keys([7])
    until(world, stage)
    secrets = secrets_of(world)
    assert len(secrets) > 20
    seen: set[int] = set()
    objects = [thing for root in (world.server, *world.people, *world.own, world.who, world.terms) for thing in things(root, seen)]
    for thing in objects:
        assert not shows(repr(thing) + str(thing), secrets), type(thing)


def test_the_search_for_secrets_finds_one() -> None:
    world = World(3, Terms(4))
    until(world, 1)
    secrets = secrets_of(world)
    assert shows(f"key {secrets[0].hex()}", secrets)
    assert shows(repr(secrets[3]), secrets)


def test_refusals_aborts_and_logs_show_no_secret(caplog: pytest.LogCaptureFixture) -> None:
    """What goes wrong is told in words and numbers of clients; a chain of causes must not hold more."""
    caplog.set_level(logging.DEBUG)
    world = World(5, Terms(4, threat="malicious", dropout=0.2, corrupted=0))
    vectors = vectors_for(world)
    current, letters = until(world, 1, vectors)
    secrets = secrets_of(world)
    bodies = [b"", bytes(4), (2**32 - 1).to_bytes(4, "big"), body_of(letters[1]), body_of(letters[0])[:-1], bytes(2000)]
    told = []
    for round in range(1, 20):
        for kind in (Kind.DELIVERY, Kind.SURVIVORS, Kind.VOTES, Kind.REVEAL):
            for number, body in enumerate(bodies[:5]):
                try:
                    world.people[number].answer(world.letter(kind, body, current.session, to=number), vectors[number])
                except (Refused, BadMessage) as refused:
                    told.append(f"{refused} {refused!r} {refused.__cause__!r} {refused.args}")
        with pytest.raises(Aborted) as aborted:
            current.advance()
        told.append(str(aborted.value))
        if round == 4:
            break
        current, letters = until(world, 1, vectors, round=round)
        secrets += secrets_of(world)
        bodies = bodies[1:] + bodies[:1]
    assert len(told) > 40
    assert not shows("\n".join(told) + caplog.text, secrets)


def test_a_client_over_has_nothing_left_to_tell() -> None:
    world = World(4, Terms(4))
    vectors = vectors_for(world)
    current, letters = until(world, 2, vectors)
    secrets = secrets_of(world)
    inside = world.people[0]._rounds[0]
    own = {inside._own, *(piece for held in inside._held.values() for piece in (held.own, held.mask))}
    assert own <= set(secrets)
    answers(world, current, letters, vectors)
    left = [value for thing in things(world.people[0], set()) for value in _bytes_in(thing)]
    assert not own & set(left)


def _bytes_in(thing: object) -> Iterator[bytes]:
    for name in [*getattr(thing, "__dict__", {}), *getattr(type(thing), "__slots__", ())]:
        value = getattr(thing, name, None)
        if isinstance(value, bytes):
            yield value


# -- what the package is made of -------------------------------------------------------------------------------------------------


def imports_of(path: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return names


@pytest.mark.parametrize("path", sorted(SOURCE.glob("*.py")), ids=lambda path: path.name)
def test_no_random_numbers_that_can_be_guessed_are_used(path: Path) -> None:
    forbidden = {"random", "numpy.random", "torch", "pickle", "marshal", "scipy", "flwr"}
    found = imports_of(path)
    assert not {name for name in found if name in forbidden or name.split(".")[0] in forbidden - {"numpy.random"}}
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Attribute):
            assert node.attr not in ("random", "default_rng", "RandomState"), f"{path.name}:{node.lineno}"


@pytest.mark.parametrize("path", sorted(SOURCE.glob("*.py")), ids=lambda path: path.name)
def test_nothing_is_printed_logged_or_evaluated(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            assert node.func.id not in ("print", "eval", "exec", "__import__"), f"{path.name}:{node.lineno}"
    assert "logging" not in imports_of(path)


def test_the_package_stands_alone() -> None:
    code = (
        "import sys, hush.secagg\n"
        "heavy = {'torch', 'scipy', 'flwr', 'pandas', 'dp_accounting'} & {name.split('.')[0] for name in sys.modules}\n"
        "assert not heavy, heavy"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_seeds_go_to_other_processes_through_a_pipe_and_not_as_words() -> None:
    """Anybody on a machine can read the command line of a process."""
    from hush.secagg import unmask

    calls = []
    real = subprocess.Popen

    def spy(command: list[str], **more: object) -> subprocess.Popen[bytes]:
        calls.append((command, more.get("env")))
        return real(command, **more)  # type: ignore[call-overload,no-any-return]

    with patch.object(unmask.subprocess, "Popen", spy):
        unmask.take_masks(np.zeros(1000, dtype="<u4"), [b"secret seed of thirty-two bytes!"], [], workers=2)
    assert calls
    assert all("secret" not in str(call) for call in calls)


def test_an_amortised_client_shows_no_secret() -> None:
    world = World(3, Terms(4, dropout=0))
    client = AmortisedClient(world.own[0], world.roster, world.terms)
    assert not shows(repr(client) + str(client), [client._keys.mask_secret()])
