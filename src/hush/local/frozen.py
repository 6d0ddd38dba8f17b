"""Layers that nobody trains see every example once: what they make of it is computed before the first round, and kept.

A client of a federation does the same with its own examples. The function that is trained, and every figure, stay what they were.
Only layers that are known to treat every example by itself are computed so: one that mixes examples would mix clients.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

_KNOWN = (
    *(nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.Embedding, nn.Identity, nn.Flatten, nn.Sequential),
    *(nn.ReLU, nn.LeakyReLU, nn.ELU, nn.GELU, nn.SiLU, nn.Tanh, nn.Sigmoid, nn.Softplus),
    *(nn.MaxPool1d, nn.MaxPool2d, nn.AvgPool1d, nn.AvgPool2d, nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveMaxPool2d),
    *(nn.LayerNorm, nn.GroupNorm),
)
"""Layers whose answer to one example depends on that example alone, and on nothing that is drawn."""
_MOST = 2**32
"""Bytes of features above which they are computed anew each time."""
_WIDER, _FEW = 4, 1024
"""Where no client may decide for others, how many examples there are must not count: features are kept where they take at most so
many times the numbers of an example, so that data grow by no more than that, or few in any case."""
_BATCH = 500


def split(model: nn.Module) -> tuple[nn.Sequential, nn.Sequential] | None:
    """The leading layers of a chain of layers that are frozen, and the rest; None where there are none, or no chain."""
    layers = layers_of(model)
    if layers is None:
        return None
    trained = [i for i, layer in enumerate(layers) if any(p.requires_grad for p in layer.parameters())]
    first = trained[0] if trained else 0
    body = layers[:first]
    rest = layers[first:]
    holds = any(True for layer in body for _ in layer.parameters())
    shared = {id(p) for layer in body for p in layer.parameters()} & {id(p) for layer in rest for p in layer.parameters()}
    elsewhere = [p for p in model.parameters() if p.requires_grad and not any(p is q for layer in rest for q in layer.parameters())]
    if not holds or shared or elsewhere or not all(_is_known(layer) for layer in body):
        return None
    return nn.Sequential(*body), nn.Sequential(*rest)


def _is_known(layer: nn.Module) -> bool:
    """Itself, not a subclass, without hooks; or one of Hush's own that says so; and so are the layers that it is made of."""
    plain = not layer._forward_hooks and not layer._forward_pre_hooks
    own = getattr(type(layer), "sees_one_example", False) is True
    flat = not isinstance(layer, nn.Flatten) or layer.start_dim == 1
    return plain and flat and (type(layer) in _KNOWN or own) and all(_is_known(child) for child in layer.children())


def layers_of(model: nn.Module) -> list[nn.Module] | None:
    """The layers of nested `nn.Sequential`s, in order; hooks make them more than a chain."""
    if type(model) is not nn.Sequential or model._forward_hooks or model._forward_pre_hooks:
        return None
    layers: list[nn.Module] = []
    for child in model:
        layers += (layers_of(child) or [child]) if type(child) is nn.Sequential else [child]
    return layers


@torch.no_grad()
def seen_by(body: nn.Sequential, x: Tensor, each: Sequence[int] = (), by_shape: bool = False) -> Tensor | None:
    """What the layers after `body` see of each example; None where that would fill the memory, or might, judged `by_shape` alone.

    Where `each` client has so many, by themselves and copied: beside others', or at another place in memory, a row may differ in
    its last bits.
    """
    body.eval()
    if not len(x):
        return None
    first = body(x[:1])
    few = first.numel() <= max(_WIDER * x[:1].numel(), _FEW) if by_shape else first.nbytes * len(x) <= _MOST
    if len(first) != 1 or not few:
        return None
    rows = [own.clone() for own in torch.split(x, list(each)) if len(own)] if each else [x]
    return torch.cat([body(part) for own in rows for part in torch.split(own, _BATCH)])
