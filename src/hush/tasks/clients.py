"""Who holds what: every client's examples in one tensor, client after client."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset, IterableDataset, TensorDataset, default_collate

from hush.core import Shard
from hush.errors import UsageError


class Examples(NamedTuple):
    """Inputs and targets, row by row."""

    x: Tensor
    y: Tensor


Place = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
"""Inputs and targets, moved to a device and into the types that a model takes."""
_PIECE = 1 << 26
"""Bytes that are looked at together where every example is."""

Part = tuple[Tensor, Tensor] | Dataset[Any]
"""What one client holds: a pair of tensors, or a data set of PyTorch's that gives (input, target) pairs."""


@dataclass(frozen=True)
class Clients:
    """Every client's examples in one tensor, client after client."""

    x: Tensor
    y: Tensor
    sizes: Tensor
    persons: Tensor | None = None
    """Of each example: whose it is, as a number; None where that is not known."""
    numbers: Tensor | None = None
    """Of each example: what its own randomness goes by (`Shard.numbers`)."""

    def __post_init__(self) -> None:
        if isinstance(self.sizes, list | tuple):
            object.__setattr__(self, "sizes", torch.tensor(self.sizes))
        if isinstance(self.sizes, Tensor) and (self.sizes.is_floating_point() or self.sizes.dim() != 1):
            raise UsageError("Clients' sizes are whole numbers, one for each client.")
        if not all(isinstance(t, Tensor) for t in (self.x, self.y, self.sizes)):
            raise UsageError("Clients are made of torch tensors: convert arrays with torch.from_numpy.")
        if len(self.x) != len(self.y) or int(self.sizes.sum()) != len(self.x) or bool((self.sizes < 0).any()):
            raise UsageError(
                f"{len(self.x)} inputs, {len(self.y)} targets and clients' sizes of {int(self.sizes.sum())} in all differ."
            )
        persons = self.persons
        if persons is not None and (not isinstance(persons, Tensor) or persons.is_floating_point() or len(persons) != len(self.x)):
            raise UsageError("Persons are a tensor of whole numbers, one for each example.")
        for name in ("x", "y"):
            object.__setattr__(self, name, in_order(getattr(self, name)))

    @staticmethod
    def of(parts: Sequence[Part] | Mapping[Any, Part]) -> Clients:
        """From what each client holds: an (inputs, targets) pair of tensors, or a `torch.utils.data.Dataset`."""
        held = list(parts.values()) if isinstance(parts, Mapping) else list(parts)
        if not held:
            raise UsageError("A task needs at least one client.")
        pairs = [_pair(i, part) for i, part in enumerate(held)]
        like = next((pair for pair in pairs if pair is not None), None)
        if like is None:
            raise UsageError(f"None of the {len(held)} clients has an example.")
        whole = [pair if pair is not None else Examples(like.x[:0], like.y[:0]) for pair in pairs]
        for i, (x, y) in enumerate(whole):
            if len(x) != len(y):
                raise UsageError(f"Client {i} has {len(x)} inputs and {len(y)} targets.")
            for name, own, first in (("inputs", x, like.x), ("targets", y, like.y)):
                if own.dtype != first.dtype:
                    raise UsageError(f"Client {i} has {name} of {own.dtype} where others have {first.dtype}: make them alike.")
                if own.shape[1:] != first.shape[1:]:
                    raise UsageError(
                        f"Client {i} has {name} of shape {tuple(own.shape[1:])} where others have {tuple(first.shape[1:])}."
                    )
        return Clients(torch.cat([x for x, _ in whole]), torch.cat([y for _, y in whole]), torch.tensor([len(x) for x, _ in whole]))

    @property
    def count(self) -> int:
        return len(self.sizes)

    @property
    def owner(self) -> Tensor:
        """The client of each example."""
        return torch.repeat_interleave(torch.arange(self.count, device=self.sizes.device), self.sizes)

    @property
    def total(self) -> int:
        """How many examples there are."""
        return len(self.x)

    def shard(self, ids: Tensor) -> Shard:
        """The clients `ids`, reading the same tensors: nothing is copied. Nobody, -1, has nothing."""
        ids, place = ids.cpu(), self.x.device  # who has what is known to the host, which need not wait for a device
        start, size = (values[ids.clamp_min(0)].masked_fill(ids < 0, 0) for values in (self._starts, self.sizes))
        return Shard(self.x, self.y, start.to(place), size.to(place), numbers=self.numbers)

    @cached_property
    def _starts(self) -> Tensor:
        return torch.cumsum(self.sizes, 0) - self.sizes

    def expect(self, ids: Tensor) -> None:
        """That their shard will be asked for soon."""

    def pieces(self) -> Iterator[tuple[int, Examples]]:
        """All examples, some at a time, and the number of the first of these."""
        most = rows_in_a_piece(Examples(self.x, self.y))
        for first in range(0, len(self.x), most):
            yield first, Examples(self.x[first : first + most], self.y[first : first + most])

    def here_and_there(self, most: int) -> Examples:
        """About so many examples at the most, of clients that lie far apart."""
        every = max(1, -(-len(self.x) // most))
        return Examples(self.x[::every], self.y[::every])

    def told(self) -> list[Tensor]:
        """What a fingerprint of these clients is made from."""
        return [self.x, self.y, self.sizes]

    def placed(self, device: torch.device, place: Place) -> Clients:
        """The same clients on a device, in the types that a model takes."""
        return Clients(*place(self.x, self.y), self.sizes.cpu(), self.persons)


def in_order(values: Tensor) -> Tensor:
    """The same values row after row in memory. PyTorch picks another convolution for images that lie otherwise, all of them, and
    how a concatenation lies is decided by its parts: by one client, for everybody. A view of a flat one has no odd strides left,
    which those of a single channel may keep.
    """
    return values.contiguous().flatten().view(values.shape)


def as_they_are(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Examples that are placed already."""
    return x, y


def rows_in_a_piece(like: Examples) -> int:
    """How many examples such as these are looked at together."""
    return max(1, _PIECE // max(1, sum(values[:1].nbytes for values in like)))


def whole(examples: Examples) -> Shard:
    """All examples as the data of one client: how the server trains on public data."""
    device = examples.x.device
    return Shard(*examples, torch.zeros(1, dtype=torch.int64, device=device), torch.tensor([len(examples.x)], device=device))


def _pair(i: int, part: object) -> Examples | None:
    """Inputs and targets of client `i`; None where it has none and nothing says of what shape."""
    if isinstance(part, TensorDataset) and len(part.tensors) == 2:
        return Examples(*part.tensors)
    if isinstance(part, Dataset):
        return _read(i, part)
    if isinstance(part, tuple | list) and len(part) == 2 and all(isinstance(t, np.ndarray) for t in part):
        return Examples(*(_single(torch.from_numpy(np.ascontiguousarray(t))) for t in part))
    if not isinstance(part, tuple | list) or len(part) != 2 or not all(isinstance(t, Tensor) for t in part):
        raise UsageError(
            f"Client {i} is {type(part).__name__}, where a pair of torch tensors (inputs, targets) or a Dataset of PyTorch's goes."
        )
    return Examples(*part)


def _read(i: int, data: Dataset[Any]) -> Examples | None:
    """All of a data set, example by example."""
    try:
        rows: Iterable[Any] = data if isinstance(data, IterableDataset) else (data[k] for k in range(len(data)))  # type: ignore[arg-type]
        pairs = [(x, y) for x, y in rows]
        if not pairs:
            return None
        x, y = default_collate(pairs)
    except (TypeError, ValueError, RuntimeError, IndexError) as error:
        raise UsageError(
            f"Client {i}'s data set does not give (input, target) pairs of tensors or numbers of one shape ({_line(error)}): "
            "give it a transform, such as torchvision's ToTensor()."
        ) from error
    except Exception as error:  # a user's own code may raise anything
        raise UsageError(f"Client {i}'s data set cannot be read: {type(error).__name__}: {_line(error)}") from error
    if not isinstance(x, Tensor) or not isinstance(y, Tensor):
        raise UsageError(f"Client {i}'s data set gives {type(x).__name__} and {type(y).__name__}, where tensors or numbers go.")
    return Examples(_single(x), _single(y))


def _single(values: Tensor) -> Tensor:
    """In the precision of models: numpy's own is double."""
    return values.float() if values.dtype is torch.float64 else values


def _line(error: Exception) -> str:
    return str(error).strip().split("\n")[0][:120]
