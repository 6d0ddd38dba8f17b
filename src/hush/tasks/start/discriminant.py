"""Which directions tell kinds apart: Fisher's discriminant, in closed form."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Spread:
    """How features of labelled examples spread: their mean, the covariance within kinds, and the kinds' means."""

    mean: Tensor
    within: Tensor
    kinds: Tensor

    @staticmethod
    def of(features: Tensor, labels: Tensor) -> Spread:
        count = torch.bincount(labels)
        means = features.new_zeros(len(count), features.shape[1]).index_add_(0, labels, features) / count.clamp(min=1)[:, None]
        rest = features - means[labels]
        mean = features.mean(0)
        return Spread(mean, rest.T @ rest / len(rest), (means - mean)[count > 0])

    def mixed(self, other: Spread) -> Spread:
        """With the mean of the other, half of each covariance, and the kinds of both, which count alike however many they are."""
        alike = math.sqrt(len(self.kinds) / len(other.kinds))
        return Spread(other.mean, (self.within + other.within) / 2, torch.cat([self.kinds, alike * other.kinds]))


def directions(spread: Spread, count: int, ridge: float) -> Tensor:
    """`[features, count]`: the directions in which kinds differ most, each as spread out within kinds as the others.

    A ridge of so many mean variances keeps directions apart that no example showed.
    """
    within = spread.within.double()
    eye = torch.eye(len(within), dtype=torch.float64, device=within.device)
    lower = torch.linalg.cholesky(within + ridge * within.diagonal().mean() * eye)
    between = torch.linalg.solve_triangular(lower, spread.kinds.T.double(), upper=False)
    values, right = torch.linalg.eigh(between.T @ between)  # of as many kinds as there are, which is quicker than between's own
    kept = values > 1e-9 * values.max()
    left = (between @ right[:, kept] / values[kept].sqrt()).flip(1)
    if left.shape[1] < count:  # fewer kinds than directions: others, in any order, that are as good as none
        left = torch.linalg.qr(torch.cat([left, eye[:, :count]], dim=1)).Q
    found: Tensor = torch.linalg.solve_triangular(lower.T, left[:, :count], upper=True)
    return found
