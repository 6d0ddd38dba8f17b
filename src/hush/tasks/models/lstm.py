"""An LSTM that trains many clients at once, equal to `torch.nn.LSTM` and loading its weights.

`nn.LSTM` is one opaque operation that vmap cannot look into.
"""

from __future__ import annotations

import math
from typing import cast

import torch
from torch import Tensor, nn

from hush.tasks.models.recurrence import recur

_WEIGHTS = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")


class Lstm(nn.Module):
    """Layers of LSTM over `[n, steps, features]`, from a state of zeros, to the last layer's states `[n, steps, hidden]`."""

    def __init__(self, features: int, hidden: int, layers: int = 1) -> None:
        super().__init__()
        self.layers = layers
        for layer in range(layers):
            shapes = ((4 * hidden, hidden if layer else features), (4 * hidden, hidden), (4 * hidden,), (4 * hidden,))
            for name, shape in zip(_WEIGHTS, shapes, strict=True):
                self.register_parameter(f"{name}_l{layer}", nn.Parameter(torch.empty(shape)))
        for weight in self.parameters():  # nn.LSTM's own distribution, in its order: the same seed gives the same weights
            nn.init.uniform_(weight, -1.0 / math.sqrt(hidden), 1.0 / math.sqrt(hidden))

    def forward(self, x: Tensor) -> Tensor:
        x = x.transpose(0, 1)  # a step is then one block of memory
        for layer in range(self.layers):
            weights = (cast(Tensor, getattr(self, f"{name}_l{layer}")) for name in _WEIGHTS)
            # where no gradient is asked for, nothing is kept: the gates of a large batch at every step would fill the memory
            x = _all_steps(x, *weights) if torch.is_grad_enabled() else _step_by_step(x, *weights)
        return x.transpose(0, 1)


def _all_steps(x: Tensor, weight_ih: Tensor, weight_hh: Tensor, bias_ih: Tensor, bias_hh: Tensor) -> Tensor:
    """One layer over `[steps, n, features]`: what the inputs add to the gates is one product for all steps."""
    steps, n = x.shape[:2]
    # flat, so that under vmap too it is one product for each client
    projected = torch.addmm(bias_ih + bias_hh, x.reshape(steps * n, -1), weight_ih.T)
    return recur(projected.view(steps, n, -1), weight_hh)


def _step_by_step(x: Tensor, weight_ih: Tensor, weight_hh: Tensor, bias_ih: Tensor, bias_hh: Tensor) -> Tensor:
    """The same layer as a textbook writes it."""
    state = cell = x.new_zeros(x.shape[1], weight_hh.shape[1])
    bias, states = bias_ih + bias_hh, []
    for step in x.unbind():
        i, f, g, o = (torch.addmm(bias, step, weight_ih.T) + state @ weight_hh.T).chunk(4, -1)
        cell = f.sigmoid() * cell + i.sigmoid() * g.tanh()
        state = o.sigmoid() * cell.tanh()
        states.append(state)
    return torch.stack(states)
