"""What commands say of themselves: plain text, all of it, and no flag that means nothing."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.core import TyperArgument

from hush.cli.app import COMMANDS, app
from hush.cli.commands import Later
from hush.cli.federation_flags import ServerFlags, TrialFlags
from hush.cli.lists import LISTED, listed
from tests.cli.test_cli import hush


def commands(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    yield path, command
    for name, inside in getattr(command, "commands", {}).items():
        yield from commands(inside.loaded() if isinstance(inside, Later) else inside, (*path, name))


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


@pytest.mark.parametrize("name", COMMANDS)
def test_the_line_of_a_command_is_the_first_of_its_own_help(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    line = COMMANDS[name][1]
    assert ALL[(name,)].get_short_help_str(limit=1000) == line
    assert line in " ".join(hush(capsys, "--help")[1].split())


@pytest.mark.parametrize("typed", [["--help"], ["--version"], ["methods"], ["methods", "--json"], ["metods"]], ids=" ".join)
def test_what_says_what_there_is_does_not_wait_for_pytorch(typed: list[str]) -> None:
    """It takes seconds to load, and nobody who asks for help needs it."""
    program = (
        "import sys; from hush.cli import main\n"
        "try: main()\n"
        "except SystemExit: print('loaded:', {'torch', 'scipy', 'dp_accounting'} & sys.modules.keys())"
    )
    done = subprocess.run([sys.executable, "-c", program, *typed], capture_output=True, text=True, check=True)
    assert done.stdout.endswith("loaded: set()\n"), done.stdout + done.stderr


@pytest.mark.parametrize("asked", [["epsilon", "--noise", "1"], ["calibrate", "--epsilon", "4"]], ids=lambda asked: asked[0])
def test_figures_of_clients_do_not_wait_for_pytorch(asked: list[str]) -> None:
    program = (
        "import sys; from hush.cli import main\ntry: main()\nexcept SystemExit as end: sys.exit(end.code or 'torch' in sys.modules)"
    )
    typed = [*asked, "--rounds", "3", "--cohort", "10", "--clients", "100"]
    subprocess.run([sys.executable, "-c", program, *typed], capture_output=True, check=True)


def test_the_list_that_is_kept_is_that_of_the_methods() -> None:
    assert json.loads(LISTED.read_text()) == listed(), "python -m hush.cli.lists writes it anew"


def test_where_nothing_was_typed_help_is_the_answer(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, err = hush(capsys, "ledger")
    assert (out + err).startswith("Usage:")


FEDERATION = {
    "server": (("server", "--federation", "nowhere", "dp-fedavg"), ServerFlags),
    "local": (("federation", "local", "3"), TrialFlags),
}
TYPED = {
    "seeds": ["--seeds", "2"],
    "jobs": ["--jobs", "2"],
    "dry_run": ["--dry-run"],
    "secure": ["--secure"],
    "diagnostics": ["--diagnostics"],
}


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
