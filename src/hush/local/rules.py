"""How vmap finds a function of ours: what one client computes, and what all of them compute at once."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function


class One(Function):
    """Of one client; vmap's rule for many is in a function of its own, which a vmap around this one finds as well."""

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        """Nothing to keep: there are no second derivatives."""


class Many(Function):
    """With an axis of clients in front of every tensor; a vmap around it only makes more of them."""

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        """Nothing to keep: gradients are taken inside of vmap, client by client."""

    @classmethod
    def vmap(cls, info: Any, in_dims: Any, *given: Any) -> tuple[Any, Any]:
        first = clients_first(given[0], in_dims[0], info.batch_size)
        flat = (
            as_rows(clients_first(x, dim, info.batch_size)) if isinstance(x, Tensor) else x
            for x, dim in zip(given, in_dims, strict=True)
        )
        result = call(cls, *flat)
        if isinstance(result, tuple):
            return tuple(parted(one, first) for one in result), (0,) * len(result)
        return parted(result, first), 0


def call(function: type[Function], *given: Any) -> Any:
    """PyTorch's own `apply` has no types."""
    return function.apply(*given)  # type: ignore[no-untyped-call]


def clients_first(values: Tensor, dim: int | None, clients: int) -> Tensor:
    """With the clients' axis in front; the same for all where there is none."""
    return values.expand(clients, *values.shape) if dim is None else values.movedim(dim, 0)


def as_rows(values: Tensor) -> Tensor:
    """The first two axes as one."""
    return values.flatten(0, 1)


def parted(values: Tensor, like: Tensor) -> Tensor:
    """The first axis as the two that these others have."""
    return values.reshape(*like.shape[:2], *values.shape[1:])


def is_nested(values: Tensor) -> bool:
    """Whether there is a vmap around the one whose rule sees these."""
    return bool(torch._C._functorch.is_batchedtensor(values))
