from __future__ import annotations

from pathlib import Path

import pytest
import torch

from hush.errors import UsageError
from hush.privacy.ledger import Ledger
from hush.random import digest
from hush.secret import Secret, state_dir


def test_fresh_secrets_differ_and_those_of_seeds_repeat(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()  # the tests' own secrets repeat
    assert len({Secret.fresh().key for _ in range(100)}) == 100
    keys = {Secret.of_seed(*seeds).key for seeds in ((0, 0), (0, 1), (1, 0), (10,), (1, 0, 0))}
    assert len(keys) == 5
    assert Secret.of_seed(3, 4) == Secret.of_seed(3, 4)


def test_global_seeds_do_not_reach_the_noise() -> None:
    secret = Secret(b"k" * 32)
    draws = []
    for seed in (0, 1):
        torch.manual_seed(seed)
        draws.append(secret.noise(3, torch.zeros(5), 1.0))
    assert torch.equal(draws[0], draws[1])
    state = torch.get_rng_state()
    secret.noise(3, torch.zeros(5), 1.0)
    assert torch.equal(state, torch.get_rng_state())


def test_streams_are_separated_by_label_and_round() -> None:
    secret = Secret(b"k" * 32)
    streams = {secret.stream(label, index, 16) for label in ("noise", "cohort", "nois") for index in range(3)}
    assert len(streams) == 9


def test_the_key_is_not_printed() -> None:
    assert "kkkk" not in repr(Secret(b"k" * 32))


def test_a_mark_names_a_tensor_and_tells_nothing_else() -> None:
    secret, x = Secret(bytes(range(32))), torch.randn(1000, dtype=torch.float64)
    mark = secret.mark("attempt", 3, x)
    assert mark == secret.mark("attempt", 3, x.clone())
    changed = x.clone()
    changed[500] = torch.nextafter(changed[500], torch.tensor(9.0, dtype=torch.float64))  # one bit
    others = [secret.mark("attempt", 3, changed), secret.mark("attempt", 4, x), secret.mark("noise", 3, x)]
    others += [Secret.fresh().mark("attempt", 3, x), secret.mark("attempt", 3, torch.zeros(1000, dtype=torch.int64))]
    assert len({mark, *others}) == 6


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.int64])
def test_a_digest_on_the_device_sees_every_bit_and_every_place(dtype: torch.dtype) -> None:
    x = (torch.randn(500, generator=torch.Generator().manual_seed(0)) * 100).to(dtype)
    keys = (1, 2**63 + 5)
    seen = {digest(x, keys), digest(x.flip(0), keys), digest(x, (1, 7)), digest(x[:-1], keys), digest(torch.zeros_like(x), keys)}
    for place in (0, 250, 499):
        changed = x.clone()
        changed[place] += 1
        seen.add(digest(changed, keys))
    assert len(seen) == 8
    assert digest(x, keys) == digest(x.clone(), keys)


def test_a_machine_has_one_memory_wherever_one_stands(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for home in ("here", "./below/here", "~/here"):
        monkeypatch.setenv("HUSH_HOME", home)
        with pytest.raises(UsageError, match="must be an absolute path"):
            state_dir()
        with pytest.raises(UsageError, match="must be an absolute path"):
            Ledger(tmp_path / "l.db")
    monkeypatch.delenv("HUSH_HOME")
    monkeypatch.setenv("XDG_STATE_HOME", "here")  # as its specification has it, one that is not absolute is none
    assert state_dir() == Path.home() / ".local" / "state" / "hush"
