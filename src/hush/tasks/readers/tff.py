"""FEMNIST by writer and Shakespeare by role, as TensorFlow Federated (TFF) published them: HDF5 files in a tar file."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hush.errors import UsageError
from hush.local.flat import IGNORED
from hush.tasks.raw import Raw
from hush.tasks.readers.archive import tar_members
from hush.tasks.readers.damaged import damaged, reading
from hush.tasks.task import Examples

FEMNIST = "fed_emnist.tar.bz2"
SHAKESPEARE = "shakespeare.tar.bz2"

ALPHABET = "dhlptx@DHLPTX $(,048cgkoswCGKOSW[_#'/37;?bfjnrvzBFJNRVZ\"&*.26:\naeimquyAEIMQUY]!%)-159\r"
"""TFF's 86 characters, in its order: the first is token 1."""
PAD, UNKNOWN, BEGIN, END = 0, len(ALPHABET) + 1, len(ALPHABET) + 2, len(ALPHABET) + 3
TOKENS = len(ALPHABET) + 4
LENGTH = 80

_TOKEN = np.full(256, UNKNOWN, dtype=np.uint8)
"""Of each byte."""
_TOKEN[np.frombuffer(ALPHABET.encode(), dtype=np.uint8)] = np.arange(1, UNKNOWN)

Sizes = dict[str, int]
"""How many examples each client holds, in the order in which they lie."""
Part = tuple[Examples, Sizes]
"""What there is to train on, or to test on."""


def read_femnist(paths: Mapping[str, Path]) -> Raw:
    """62 classes by writer: digits, capital letters, small letters. Ink is 0 and background 255, the reverse of EMNIST.

    The files hold pixels from 0 to 1; kept is the nearest byte, round(255 p).
    """
    return _read(paths[FEMNIST], "fed_emnist", _images)


def read_tff_shakespeare(paths: Mapping[str, Path]) -> Raw:
    """Chunks of 80 tokens by role, with a target at every position: the next token.

    Each snippet is framed by its begin and end, padded to a multiple of 81 and cut. Targets that are padding are -100, which
    cross-entropy leaves out; TFF writes 0 there, and leaves the same ones out of its accuracy. A chunk that holds nothing
    but an end has no target: it is kept, so that clients have as many examples as in TFF.
    """
    return _read(paths[SHAKESPEARE], "shakespeare", _chunks)


def tokens(snippets: Iterable[bytes]) -> NDArray[np.uint8]:
    """TFF's tokens of some text, 81 in a row."""
    framed = [np.concatenate([[BEGIN], _TOKEN[np.frombuffer(snippet, dtype=np.uint8)], [END]]) for snippet in snippets]
    padded = [np.pad(row, (0, -len(row) % (LENGTH + 1)), constant_values=PAD).astype(np.uint8) for row in framed]
    return np.concatenate([np.empty(0, dtype=np.uint8), *padded]).reshape(-1, LENGTH + 1)


def by_client(train: Part, test: Part, name: str) -> Raw:
    """Both parts of a data set, of which `name` is the second. Clients are numbered by their names in order, as in TFF."""
    (examples, held), (tests, tested) = train, test
    number = {client: i for i, client in enumerate(held)}
    if strange := [client for client in tested if client not in number]:
        raise damaged(f"{name} holds the client {strange[0]}, who has nothing to train on")
    return Raw(examples, tests, _owners(held, number), _owners(tested, number), tuple(held))


def images(name: str, sizes: Sizes, runs: Iterable[tuple[str, NDArray[Any], NDArray[Any]]]) -> Part:
    """FEMNIST from runs of (client, pixels, labels), in whatever order they come: only one at a time lies there as floats."""
    x = np.empty((sum(sizes.values()), 1, 28, 28), dtype=np.uint8)
    y = np.empty(len(x), dtype=np.int64)
    start = dict(zip(sizes, accumulate(sizes.values(), initial=0), strict=False))  # where a client's next example goes
    for client, pixels, labels in runs:
        size, flat = len(labels), labels.reshape(-1)  # of shape [n] or [n, 1]
        greys = np.rint(255 * pixels)
        if greys.shape != (size, 28, 28) or not ((greys >= 0) & (greys <= 255)).all():
            raise damaged(f"{name} does not hold {size} images of 28 x 28 pixels from 0 to 1 for client {client}")
        if len(flat) != size or not ((flat >= 0) & (flat < 62)).all():
            raise damaged(f"{name} has a label that is not one of 0 to 61 for client {client}")
        end = start[client] + size
        x[start[client] : end, 0] = greys
        y[start[client] : end] = flat
        start[client] = end
    return Examples(torch.from_numpy(x), torch.from_numpy(y)), sizes


def chunks(name: str, said: Mapping[str, list[bytes]]) -> Part:
    """Shakespeare from the snippets of each client."""
    rows = {}
    for client, snippets in said.items():
        if not all(isinstance(snippet, bytes) for snippet in snippets):
            raise damaged(f"{name} holds something else than text for client {client}")
        rows[client] = tokens(snippets)
    every = torch.from_numpy(np.concatenate(list(rows.values())))
    targets = every[:, 1:].long()
    examples = Examples(every[:, :-1].contiguous(), targets.masked_fill_(targets == PAD, IGNORED))
    return examples, {client: len(row) for client, row in rows.items()}


def _owners(sizes: Sizes, number: Mapping[str, int]) -> Tensor:
    clients = torch.tensor([number[client] for client in sizes], dtype=torch.int64)
    return clients.repeat_interleave(torch.tensor(list(sizes.values()), dtype=torch.int64))


def _read(path: Path, stem: str, convert: Callable[[str, Any], Part]) -> Raw:
    try:
        import h5py  # type: ignore[import-untyped, unused-ignore]
    except ImportError:
        raise UsageError("TensorFlow Federated's data sets need h5py: pip install 'hush-fl[h5]'.") from None
    train, test = (f"{stem}_{part}.h5" for part in ("train", "test"))
    parts = {}
    for member, content in tar_members(path, (train, test)):
        name = f"{member} of {path}"
        with reading(name, Exception), h5py.File(content, "r") as file:  # the library answers damage with errors of many kinds
            parts[member] = convert(name, file["examples"])
    return by_client(parts[train], parts[test], f"{test} of {path}")


def _images(name: str, clients: Any) -> Part:
    sizes = {client: len(clients[client]["label"]) for client in sorted(clients)}
    return images(name, sizes, ((client, clients[client]["pixels"][()], clients[client]["label"][()]) for client in sizes))


def _chunks(name: str, clients: Any) -> Part:
    return chunks(name, {client: list(clients[client]["snippets"][()]) for client in sorted(clients)})
