from __future__ import annotations

import stat
from pathlib import Path

import pytest
import torch

from hush.random import digest
from hush.secret import Secret, machine_key


def test_the_machine_key_is_made_once_and_for_its_owner_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HUSH_HOME", str(tmp_path / "a"))
    key = machine_key()
    assert len(key) == 32
    assert machine_key() == key
    file = tmp_path / "a" / "noise.key"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert [p.name for p in file.parent.iterdir()] == ["noise.key"]
    monkeypatch.setenv("HUSH_HOME", str(tmp_path / "b"))
    assert machine_key() != key


def test_without_a_place_for_a_key_runs_are_private_but_not_repeatable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    monkeypatch.setenv("HUSH_HOME", str(blocked))
    assert machine_key() != machine_key()


def test_a_damaged_key_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HUSH_HOME", str(tmp_path))
    (tmp_path / "noise.key").write_bytes(b"short")
    assert machine_key() != machine_key()


def test_runs_that_differ_anywhere_get_other_keys() -> None:
    assert Secret.for_run("a").key == Secret.for_run("a").key
    assert Secret.for_run("a").key != Secret.for_run("b").key
    assert Secret.fresh().key != Secret.fresh().key


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
