"""What commands say of themselves: plain text, all of it, and no flag that means nothing."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.core import TyperArgument

from hush.cli.app import app
from hush.cli.federation_flags import ServerFlags, TrialFlags
from tests.cli.test_cli import hush


def commands(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    yield path, command
    for name, inside in getattr(command, "commands", {}).items():
        yield from commands(inside, (*path, name))


ALL = dict(commands(typer.main.get_command(app)))


@pytest.mark.parametrize("path", ALL, ids=" ".join)
def test_help_is_plain_text_and_says_what_every_argument_is(path: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = hush(capsys, *path, "--help")
    assert code == 0
    assert out.startswith("Usage:"), "as everywhere"
    assert "\\" not in out
    assert out.count("rguments:") <= 1
    for argument in ALL[path].params:
        if isinstance(argument, TyperArgument):
            assert re.search(rf"{re.escape(str(argument.human_readable_name).upper())}\W+[A-Z]", out), argument.name


def test_where_nothing_was_typed_help_is_the_answer(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, err = hush(capsys, "ledger")
    assert (out + err).startswith("Usage:")


FEDERATION = {
    "server": (("server", "--federation", "nowhere", "dp-fedavg"), ServerFlags),
    "local": (("federation", "local", "3"), TrialFlags),
}
TYPED = {"seeds": ["--seeds", "2"], "dry_run": ["--dry-run"], "secure": ["--secure"], "diagnostics": ["--diagnostics"]}


@pytest.mark.parametrize(("typed", "flags"), FEDERATION.values(), ids=FEDERATION)
def test_what_means_nothing_to_real_clients_is_not_listed_and_refused_in_one_sentence(
    typed: tuple[str, ...], flags: Any, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = typed[:1] if typed[0] == "server" else typed[:2]
    listed = set(re.findall(r"--[a-z-]+", hush(capsys, *path, "--help")[1]))
    for key in flags.idle:
        flag = f"--{key.replace('_', '-')}"
        assert flag not in listed
        code, out, err = hush(capsys, *typed, *TYPED.get(key, [flag, "1"]))
        assert code == 2
        assert not out
        assert re.fullmatch(rf"hush: [^\n]+: leave {flag} out\.\n", err), err
    assert not list(tmp_path.iterdir()), "nothing was begun"
    assert {"--rounds", "--noise", "--tolerate", "--data"} <= listed
