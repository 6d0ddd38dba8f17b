"""Shakespeare's plays as clients, the way LEAF makes them: one client is one role in one play.

An example is 80 characters of what a role says, and its target the character after them. The steps and their numbers are
LEAF's; they are bound to one text, the posting of 1 September 2011 of Project Gutenberg's book 100.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hush.errors import DataError, UsageError
from hush.tasks.raw import Raw
from hush.tasks.task import Examples

FILE = "pg100.txt"
ALPHABET = "\n !\"&'(),-.0123456789:;>?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijklmnopqrstuvwxyz}"
LENGTH = 80
APART = LENGTH - 1
"""So many samples between train and test are left out: no test input shares a character with a training input."""

Play = dict[str, list[str]]
"""What each role says, line by line."""

_AUTHOR = "by William Shakespeare"
_LAST_LINE = 124_195
_UNINDENTED = "THE COMEDY OF ERRORS"
_SPEAKER = re.compile(r"  ([A-Za-z][A-Za-z ]*)\. (.*)")


def read_shakespeare(paths: Mapping[str, Path], *, fraction: float = 0.9, least: int = 0) -> Raw:
    """The clients of LEAF. Each trains on the first `fraction` of its samples; fewer than `least`, and it is left out."""
    path = paths[FILE]
    try:
        text = path.read_text(encoding="utf-8")
        return split(clients(plays(text)), fraction=fraction, least=least)
    except (OSError, UnicodeDecodeError, DataError) as error:
        raise DataError(f"{path} cannot be read ({error}): fetch it again.") from error


def plays(text: str) -> dict[str, Play]:
    """LEAF's steps 1 to 6: the roles of each play that has at least two."""
    lines = text.split("\n")[1:]
    begins = [i for i, line in enumerate(lines) if _AUTHOR in line]
    if len(begins) < 2:
        raise DataError("it holds no play after the sonnets")
    found: dict[str, Play] = {}
    play: Play = {}
    title, speaker = "", ""
    for i in range(begins[1], min(len(lines), _LAST_LINE + 1)):
        line = lines[i]
        if _AUTHOR in line:
            title, speaker = _title(lines, i), ""
            play = found.setdefault(title, {})
            continue
        speaker, said = _spoken(line, speaker, indented=title != _UNINDENTED)
        if said is not None:
            play.setdefault(speaker, []).append(said)
    return {title: roles for title, roles in found.items() if len(roles) > 1}


def clients(found: Mapping[str, Play]) -> dict[str, str]:
    """LEAF's steps 6 to 8: what each role says that has more than two lines and at least one sample."""
    said = {}
    for title, roles in found.items():
        for role, lines in roles.items():
            text = re.sub("  +", " ", "".join(f"{line} " for line in lines))
            if len(lines) > 2 and len(text) > LENGTH:
                said[re.sub(r"\W+", "_", f"{title}_{role}".replace(" ", "_"))] = text
    return said


def split(said: Mapping[str, str], *, fraction: float = 0.9, least: int = 0) -> Raw:
    """LEAF's steps 9 and 10: samples of each client in their order, first those to train on, then, 79 later, those to test."""
    if not 0 < fraction < 1:
        raise UsageError(f"A fraction of {fraction} leaves nothing to train on or nothing to test: take one between 0 and 1.")
    if not said:
        raise DataError("it holds no role with a sample")
    names, train, test = [], [], []
    start = 0
    for name, text in said.items():
        samples = len(text) - LENGTH
        cut = 1 if samples == 2 else max(1, int(fraction * samples))
        if samples >= max(1, least) and cut + APART < samples:
            names.append(name)
            train.append(np.arange(start, start + cut))
            test.append(np.arange(start + cut + APART, start + samples))
        start += len(text)
    if not names:
        raise UsageError(f"No client has samples for training and for testing at fraction {fraction} and at least {least} samples.")
    codes = _codes("".join(said.values()))
    return Raw(_windows(codes, train), _windows(codes, test), _owners(train), _owners(test), tuple(names))


def _title(lines: list[str], i: int) -> str:
    """The nearest line above that is not empty, from the second to the sixth, else the seventh."""
    above = [lines[max(0, i - k)].strip() for k in range(2, 8)]
    return next((line for line in above if line), "")


def _spoken(line: str, speaker: str, *, indented: bool) -> tuple[str, str | None]:
    """Who speaks from this line on (nobody: an empty name), and what of it is said, if anything."""
    heading = _SPEAKER.match(line if indented else f"  {line}")
    if heading:
        name = heading[1].upper()
        return ("", None) if not indented and name.startswith("ACT ") else (name, heading[2])
    if not indented and line.startswith("<"):
        return "", None
    if speaker and not indented:
        return speaker, line
    return speaker, line[4:] if speaker and line.startswith("    ") else None


def _codes(text: str) -> NDArray[np.uint8]:
    """Every character as its place in the alphabet."""
    if strange := sorted(set(text) - set(ALPHABET)):
        raise DataError(f"it holds the character {strange[0]!r}, which LEAF does not know")
    place = np.zeros(128, dtype=np.uint8)
    place[np.frombuffer(ALPHABET.encode(), dtype=np.uint8)] = np.arange(len(ALPHABET))
    return place[np.frombuffer(text.encode(), dtype=np.uint8)]


def _windows(codes: NDArray[np.uint8], starts: list[NDArray[np.int64]]) -> Examples:
    first = np.concatenate(starts)
    x = np.lib.stride_tricks.sliding_window_view(codes, LENGTH)[first]
    return Examples(torch.from_numpy(x), torch.from_numpy(codes[first + LENGTH].astype(np.int64)))


def _owners(starts: list[NDArray[np.int64]]) -> Tensor:
    return torch.arange(len(starts)).repeat_interleave(torch.tensor([len(part) for part in starts]))
