"""The catalogue's models in JAX, channels innermost, as functions of a list of weights."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax


class Weights:
    """Gives the layers their weights one after another; without any given, draws them."""

    def __init__(self, given: list[Any] | None = None) -> None:
        self._given, self._next, self.drawn = given, 0, list[Any]()

    def take(self, *shape: int, fan_in: int) -> Any:
        if self._given is not None:
            self._next += 1
            return self._given[self._next - 1]
        key = jax.random.fold_in(jax.random.PRNGKey(0), len(self.drawn))
        self.drawn.append(jax.random.normal(key, shape) / math.sqrt(fan_in))
        return self.drawn[-1]


Network = Callable[[Weights, Any], Any]


def dense(w: Weights, x: Any, out: int) -> Any:
    return x @ w.take(x.shape[-1], out, fan_in=x.shape[-1]) + w.take(out, fan_in=out)


def convolve(w: Weights, x: Any, out: int, size: int, pad: int = 0, stride: int = 1, bias: bool = True) -> Any:
    inside = x.shape[-1]
    kernel = w.take(size, size, inside, out, fan_in=size * size * inside)
    y = lax.conv_general_dilated(x, kernel, (stride, stride), [(pad, pad)] * 2, dimension_numbers=("NHWC", "HWIO", "NHWC"))
    return y + w.take(out, fan_in=out) if bias else y


def pool(x: Any) -> Any:
    return lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")


def normed(w: Weights, x: Any, out: int, size: int, stride: int) -> Any:
    """A convolution without bias, and group normalisation of two groups."""
    x = convolve(w, x, out, size, size // 2, stride, bias=False)
    groups = x.reshape(*x.shape[:3], 2, out // 2)
    centred = groups - groups.mean((1, 2, 4), keepdims=True)
    scaled = centred * lax.rsqrt((centred * centred).mean((1, 2, 4), keepdims=True) + 1e-5)
    return scaled.reshape(x.shape) * (1 + w.take(out, fan_in=out)) + w.take(out, fan_in=out)


def flat(x: Any) -> Any:
    return x.reshape(x.shape[0], -1)


def fed_smp_cnn(w: Weights, x: Any) -> Any:
    for channels in (32, 64):
        x = jax.nn.relu(pool(convolve(w, x, channels, 5, 2)))
    return dense(w, jax.nn.relu(dense(w, flat(x), 512)), 10)


def afo_cnn(w: Weights, x: Any) -> Any:
    x = jax.nn.relu(convolve(w, x, 32, 3))
    x = jax.nn.relu(pool(convolve(w, x, 64, 3)))
    return dense(w, jax.nn.relu(dense(w, flat(x), 128)), 10)


def mlp(w: Weights, x: Any) -> Any:
    return dense(w, jax.nn.relu(dense(w, flat(x), 64)), 10)


def resnet18(w: Weights, x: Any) -> Any:
    x = jax.nn.relu(normed(w, x, 64, 3, 1))
    for out, stride in ((64, 1), (64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2), (512, 1)):
        path = normed(w, jax.nn.relu(normed(w, x, out, 3, stride)), out, 3, 1)
        x = jax.nn.relu(path + (x if x.shape[-1] == out and stride == 1 else normed(w, x, out, 1, stride)))
    return dense(w, x.mean((1, 2)), 10)


def char_lstm(w: Weights, codes: Any) -> Any:
    x = w.take(80, 8, fan_in=8)[codes].swapaxes(0, 1)
    for _ in range(2):
        x = _recur(w, x, 256)
    return dense(w, x[-1], 80)


def _recur(w: Weights, x: Any, hidden: int) -> Any:
    inside = w.take(x.shape[-1], 4 * hidden, fan_in=hidden)
    across = w.take(hidden, 4 * hidden, fan_in=hidden)
    bias = w.take(4 * hidden, fan_in=hidden) + w.take(4 * hidden, fan_in=hidden)

    def step(kept: Any, gates: Any) -> Any:
        state, cell = kept
        i, f, g, o = jnp.split(gates + state @ across, 4, axis=-1)
        cell = jax.nn.sigmoid(f) * cell + jax.nn.sigmoid(i) * jnp.tanh(g)
        state = jax.nn.sigmoid(o) * jnp.tanh(cell)
        return (state, cell), state

    zeros = jnp.zeros((x.shape[1], hidden))
    return lax.scan(step, (zeros, zeros), x @ inside + bias)[1]


NETWORKS: dict[str, Network] = {
    "fed-smp-cnn": fed_smp_cnn,
    "afo-cnn": afo_cnn,
    "mlp": mlp,
    "resnet18": resnet18,
    "char-lstm": char_lstm,
}
