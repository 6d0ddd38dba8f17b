"""Images that nobody ever took: drawn by random processes, so that a model can learn to see before it sees anybody's data.

After "Differentially private image classification by learning priors from random processes" (Tang, Panda, Sehwag, Mittal 2023).
A *kind* of image is a few random numbers, its shape; an image of that kind is the shape with other numbers jittered: place, size,
turn, brightness, texture. Telling kinds apart teaches what a label usually depends on, and what not.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional

_EDGE = 25.0
"""How sharp the edge of a body is, in units of half an image."""


class Draws:
    """Random numbers from one generator, a column a name: uniform and normal."""

    def __init__(self, seed: int) -> None:
        self.generator = torch.Generator().manual_seed(seed)  # images, not secrets

    def uniform(self, *shape: int) -> Tensor:
        return torch.rand(*shape, generator=self.generator)

    def normal(self, *shape: int) -> Tensor:
        return torch.randn(*shape, generator=self.generator)

    def coins(self, probability: float, *shape: int) -> Tensor:
        return (self.uniform(*shape) < probability).float()

    def kinds(self, most: int, count: int) -> Tensor:
        return torch.randint(most, (count,), generator=self.generator)


class Parts:
    """Soft superellipses that are painted over each other, or carved out: what limbs, handles and holes are made of."""

    def __init__(self, kinds: int, parts: int, draws: Draws, width: float, present: float) -> None:
        u, n = draws.uniform, draws.normal
        self.parts = parts
        self.x, self.y, self.turn = 0.5 * n(kinds, parts), 0.5 * n(kinds, parts), math.pi * u(kinds, parts)
        self.wide, self.high = 0.06 + width * u(kinds, parts) ** 1.5, 0.1 + 0.6 * u(kinds, parts)
        self.power, self.value = 2 + 6 * u(kinds, parts), 1.5 * u(kinds, parts) - 0.5
        self.there = draws.coins(present, kinds, parts)

    def paint(self, image: Tensor, kind: Tensor, x: Tensor, y: Tensor, draws: Draws, values: Tensor) -> Tensor:
        """Over `image`, with `values[count, parts]`: those below zero carve."""
        n, count = draws.normal, len(kind)
        for part in range(self.parts):

            def own(table: Tensor, part: int = part) -> Tensor:
                return table[kind, part][:, None]

            turn = own(self.turn) + 0.1 * n(count, 1)
            across, down = x - own(self.x) - 0.05 * n(count, 1), y - own(self.y) - 0.05 * n(count, 1)
            u = (turn.cos() * across + turn.sin() * down) / (own(self.wide) * (0.15 * n(count, 1)).exp())
            v = (turn.cos() * down - turn.sin() * across) / (own(self.high) * (0.15 * n(count, 1)).exp())
            radius = u.abs().clamp(1e-3, 3) ** own(self.power) + v.abs().clamp(1e-3, 3) ** own(self.power)
            inside = torch.sigmoid(8 * (1 - radius)) * own(self.there)
            value = values[:, part : part + 1]
            painted = image * (1 - inside) + inside * value.clamp(min=0.05)
            carved = image * (1 - inside * (-3 * own(self.value)).clamp(0, 1))
            image = torch.where(own(self.value) > 0, painted, carved)
        return image


class Silhouettes:
    """A body with a smooth outline, often symmetric, sometimes split; with parts on it; plain, or with a texture."""

    def __init__(self, kinds: int, seed: int) -> None:
        draws = Draws(seed)
        u, n = draws.uniform, draws.normal
        self.kinds = kinds
        self.body, self.lying, self.symmetric = draws.coins(0.75, kinds), draws.coins(0.3, kinds), draws.coins(0.7, kinds)
        self.top, self.bottom, self.width = -1 + 0.6 * u(kinds) ** 1.3, 1 - 0.6 * u(kinds) ** 1.5, 0.15 + 0.5 * u(kinds)
        self.outline, self.phase = n(kinds, 4) * torch.tensor([0.25, 0.2, 0.12, 0.08]), math.pi * u(kinds, 4)
        self.bend = n(kinds, 3) * torch.tensor([0.2, 0.12, 0.08]) * (1 - self.symmetric)[:, None]
        self.split, self.gap, self.crotch = draws.coins(0.25, kinds), 0.05 + 0.2 * u(kinds), -0.8 + 1.2 * u(kinds)
        self.parts = Parts(kinds, 4, draws, width=0.35, present=0.6)
        self.value, self.plain = 0.3 + 0.7 * u(kinds), draws.coins(0.5, kinds)
        self.waves, self.depth = 8 * n(kinds, 2), 0.6 * u(kinds) * draws.coins(0.4, kinds)

    def draw(self, count: int, shape: tuple[int, ...], draws: Draws) -> tuple[Tensor, Tensor]:
        """`[count, channels, height, width]` in [0, 1], each of a random kind, and their kinds."""
        kind = draws.kinds(self.kinds, count)
        gray = self._gray(kind, shape[1:], draws).clamp(0, 1).reshape(count, 1, *shape[1:])
        tints = 0.4 + 0.6 * draws.uniform(count, shape[0], 1, 1) if shape[0] > 1 else torch.ones(count, 1, 1, 1)
        return gray * tints, kind

    def _gray(self, kind: Tensor, size: tuple[int, ...], draws: Draws) -> Tensor:
        n, u, count = draws.normal, draws.uniform, len(kind)

        def own(table: Tensor) -> Tensor:
            return table[kind][:, None]

        x, y = jittered(size, count, draws, turn=0.08)
        lying = own(self.lying) > 0
        across, along = torch.where(lying, y, x), torch.where(lying, x, y)
        width, middle = own(self.width) * (0.12 * n(count, 1)).exp(), torch.zeros_like(x)
        outline, bend = self.outline[kind] + 0.04 * n(count, 4), self.bend[kind] + 0.01 * n(count, 3)
        for j in range(4):
            width = width + outline[:, j : j + 1] * torch.cos((j + 1) * 1.5 * along + self.phase[kind, j][:, None])
        for j in range(3):
            middle = middle + bend[:, j : j + 1] * torch.cos((j + 1) * 1.5 * along + 1.3 * self.phase[kind, j][:, None])
        inside = torch.sigmoid(_EDGE * (width - (across - middle).abs()))
        inside *= torch.sigmoid(_EDGE * (along - own(self.top) - 0.05 * n(count, 1)))
        inside *= torch.sigmoid(_EDGE * (own(self.bottom) + 0.05 * n(count, 1) - along))
        opening = own(self.gap) * (0.2 * n(count, 1)).exp() * (along - own(self.crotch)).clamp(0, 0.6) / 0.6 - 0.02
        inside *= (1 - torch.sigmoid(_EDGE * (opening - across.abs())) * own(self.split)) * own(self.body)

        plain = own(self.plain)  # of a plain kind, brightness and texture differ from image to image
        value = (own(self.value) * (1 - plain) + plain * (0.25 + 0.75 * u(count, 1)) + 0.1 * n(count, 1)).clamp(min=0.1)
        shade = plain * draws.coins(0.5, count, 1) * 0.35 * n(count, 1)
        values = self.parts.value[kind]
        values = values * (1 - plain) + plain * value * values.sign() + shade + 0.1 * n(count, self.parts.parts)
        folded = torch.where(own(self.symmetric) > 0, x.abs(), x)
        image = self.parts.paint(inside * value, kind, folded, y, draws, values)

        waves = self.waves[kind] * (1 - plain) + plain * 9 * n(count, 2)
        depth = own(self.depth) * (1 - plain) + plain * draws.coins(0.35, count, 1) * 0.7 * u(count, 1)
        image = image * (1 + depth * torch.sin(waves[:, :1] * x + waves[:, 1:] * y + 2 * math.pi * u(count, 1)))
        image = image * (1 + 0.35 * n(count, 1) * x + 0.35 * n(count, 1) * y)
        cloud = functional.interpolate(n(count, 1, 7, 7), size=(size[0], size[1]), mode="bilinear", align_corners=True).reshape(
            count, -1
        )
        image = image * (1 + 0.25 * u(count, 1) * cloud) * (0.6 + 0.7 * u(count, 1))
        return image.clamp(min=0) * (1 + 0.1 * n(*image.shape)) + 0.01 * n(*image.shape)


def jittered(size: tuple[int, ...], count: int, draws: Draws, turn: float) -> tuple[Tensor, Tensor]:
    """Every pixel's place in an image that is a little turned, stretched and moved: `[count, height * width]`, in [-1, 1]."""
    down, across = torch.meshgrid(torch.linspace(-1, 1, size[0]), torch.linspace(-1, 1, size[1]), indexing="ij")
    x, y = across.reshape(1, -1), down.reshape(1, -1)
    angle, stretch, move = turn * draws.normal(count, 1), 1 + 0.12 * draws.normal(count, 2), 0.06 * draws.normal(count, 2)
    turned_x, turned_y = angle.cos() * x - angle.sin() * y, angle.sin() * x + angle.cos() * y
    return turned_x / stretch[:, :1] + move[:, :1], turned_y / stretch[:, 1:] + move[:, 1:]
