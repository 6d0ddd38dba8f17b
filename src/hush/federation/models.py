"""The model on its way down: whole, or what has changed of it since the one that a client holds, where that is shorter.

Values are told and not differences, so that a client holds the server's very bits. Model and changes are public to all clients.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from hush.federation import letters
from hush.federation.letters import BadLetter
from hush.transforms.sparsify import mask_bits


class Broadcast(NamedTuple):
    """What a letter brings a client that trains."""

    head: dict[str, Any]
    pieces: list[bytes]
    counted: int
    """Bytes of it, as the method counts them."""


class SentModels:
    """The server's: which model each client holds, and in which of them each coordinate last changed. That is two vectors as long
    as the model, however many clients hold however old ones."""

    def __init__(self) -> None:
        self._params = torch.empty(0)
        self._public: tuple[Any, ...] = ()
        self._counted = 0
        self._changed = torch.empty(0, dtype=torch.int32)
        """For each coordinate the first model that has it as it is now."""
        self._latest = 0
        self._held: dict[int, tuple[int, str]] = {}
        self._made: dict[int | None, Broadcast] = {}
        self.name = ""

    def take(self, params: Tensor, public: tuple[Any, ...], counted_bits: int) -> None:
        """The model of a round, and what clients get besides it: so many bits, as its method counts them."""
        before, self._params = self._params, params.detach().cpu().clone()
        self._public, self._counted, self._made = public, -(-counted_bits // 8), {}
        self.name = name_of(self._params)
        if not len(before):
            self._changed = torch.zeros(len(params), dtype=torch.int32)
        elif bool((moved := _bits(self._params) != _bits(before)).any()):
            self._latest += 1
            self._changed[moved] = self._latest

    def broadcast(self, number: int) -> Broadcast:
        """What this client is sent. Until it answers nobody knows what it holds."""
        model, base = self._held.pop(number, (None, ""))
        if None not in self._made:
            self._made[None] = self._whole()
        if model is not None and model not in self._made:
            self._made[model] = min(self._since(model, base), self._made[None], key=_length)  # a whole one is there once
        return self._made[model]

    def answered(self, number: int) -> None:
        """It trained on the model that it was sent last, so it holds it."""
        self._held[number] = self._latest, self.name

    def _whole(self) -> Broadcast:
        told, pieces = letters.pack([self._params, *self._public], len(self._params))
        return Broadcast({"broadcast": told, "model": self.name}, pieces, self._params.nbytes + self._counted)

    def _since(self, model: int, base: str) -> Broadcast:
        where = (self._changed > model).nonzero().flatten()
        told, pieces = letters.pack([where, self._params[where], *self._public], len(self._params))
        bits = 8 * self._params[where].nbytes + mask_bits(len(where), len(self._params))
        return Broadcast({"broadcast": told, "model": self.name, "base": base}, pieces, -(-bits // 8) + self._counted)


class Lacking(Exception):
    """A client was told what changed of a model that it does not hold."""


@dataclass
class HeldModel:
    """A client's: the last model that it got."""

    dim: int
    parts: int
    """Of the pipeline: each may be told something besides the model."""
    name: str = ""
    params: Tensor | None = None

    def receive(self, head: dict[str, Any], pieces: tuple[bytes, ...]) -> tuple[list[Any], int]:
        """The model and what came with it, and how many of a letter's pieces that took. `Lacking` leaves everything as it was."""
        told, name, base = head.get("broadcast") or [], head.get("model"), head.get("base")
        if not isinstance(told, list) or len(told) > self.parts + 2:
            raise BadLetter("A letter does not say what its pieces are.")
        if base is not None and (self.params is None or base != self.name):
            raise Lacking
        count = sum(isinstance(item, list) for item in told)
        values = letters.unpack(told, pieces[:count], self.dim)
        if base is not None:
            values = [self._changed(values), *values[2:]]
        if name is not None and values:
            if not isinstance(values[0], Tensor) or name_of(values[0]) != name:
                raise BadLetter("A letter brings another model than it names.")
            self.params, self.name = values[0], name
        return values, count

    def _changed(self, values: list[Any]) -> Tensor:
        """A copy: whoever trains on the last one has it still."""
        assert self.params is not None
        try:
            where, new = values[:2]
            return self.params.index_copy(0, where, new)
        except (ValueError, TypeError, IndexError, RuntimeError):
            raise BadLetter("A letter does not say what has changed of a model.") from None


def name_of(params: Tensor) -> str:
    """A digest of its bits."""
    held = params.detach().cpu().contiguous()
    return hashlib.sha256(held.view(-1).view(torch.uint8).numpy().data).hexdigest()


def _bits(params: Tensor) -> Tensor:
    """As whole numbers, which are equal where all bits are: -0.0 is not 0.0."""
    return params.view(torch.int64 if params.element_size() == 8 else torch.int32)


def _length(made: Broadcast) -> int:
    return sum(map(len, made.pieces))
