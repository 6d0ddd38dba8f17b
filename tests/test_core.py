from __future__ import annotations

import math
from dataclasses import dataclass

import pytest
import torch

from hush import Bound, Round, Transform, UsageError, Wire, chain
from hush.core import Public, State, bound_after, scope, within
from hush.secret import Secret
from hush.transforms import Clip, Gaussian, RandK

RND = Round(index=0, seed=3, cohort=2.0)
SECRET = Secret(b"k" * 32)


@dataclass(frozen=True)
class Affine(Transform):
    """x -> a x + b on the client; the server undoes the factor alone."""

    a: float
    b: float

    def encode(self, x: torch.Tensor, rnd: Round, keys: torch.Tensor, public: Public) -> torch.Tensor:
        return self.a * x + self.b

    def decode(self, total: torch.Tensor, state: State, rnd: Round, public: Public, secret: Secret) -> tuple[torch.Tensor, State]:
        return total / self.a, {"seen": total}

    def init(self, dim: int) -> State:
        return {"seen": torch.zeros(dim)}


def test_encode_runs_left_to_right_and_decode_right_to_left() -> None:
    pipeline = chain(Affine(2.0, 1.0), Affine(10.0, 0.0))
    x = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    keys = torch.arange(2)
    encoded = pipeline.encode(x, RND, keys, (None, None))
    assert encoded.tolist() == [[30.0, 50.0], [70.0, 90.0]]  # (2x + 1) * 10
    state = pipeline.init(2)
    total, after = pipeline.decode(encoded.sum(0), state, RND, (None, None), SECRET)
    assert total.tolist() == [5.0, 7.0]  # 100 / 10 / 2, 140 / 10 / 2
    assert after["1.seen"].tolist() == [100.0, 140.0]
    assert after["0.seen"].tolist() == [10.0, 14.0]


def test_the_identity_is_the_default() -> None:
    x = torch.ones(2, 3)
    t = Transform()
    assert t.encode(x, RND, torch.arange(2), None) is x
    assert t.wire(Wire(3)) == Wire(3)
    assert t.bound(Bound(1.5)) == Bound(1.5)
    assert chain().encode(x, RND, torch.arange(2), ()) is x


def test_a_transform_that_states_no_bound_has_none() -> None:
    """Forgetting `bound` must never pass a clip's promise on to what is no longer clipped."""
    assert math.isinf(bound_after(Affine(2.0, 0.0), Bound(1.0)).l2)

    class Louder(Clip):
        """Inherits Clip's promise about an encode that it replaces."""

        def encode(self, x: torch.Tensor, rnd: Round, keys: torch.Tensor, public: Public) -> torch.Tensor:
            return 100 * super().encode(x, rnd, keys, public)

    assert math.isinf(bound_after(Louder(1.0), Bound(1.0)).l2)
    with pytest.raises(UsageError, match="Louder changes the updates"):
        chain(Louder(1.0), Gaussian(1.0))
    with pytest.raises(UsageError, match="Affine changes the updates and states no bound"):
        chain(Clip(1.0), Affine(2.0, 0.0), Gaussian(1.0))


def test_noise_takes_its_scale_from_the_clip_before_it() -> None:
    noise = chain(Clip(2.0), Clip(0.5), Gaussian(3.0)).parts[-1]
    assert isinstance(noise, Gaussian)
    assert noise.std == 1.5
    with pytest.raises(UsageError, match="Put Clip"):
        chain(Gaussian(1.0))
    with pytest.raises(UsageError, match="RandK scales"):
        chain(Clip(1.0), RandK(0.5), Gaussian(1.0))


def test_chains_nest_flat() -> None:
    assert chain(chain(Clip(1.0)), Gaussian(1.0)).parts == chain(Clip(1.0), Gaussian(1.0)).parts


def test_wire_counts_bits() -> None:
    assert Wire(1000, 32).bytes == 4000
    assert Wire(3, 24).bytes == 9
    assert Wire(3, 1).bytes == 1
    assert chain(RandK(0.1), Clip(1.0)).wire(Wire(1_663_370)).entries == 166_337


def test_scopes_are_inverse() -> None:
    state = {"a": torch.ones(1), "b.c": torch.zeros(2)}
    assert within("x", scope("x", state) | scope("xy", state)) == state
