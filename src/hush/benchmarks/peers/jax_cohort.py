"""A whole round as one jitted JAX function: what a user of FedJAX, or of plain JAX, gets.

Clients side by side (`vmap`) or one after another (`scan`, as FedJAX's jit backend has it).
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from hush.benchmarks.pace import Pace


def main() -> None:
    pace = Pace()
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # others have memory on this device, too
    if pace.device == "cpu":
        os.environ["JAX_PLATFORMS"] = "cpu"
    import jax
    import jax.numpy as jnp
    from jax import lax

    from hush.benchmarks.peers.jax_models import NETWORKS, Weights

    if pace.device == "cuda" and jax.default_backend() != "gpu":
        raise ImportError("this JAX has no CUDA", name="jax with CUDA")
    w = pace.workload
    network = NETWORKS[w.model]
    shape = w.shape if w.is_text else (*w.shape[1:], w.shape[0])
    drawn = Weights()
    network(drawn, jnp.zeros((1, *shape), jnp.int32 if w.is_text else jnp.float32))
    start = drawn.drawn
    pace.ready(f"jax {jax.__version__}", sum(p.size for p in start))

    def loss(p: Any, x: Any, y: Any) -> Any:
        return -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(network(Weights(p), x)), y[:, None], 1))

    def client(p: Any, x: Any, y: Any) -> Any:
        def step(carry: Any, batch: Any) -> Any:
            p, v = carry
            g = jax.grad(loss)(p, *batch)
            v = [w.momentum * a + b for a, b in zip(v, g, strict=True)] if w.momentum else g
            return ([a - w.lr * b for a, b in zip(p, v, strict=True)], v if w.momentum else []), None

        begin = [jnp.zeros_like(a) for a in p] if w.momentum else []
        (trained, _), _ = lax.scan(step, (p, begin), (x, y))
        update = [a - b for a, b in zip(p, trained, strict=True)]
        norm = jnp.sqrt(sum(jnp.sum(a * a) for a in update))
        return [a * jnp.minimum(1.0, w.clip / norm) for a in update]

    def side_by_side(p: Any, x: Any, y: Any) -> Any:
        return [jnp.sum(a, 0) for a in jax.vmap(client, (None, 0, 0))(p, x, y)]

    def one_after_another(p: Any, x: Any, y: Any) -> Any:
        def add(total: Any, xy: Any) -> Any:
            return [a + b for a, b in zip(total, client(p, *xy), strict=True)], None

        return lax.scan(add, [jnp.zeros_like(a) for a in p], (x, y))[0]

    total_of = side_by_side if pace.way == "vmap" else one_after_another

    def a_round(p: Any, x: Any, y: Any, ids: Any, key: Any) -> Any:
        total, keys = total_of(p, x[ids], y[ids]), jax.random.split(key, len(p))
        noised = [a + w.noise * w.clip * jax.random.normal(k, a.shape) for a, k in zip(total, keys, strict=True)]
        return [a - b / w.cohort for a, b in zip(p, noised, strict=True)]

    compiled = jax.jit(a_round)
    generator = np.random.default_rng(0)
    sizes = w.population, w.steps, w.batch
    x = generator.integers(0, w.classes, (*sizes, *shape)) if w.is_text else generator.standard_normal((*sizes, *shape), np.float32)
    xs, ys = jnp.asarray(x), jnp.asarray(generator.integers(0, w.classes, sizes))
    with jax.default_matmul_precision("tensorfloat32" if pace.tf32 else "float32"):
        for index in range(pace.rounds):
            ids = jnp.asarray(generator.permutation(w.population)[: w.cohort])
            start = jax.block_until_ready(compiled(start, xs, ys, ids, jax.random.PRNGKey(index)))
            pace.lap()


if __name__ == "__main__":
    main()
