"""One's own methods, models and data sets, without touching the package.

    hush run mine.py:fed_soft          a method in a file
    [project.entry-points."hush.methods"]
    fed-soft = "my_package:fed_soft"   or in a package that is installed; likewise hush.models and hush.data

What was found is named on certificates: a file by its hash, a package by its version.
"""

from __future__ import annotations

import hashlib
import importlib.util
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

from hush.errors import DataError, UsageError

_IN_FILE = ".py:"


class Found(NamedTuple):
    """Something of the user's own, and what names its code."""

    value: Any
    code: str


def is_in_file(name: str) -> bool:
    """Whether a name is `FILE.py:NAME`."""
    return _IN_FILE in name


def shown(name: str) -> str:
    """A name for people: of a file not where it lies."""
    return f"{_split(name)[0].name}:{_split(name)[1]}" if is_in_file(name) else name


def code_of(group: str, name: str | None) -> str | None:
    """What names the code of something that is not Hush's: a file's hash, or a package's version."""
    if name is None:
        return None
    if is_in_file(name):
        return from_file(name).code
    return installed(group)[name].code if name in installed(group) else None


def absolute(name: str) -> str:
    """The same with the whole path, so that it is found from elsewhere."""
    place, name_there = _split(name)
    return f"{place.resolve()}:{name_there}"


def from_file(name: str) -> Found:
    """What `FILE.py:NAME` names. The file is run, as Python runs what it imports."""
    place, name_there = _split(name)
    module, digest = opened(place)
    if not hasattr(module, name_there):
        public = [key for key in vars(module) if not key.startswith("_")]
        raise UsageError(f"{place.name} has nothing called '{name_there}'; it has {', '.join(public[-8:])}.")
    return Found(getattr(module, name_there), f"{place.name} sha256 {digest}")


_GIVEN: ContextVar[Mapping[str, Path] | None] = ContextVar("files that may be run", default=None)


@contextmanager
def running_only(files: Iterable[Path]) -> Iterator[None]:
    """In here no other file is run, whatever settings name it: they may be a stranger's, and the file as well. One of the same
    name as one of these is this one."""
    before = _GIVEN.set({file.name: file for file in files})
    try:
        yield
    finally:
        _GIVEN.reset(before)


def opened(place: Path) -> tuple[Any, str]:
    """A file as a module, and its hash."""
    given = _GIVEN.get()
    if given is not None and place.name not in given:
        raise DataError(f"{place.name} is not Hush's own, and is run only where you say so: read it, and give it (--code FILE.py)")
    place = place if given is None else given[place.name]
    try:
        digest = hashlib.sha256(place.read_bytes()).hexdigest()
    except OSError as error:
        raise DataError(f"{place} cannot be read: {error.strerror}.") from error
    return _module(place.resolve(), digest), digest


def _split(name: str) -> tuple[Path, str]:
    place, _, name_there = name.rpartition(":")
    return Path(place), name_there


@cache
def _module(place: Path, digest: str) -> Any:
    """A file as a module, once for what it holds. Its name is not one of Hush's, so that nothing in it counts as proved."""
    name = f"own_{digest[:12]}_{place.stem}"
    spec = importlib.util.spec_from_file_location(name, place)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up
    try:
        spec.loader.exec_module(module)
    except UsageError:
        raise
    except Exception as error:
        del sys.modules[name]
        raise UsageError(f"{place.name} cannot be imported: {type(error).__name__}: {error}.") from error
    return module


@cache
def installed(group: str) -> dict[str, Found]:
    """What packages offer under an entry point such as `hush.methods`, by name."""
    found = {}
    for point in metadata.entry_points(group=group):
        try:
            value = point.load()
        except Exception as error:
            raise UsageError(f"{point.value}, which a package offers as {group} '{point.name}', fails: {error}.") from error
        package = point.dist.metadata["Name"] if point.dist is not None else "unknown"
        found[point.name] = Found(value, f"{package} {point.dist.version if point.dist is not None else ''}".strip())
    return found
