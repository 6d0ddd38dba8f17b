"""What was decoded once is kept, and nothing ever depends on it."""

from __future__ import annotations

import errno
import json
import os
import struct
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import safetensors.torch
import torch

from hush.tasks import decoded
from hush.tasks.decoded import keep_decoded
from hush.tasks.fetch import File
from hush.tasks.raw import Raw
from hush.tasks.task import Examples

FILES = (File("a", 1, "a" * 64), File("b", 1, "b" * 64))


def made(seed: int = 0, *, owned: bool = True) -> Raw:
    g = torch.Generator().manual_seed(seed)
    x = torch.randint(0, 256, (9, 3, 4, 4), generator=g, dtype=torch.uint8)
    y = torch.randint(-100, 10, (9, 2), generator=g)
    train, test = Examples(x[:6], y[:6]), Examples(x[6:], y[6:])
    if not owned:
        return Raw(train, test)
    return Raw(train, test, torch.tensor([0, 0, 1, 1, 2, 2]), torch.tensor([2, 1, 1]), ("Ann", 'B "x"', "Zoë"))


def same(a: Raw, b: Raw) -> bool:
    def parts(raw: Raw) -> list[torch.Tensor | None]:
        return [*raw.train, *raw.test, raw.owner, raw.test_owner]

    def equal(p: torch.Tensor | None, q: torch.Tensor | None) -> bool:
        return p is q is None or (p is not None and q is not None and p.dtype == q.dtype and torch.equal(p, q))

    return a.names == b.names and all(equal(p, q) for p, q in zip(parts(a), parts(b), strict=True))


class Reader:
    """Counts how often the files were really read."""

    def __init__(self, raw: Raw) -> None:
        self.raw, self.calls = raw, 0

    def __call__(self) -> Raw:
        self.calls += 1
        return self.raw


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HUSH_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "decoded"


@pytest.mark.parametrize("owned", [True, False])
def test_what_was_read_once_is_not_read_again(cache: Path, owned: bool) -> None:
    read = Reader(made(owned=owned))
    assert keep_decoded("toy", FILES, read) is read.raw
    (path,) = cache.iterdir()
    assert path.name.startswith("toy-")
    assert len(path.stem) == len("toy-") + 16
    again = keep_decoded("toy", FILES, read)
    assert read.calls == 1
    assert same(again, read.raw)


def test_other_files_names_and_versions_are_read_anew(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read = Reader(made())
    keep_decoded("toy", FILES, read)
    keep_decoded("toy", FILES[:1], read)
    keep_decoded("toy", (FILES[0], File("b", 1, "c" * 64)), read)
    keep_decoded("other", FILES, read)
    monkeypatch.setattr(decoded, "__version__", "99")
    keep_decoded("toy", FILES, read)
    assert read.calls == 5
    assert len(list(cache.iterdir())) == 5


def header(path: Path) -> tuple[int, dict[str, dict[str, str]]]:
    content = path.read_bytes()
    (size,) = struct.unpack("<Q", content[:8])
    return 8 + size, json.loads(content[8 : 8 + size])


def flip(path: Path, at: int) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(bytes(content))


def other_names(path: Path) -> None:
    _, notes = header(path)
    tensors = safetensors.torch.load_file(path)
    names = json.dumps(["Ann", "Bob", "Eve"])
    safetensors.torch.save_file(tensors, path, notes["__metadata__"] | {"names": names})


def without_notes(path: Path) -> None:
    safetensors.torch.save_file(safetensors.torch.load_file(path), path)


def a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: flip(path, -1),
        lambda path: flip(path, header(path)[0]),
        lambda path: flip(path, 3),
        lambda path: path.write_bytes(path.read_bytes()[:-1]),
        lambda path: path.write_bytes(path.read_bytes()[:40]),
        lambda path: path.write_bytes(b""),
        lambda path: path.write_bytes(b"something else"),
        other_names,
        without_notes,
        a_folder,
    ],
)
def test_damage_is_noticed_and_mended(cache: Path, damage: Callable[[Path], None]) -> None:
    read = Reader(made())
    keep_decoded("toy", FILES, read)
    (path,) = cache.iterdir()
    damage(path)
    assert same(keep_decoded("toy", FILES, read), read.raw)
    assert read.calls == 2
    assert [left.name for left in cache.iterdir()] == [path.name]  # no draft is left
    assert same(keep_decoded("toy", FILES, read), read.raw)
    assert read.calls == (3 if path.is_dir() else 2)


def test_a_cache_that_cannot_be_written_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("HUSH_CACHE", str(tmp_path / "file"))
    read = Reader(made())
    assert keep_decoded("toy", FILES, read) is read.raw
    assert (tmp_path / "file").read_text() == "in the way"


def test_a_full_disk_leaves_no_draft(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(tensors: object, path: Path, metadata: object) -> None:
        path.write_bytes(b"half of it")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(safetensors.torch, "save_file", full)
    read = Reader(made())
    assert keep_decoded("toy", FILES, read) is read.raw
    assert list(cache.iterdir()) == []


def test_a_read_that_fails_is_not_kept(cache: Path) -> None:
    def broken() -> Raw:
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        keep_decoded("toy", FILES, broken)
    assert not cache.exists()


def test_what_is_changed_in_memory_stays_there(cache: Path) -> None:
    read = Reader(made())
    keep_decoded("toy", FILES, read)
    kept = keep_decoded("toy", FILES, read)
    kept.train.x.zero_()
    assert same(keep_decoded("toy", FILES, read), read.raw)
    assert read.calls == 1


def test_many_at_once_leave_one_whole_file(cache: Path) -> None:
    raws: list[Raw] = []
    threads = [threading.Thread(target=lambda: raws.append(keep_decoded("toy", FILES, made))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(raws) == 8
    assert all(same(raw, made()) for raw in raws)
    assert len(list(cache.iterdir())) == 1
    assert same(keep_decoded("toy", FILES, Reader(made(1))), made())


def test_another_process_finds_it(cache: Path) -> None:
    keep_decoded("toy", FILES, made)
    code = (
        "from hush.tasks.decoded import keep_decoded; from hush.tasks.fetch import File\n"
        "raw = keep_decoded('toy', (File('a', 1, 'a' * 64), File('b', 1, 'b' * 64)), lambda: 1 / 0)\n"
        "print(int(raw.train.x.sum()))"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=dict(os.environ))
    assert int(said.stdout) == int(made().train.x.sum())


def test_where_it_lies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HUSH_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    keep_decoded("toy", FILES, made)
    assert len(list((tmp_path / "xdg" / "hush" / "decoded").iterdir())) == 1
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    keep_decoded("toy", FILES, made)
    assert len(list((tmp_path / "home" / ".cache" / "hush" / "decoded").iterdir())) == 1

    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", homeless)
    read = Reader(made())
    assert keep_decoded("toy", FILES, read) is read.raw
