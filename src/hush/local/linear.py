"""A linear layer whose weights' gradient nobody writes: what went in and what came back stand for it.

Its weights may differ from the received ones by what was taken off since (`hush.local.low_rank`), which nobody writes either.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from hush.local.rules import One, as_rows, call, clients_first, is_nested, parted

Pair = tuple[Tensor, Tensor]
"""What went into a layer, `[clients, rows, inputs]`, and what came back, `[clients, rows, outputs]`."""


class Kept:
    """The pairs of a step, by the name of the weights, in the order in which layers came back."""

    def __init__(self) -> None:
        self.pairs: dict[str, list[Pair]] = {}


class Taken(NamedTuple):
    """What one client took off a layer's weights: `share[steps]` of `back[steps, rows, O]^T given[steps, rows, I]`."""

    given: Tensor
    back: Tensor
    share: Tensor


class Linear(One):
    """`x[B, I] w[O, I]^T`, plus `b[O]` where there is one. The gradient in `w` is left to whoever has `kept`."""

    @staticmethod
    def forward(x: Tensor, w: Tensor, b: Tensor | None, name: str, kept: Kept) -> Tensor:
        return F.linear(x, w, b)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs[:2])
        ctx.name, ctx.kept = inputs[3:]

    @staticmethod
    def backward(ctx: Any, back: Tensor) -> tuple[Tensor | None, ...]:
        x, w = ctx.saved_tensors
        of_w = call(LeftOut, x, back, ctx.name, ctx.kept) if ctx.needs_input_grad[1] else None
        of_b = back.sum(0) if ctx.needs_input_grad[2] else None
        return back @ w if ctx.needs_input_grad[0] else None, of_w, of_b, None, None

    @staticmethod
    def vmap(info: Any, in_dims: Any, x: Tensor, w: Tensor, b: Tensor | None, *more: Any) -> tuple[Tensor, int]:
        x = clients_first(x, in_dims[0], info.batch_size)
        if in_dims[1] is None and in_dims[2] is None:
            return parted(F.linear(as_rows(x), w, b), x), 0
        w = clients_first(w, in_dims[1], info.batch_size)
        if b is None:
            return x @ w.mT, 0
        return torch.baddbmm(clients_first(b, in_dims[2], info.batch_size)[:, None], x, w.mT), 0


class Shifted(One):
    """`x[B, I]` under the received weights `w[O, I]` less what the client took off. The gradient in `w` is left out, too."""

    @staticmethod
    def forward(x: Tensor, w: Tensor, given: Tensor, back: Tensor, share: Tensor, name: str, kept: Kept) -> Tensor:
        return Product.forward(x, w, given, back, share)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs[:5])
        ctx.name, ctx.kept = inputs[5:]

    @staticmethod
    def backward(ctx: Any, came: Tensor) -> tuple[Tensor | None, ...]:
        x, w, given, back, share = ctx.saved_tensors
        of_x = call(Product, came, w.mT, back, given, share) if ctx.needs_input_grad[0] else None
        of_w = call(LeftOut, x, came, ctx.name, ctx.kept) if ctx.needs_input_grad[1] else None
        return of_x, of_w, None, None, None, None, None

    @staticmethod
    def vmap(info: Any, in_dims: Any, *all_given: Any) -> tuple[Tensor, int]:
        return Product.vmap(info, in_dims[:5], *all_given[:5])


class Product(One):
    """`x[B, I] w[O, I]^T` less `x` under `share[steps]` of `back[steps, rows, O]^T given[steps, rows, I]`."""

    @staticmethod
    def forward(x: Tensor, w: Tensor, given: Tensor, back: Tensor, share: Tensor) -> Tensor:
        return _product(x[None], w, given[None], back[None], share[None])[0]

    @staticmethod
    def vmap(info: Any, in_dims: Any, x: Tensor, w: Tensor, *taken: Tensor) -> tuple[Tensor, int]:
        x = clients_first(x, in_dims[0], info.batch_size)
        if in_dims[2] is None:  # a module's own vmap: more rows of the same client
            return parted(call(Product, as_rows(x), w, *taken), x), 0
        own = (clients_first(values, dim, info.batch_size) for values, dim in zip(taken, in_dims[2:], strict=True))
        return _product(x, w, *own), 0


def _product(x: Tensor, w: Tensor, given: Tensor, back: Tensor, share: Tensor) -> Tensor:
    """Of `x[clients, B, I]`, all at once: one large product, and two thin ones a client."""
    whole = (as_rows(x) @ w.mT).view(*x.shape[:2], -1)
    if not share.shape[1]:
        return whole
    alike = (x @ given.flatten(1, 2).mT).unflatten(2, given.shape[1:3]) * share[:, None, :, None]  # type: ignore[no-untyped-call]
    return torch.baddbmm(whole, alike.flatten(2), back.flatten(1, 2), alpha=-1)


class LeftOut(One):
    """Zeros in the place of `back^T x`, without memory; the two are kept."""

    @staticmethod
    def forward(x: Tensor, back: Tensor, name: str, kept: Kept) -> Tensor:
        kept.pairs.setdefault(name, []).append((x[None], back[None]))
        return x.new_zeros(()).expand(back.shape[-1], x.shape[-1])

    @staticmethod
    def vmap(info: Any, in_dims: Any, x: Tensor, back: Tensor, name: str, kept: Kept) -> tuple[Tensor, int | None]:
        x, back = (clients_first(values, dim, info.batch_size) for values, dim in zip((x, back), in_dims[:2], strict=True))
        if is_nested(x) or is_nested(back):  # a module's own vmap: more rows of the same client
            return call(LeftOut, as_rows(x), as_rows(back), name, kept), None
        kept.pairs.setdefault(name, []).append((x, back))
        return x.new_zeros(()).expand(info.batch_size, back.shape[-1], x.shape[-1]), 0
