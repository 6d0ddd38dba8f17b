"""A data set as its files give it: before anybody decided which client holds what."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from torch import Tensor

from hush.tasks.fetch import File
from hush.tasks.stored import Stored
from hush.tasks.task import Examples


@dataclass(frozen=True)
class Raw:
    """Examples to train on and to test on. Pixels and characters stay bytes; labels are whole numbers from zero."""

    train: Examples
    test: Examples
    owner: Tensor | None = None
    """Of each training example: the client that it naturally belongs to, a whole number from zero."""
    test_owner: Tensor | None = None
    """Of each test example, where those belong to clients too."""
    names: tuple[str, ...] = ()
    """Of the natural clients, by their number."""
    validation: Examples | None = None
    public: Examples | None = None
    """Examples of nobody, where a data set comes with some."""
    persons: Tensor | None = None
    """Of each training example: the person that it is of (`Clients.persons`), where a column says so."""
    test_persons: Tensor | None = None
    other_persons: Mapping[str, Tensor] = field(default_factory=dict)
    """The same of `validation` and `public`, where their tables have that column."""
    stored: Stored | None = None
    """Clients whose examples stay on disk, in the place of `train`."""


Read = Callable[[Mapping[str, Path]], Raw]
"""(paths by file name, each there, whole and verified) to the examples."""


@dataclass(frozen=True)
class Form:
    """One set of files that hold a data set, and how to read it."""

    files: tuple[File, ...]
    read: Read
    slow: bool = False
    """Whether reading takes long enough to keep what was read."""
