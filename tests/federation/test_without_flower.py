"""Flower is an extra: without it one sentence says how it is installed, before anything is made; and other carriers need none."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import hush
from hush.config import RunConfig
from hush.federation import trial

EVERY_WAY_IN = """
import json, sys
from unittest import mock  # of what is typed alone
import hush
from hush.cli.app import run_command
from hush.errors import UsageError

server, client, data, policy, place = sys.argv[1:]
said = {}
typed = {
    "server": ["server", "--federation", server, "dp-fedavg", "--rounds", "1", "--noise", "1", "--delta", "1e-3", "--out", place],
    "client": ["client", "--federation", client, "--data", data, "--policy", policy],
    "local": ["federation", "local", "3", "dp-fedavg", "--rounds", "1", "--noise", "1", "--delta", "1e-3", "--out", place],
}
for name, arguments in typed.items():
    lines = []
    with mock.patch.object(sys, "argv", ["hush", *arguments]), mock.patch("hush.cli.app.say", lines.append):
        try:
            run_command()
        except SystemExit as end:
            said[name] = [end.code, *lines]

def relay():
    from hush.federation import relay

def serve():
    with hush.federation.client(client, data, policy) as one:
        one.serve(once=True)

def run():
    hush.federation.run(server, "dp-fedavg", out=place, rounds=1, noise=1.0, delta=1e-3)

for function in (relay, serve, run):
    try:
        function()
    except UsageError as error:
        said[function.__name__] = [2, f"hush: {error}"]
said["loaded"] = "flwr" in sys.modules
print(json.dumps(said))
"""


def without_flower(place: Path) -> list[str]:
    """Where Python finds everything but Flower."""
    place.mkdir()
    for kind in ("purelib", "platlib"):
        for path in Path(sysconfig.get_path(kind)).iterdir():
            if not path.name.startswith("flwr") and not (place / path.name).exists():
                (place / path.name).symlink_to(path)
    return [str(Path(hush.__file__).parents[1]), str(place)]


def test_every_way_in_says_how_to_install_it_and_leaves_nothing_behind(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("HUSH_HOME", str(tmp_path / "home"))
    made = trial.make(tmp_path / "federation", 3, RunConfig(method="dp-fedavg"), None)
    folder, place = trial.folder_of(tmp_path / "federation", 0), tmp_path / "run"
    given = [made.path, folder, folder / "data.safetensors", tmp_path / "federation" / "policy.toml", place]
    around = os.environ | {"PYTHONPATH": os.pathsep.join(without_flower(tmp_path / "packages"))}
    told = subprocess.run([sys.executable, "-S", "-c", EVERY_WAY_IN, *map(str, given)], env=around, capture_output=True, text=True)
    said = json.loads(told.stdout or "{}")
    sentence = "hush: A federation is carried by Flower, which is not installed: pip install 'hush-fl[federation]'."
    ways = ("server", "client", "local", "relay", "serve", "run")
    assert said == {way: [2, sentence] for way in ways} | {"loaded": False}, told
    assert not place.exists()
    assert not (folder / "diary.json").exists()
