"""How the windows of a convolution lie on an image."""

from __future__ import annotations

from typing import NamedTuple


class Geometry(NamedTuple):
    """In the order in which PyTorch takes them."""

    stride: tuple[int, int]
    padding: tuple[int, int]
    dilation: tuple[int, int]

    def outputs(self, height: int, width: int, kernel: tuple[int, int]) -> tuple[int, int]:
        """Places of a window of that size."""
        sides = zip((height, width), kernel, *self, strict=True)
        high, wide = ((side + 2 * pad - dilation * (size - 1) - 1) // stride + 1 for side, size, stride, pad, dilation in sides)
        return high, wide
