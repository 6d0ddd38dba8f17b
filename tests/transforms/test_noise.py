from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from scipy import stats

from hush import Round, Transform, UsageError, chain
from hush.core import Chain, Public, State
from hush.secret import Secret
from hush.transforms import Clip, Gaussian

DIM = 40_000


def noise_of(pipeline: Chain, total: torch.Tensor, index: int = 0, key: bytes = b"k" * 32) -> torch.Tensor:
    out, _ = pipeline.decode(total, {}, Round(index, 0, 10.0), (None, None), Secret(key))
    return out - total


@pytest.mark.parametrize("total", [torch.zeros(DIM, dtype=torch.float64), torch.full((DIM,), 7.0, dtype=torch.float64)])
def test_noise_has_the_stated_scale_and_no_other(total: torch.Tensor) -> None:
    noise = noise_of(chain(Clip(0.5), Gaussian(1.4)), total).numpy()
    assert stats.kstest(noise / 0.7, "norm").pvalue > 1e-3

    def chi_square_p(std: float) -> float:
        tail = stats.chi2.cdf((noise**2).sum() / std**2, DIM)
        return float(2 * min(tail, 1 - tail))

    assert chi_square_p(0.7) > 1e-3
    for wrong in (0.97, 1.03, 2 / 3, 1.5):
        assert chi_square_p(0.7 * wrong) < 1e-4


def correlation(a: torch.Tensor, b: torch.Tensor) -> float:
    return abs(float(torch.corrcoef(torch.stack([a, b]))[0, 1]))


def test_noise_is_drawn_once_and_does_not_depend_on_who_came() -> None:
    """An empty cohort's sum is zero; it gets the very noise that a full one gets."""
    pipeline = chain(Clip(0.5), Gaussian(1.4))
    empty = noise_of(pipeline, torch.zeros(DIM, dtype=torch.float64))
    full = noise_of(pipeline, torch.ones(DIM, dtype=torch.float64))
    assert torch.allclose(empty, full, atol=1e-12)
    assert correlation(empty, noise_of(chain(Clip(0.5), Gaussian(1.4 + 1e-12)), torch.zeros(DIM, dtype=torch.float64))) < 0.03


def test_no_other_part_of_a_pipeline_can_repeat_the_noise() -> None:
    @dataclass(frozen=True)
    class Thief(Transform):
        """Draws what it hopes to be the noise, to subtract it."""

        def decode(
            self, total: torch.Tensor, state: State, rnd: Round, public: Public, secret: Secret
        ) -> tuple[torch.Tensor, State]:
            return secret.noise(rnd.index, torch.zeros_like(total), 1.0), state

    pipeline = chain(Thief(), Clip(1.0), Gaussian(1.0))
    zero = torch.zeros(DIM, dtype=torch.float64)
    stolen, _ = pipeline.decode(zero, {}, Round(0, 0, 1.0), (None, None, None), Secret(b"k" * 32))
    alone, _ = pipeline.parts[2].decode(zero, {}, Round(0, 0, 1.0), None, Secret(b"k" * 32).part("2"))
    assert correlation(stolen, alone) < 0.03


def test_rounds_and_keys_give_independent_noise() -> None:
    pipeline = chain(Clip(1.0), Gaussian(1.0))
    zero = torch.zeros(DIM, dtype=torch.float64)
    a, b, c = noise_of(pipeline, zero, 0), noise_of(pipeline, zero, 1), noise_of(pipeline, zero, 0, b"j" * 32)
    for x, y in ((a, b), (a, c)):
        assert abs(float(torch.corrcoef(torch.stack([x, y]))[0, 1])) < 0.04
    halves = torch.corrcoef(torch.stack([a[: DIM // 2], a[DIM // 2 :]]))[0, 1]  # the two halves of Box and Muller
    assert abs(float(halves)) < 0.05
    squares = torch.corrcoef(torch.stack([a[: DIM // 2] ** 2, a[DIM // 2 :] ** 2]))[0, 1]
    assert abs(float(squares)) < 0.05


def test_odd_lengths() -> None:
    assert noise_of(chain(Clip(1.0), Gaussian(1.0)), torch.zeros(7, dtype=torch.float64)).shape == (7,)


def test_noise_that_is_not_set_is_not_drawn() -> None:
    with pytest.raises(UsageError, match="noise is not set"):
        noise_of(chain(Clip(1.0), Gaussian()), torch.zeros(3, dtype=torch.float64))
    for bad in (0.0, -1.0, float("inf"), float("nan")):
        with pytest.raises(UsageError):
            Gaussian(bad)
