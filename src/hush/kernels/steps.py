"""A step of gradient descent in one pass over the weights: momentum, pull and step; and a linear layer's without its gradient.

    velocity <- momentum velocity + gradient + pull (weights - start)        weights <- weights - lr velocity

`lr[1]`, how strongly each client is pulled back to the start (`pull[clients]`) and whether it is `done[clients]` and waits, lie on
the device, so that a graph of launches can be repeated. At the `first` step all are at the start, and have no velocity.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

_BLOCK = 1024


@triton.jit
def _move(  # type: ignore[no-untyped-def]
    p, v, start, lr, pull, done, step, at, real, momentum: tl.constexpr, pulls: tl.constexpr, waits: tl.constexpr,
    first: tl.constexpr,
):  # fmt: skip
    """One client's weights, by a gradient that is here by now."""
    here = tl.load((start if first else p) + at, mask=real, other=0.0)
    if pulls:
        step += tl.load(pull) * (here - tl.load(start + at, mask=real, other=0.0))
    if momentum > 0:
        if not first:
            step += momentum * tl.load(v + at, mask=real, other=0.0)
        tl.store(v + at, step, mask=real)
    if waits:
        step = tl.where(tl.load(done) != 0, 0.0, step)
    tl.store(p + at, here - tl.load(lr) * step, mask=real)


@triton.jit
def _descend(  # type: ignore[no-untyped-def]
    p, v, g, start, lr, pull, done, n, p_client, v_client, g_client,
    momentum: tl.constexpr, pulls: tl.constexpr, waits: tl.constexpr, first: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    client = tl.program_id(1).to(tl.int64)
    at = tl.program_id(0) * block + tl.arange(0, block)
    real = at < n
    step = tl.load(g + client * g_client + at, mask=real, other=0.0)
    p, v = p + client * p_client, v + client * v_client
    _move(p, v, start, lr, pull + client, done + client, step, at, real, momentum, pulls, waits, first)


@triton.jit
def _descend_linear(  # type: ignore[no-untyped-def]
    p, v, x, back, start, lr, pull, done, rows, inputs, outputs, p_client, v_client, x_client, x_row, b_client, b_row,
    momentum: tl.constexpr, pulls: tl.constexpr, waits: tl.constexpr, first: tl.constexpr, precision: tl.constexpr,
    tile_rows: tl.constexpr, tile_out: tl.constexpr, tile_in: tl.constexpr,
):  # fmt: skip
    client = tl.program_id(2).to(tl.int64)
    out, into = tl.program_id(1) * tile_out + tl.arange(0, tile_out), tl.program_id(0) * tile_in + tl.arange(0, tile_in)
    where, real = out[:, None] * inputs + into[None, :], (out < outputs)[:, None] & (into < inputs)[None, :]
    step = tl.zeros((tile_out, tile_in), tl.float32)
    for begin in range(0, rows, tile_rows):
        row = begin + tl.arange(0, tile_rows)
        came = tl.load(
            back + client * b_client + row[None, :] * b_row + out[:, None],
            mask=(row < rows)[None, :] & (out < outputs)[:, None],
            other=0.0,
        )
        given = tl.load(
            x + client * x_client + row[:, None] * x_row + into[None, :],
            mask=(row < rows)[:, None] & (into < inputs)[None, :],
            other=0.0,
        )
        step = tl.dot(came, given, step, input_precision=precision)
    p, v = p + client * p_client, v + client * v_client
    _move(p, v, start, lr, pull + client, done + client, step, where, real, momentum, pulls, waits, first)


def descend(
    weights: Tensor,
    velocity: Tensor | None,
    gradient: Tensor,
    start: Tensor,
    lr: Tensor,
    momentum: float,
    pull: Tensor | None,
    done: Tensor | None,
    first: bool,
) -> None:
    """Of `weights[clients, n]`, rows of a larger buffer, by a gradient of as many."""
    clients, n = weights.shape
    if gradient.stride(1) != 1 and n > 1:
        gradient = gradient.contiguous()
    v = weights if velocity is None else velocity
    _descend[(triton.cdiv(n, _BLOCK), clients)](
        weights, v, gradient, start, lr, lr if pull is None else pull, lr if done is None else done, n,
        weights.stride(0), v.stride(0), gradient.stride(0),
        0.0 if velocity is None else momentum, pull is not None, done is not None, first, _BLOCK,
    )  # fmt: skip


def descend_linear(
    weights: Tensor,
    velocity: Tensor | None,
    x: Tensor,
    back: Tensor,
    start: Tensor,
    lr: Tensor,
    momentum: float,
    pull: Tensor | None,
    done: Tensor | None,
    first: bool,
) -> None:
    """Of `weights[clients, O * I]` by `back[clients, B, O]^T x[clients, B, I]`, which is nowhere written."""
    x, back = (values if values.stride(2) == 1 else values.contiguous() for values in (x, back))
    clients, rows, inputs = x.shape
    outputs = back.shape[2]
    v = weights if velocity is None else velocity
    precision = "tf32" if torch.backends.cuda.matmul.allow_tf32 else "ieee"  # as PyTorch is told for its own products
    grid = (triton.cdiv(inputs, 128), triton.cdiv(outputs, 32), clients)
    _descend_linear[grid](
        weights, v, x, back, start, lr, lr if pull is None else pull, lr if done is None else done, rows, inputs, outputs,
        weights.stride(0), v.stride(0), x.stride(0), x.stride(1), back.stride(0), back.stride(1),
        0.0 if velocity is None else momentum, pull is not None, done is not None, first, precision,
        16 if rows <= 16 else 32, 32, 128, num_warps=4,
    )  # fmt: skip
