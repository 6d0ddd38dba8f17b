"""Layers that nobody trains see every example once: what they make of it is computed before the first round, and kept.

A client of a federation does the same with its own examples. The function that is trained, and every figure, stay what they were.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

_DRAWS = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout, nn.RReLU)
_MOST = 2**32
"""Bytes of features above which they are computed anew each time."""
_BATCH = 500


def split(model: nn.Module) -> tuple[nn.Sequential, nn.Sequential] | None:
    """The leading layers of a chain of layers that are frozen, and the rest; None where there are none, or no chain."""
    layers = _chain(model)
    if layers is None:
        return None
    trained = [i for i, layer in enumerate(layers) if any(p.requires_grad for p in layer.parameters())]
    first = trained[0] if trained else 0
    body = layers[:first]
    holds = any(True for layer in body for _ in layer.parameters())
    shared = {id(p) for layer in body for p in layer.parameters()} & {id(p) for layer in layers[first:] for p in layer.parameters()}
    draws = any(isinstance(inner, _DRAWS) for layer in body for inner in layer.modules())
    if not holds or shared or draws:
        return None
    return nn.Sequential(*body), nn.Sequential(*layers[first:])


def _chain(model: nn.Module) -> list[nn.Module] | None:
    """The layers of nested `nn.Sequential`s, in order; hooks make them more than a chain."""
    if type(model) is not nn.Sequential or model._forward_hooks or model._forward_pre_hooks:
        return None
    layers: list[nn.Module] = []
    for child in model:
        layers += (_chain(child) or [child]) if type(child) is nn.Sequential else [child]
    return layers


@torch.no_grad()
def seen_by(body: nn.Sequential, x: Tensor) -> Tensor | None:
    """What the layers after `body` see of each example; None where that would fill the memory."""
    body.eval()
    if not len(x):
        return None
    first = body(x[:1])
    if first.numel() * first.element_size() * len(x) > _MOST:
        return None
    return torch.cat([body(part) for part in torch.split(x, _BATCH)])
