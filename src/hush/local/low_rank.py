"""Linear layers of many clients that are nowhere written: the weights that all received, less what each client's steps took off.

    w_s = w_0 - sum_{k < s} c_k back_k^T given_k

The gradient of a step is `back^T given`, of as many rows as the batch has: `given` went into the layer and `back` came back. So
after a few steps on small batches a client's weights differ from the received ones by a matrix of low rank, and

    x w_s^T = x w_0^T - sum_k c_k (x given_k^T) back_k

is one large product for the whole cohort and two thin ones a client (`hush.local.linear`). The numbers c_k follow from learning
rate, momentum and prox alone. A hundred clients' weights of 6 MB each then need not be read and written at every step.
"""

from __future__ import annotations

import torch
from torch import Tensor

from hush.local.linear import Pair, Taken


def pays(steps: int, rows: int, outputs: int, inputs: int) -> bool:
    """Whether factors are smaller than the weights themselves: of shapes alone."""
    return 0 < steps * rows * (inputs + outputs) <= inputs * outputs


def looked_back(at: int) -> int:
    """As many steps are read before the step `at`, of which the last may be empty: few shapes, so few graphs of launches."""
    return 1 << (at - 1).bit_length() if at else 0


class Factors:
    """One layer's, of every client: `given[clients, steps, rows, inputs]` and `back[clients, steps, rows, outputs]`."""

    def __init__(self, clients: int, steps: int, pair: Pair) -> None:
        self.given, self.back = (values.new_zeros(clients, steps, *values.shape[1:]) for values in pair)

    def begin(self) -> None:
        """Of new clients: nothing of others may meet a zero, which NaN survives."""
        self.given.zero_()
        self.back.zero_()

    def keep(self, at: Tensor, pair: Pair, done: Tensor | None) -> None:
        """Of the first clients, in the place `at[1]`; of who is `done`, nothing."""
        given, back = pair if done is None else (values.masked_fill(done[:, None, None], 0.0) for values in pair)
        for place, values in ((self.given, given), (self.back, back)):
            place[: len(values)].index_copy_(1, at, values[:, None])

    def taken(self, share: Tensor) -> Taken:
        """By `share[clients, steps]` of the first clients and steps."""
        clients, steps = share.shape
        return Taken(self.given[:clients, :steps], self.back[:clients, :steps], share)

    def gone(self, share: Tensor, out: Tensor) -> None:
        """Into `out[clients, outputs, inputs]`: all that was taken off."""
        given, back, _ = self.taken(share)
        torch.bmm((back * share[..., None, None]).flatten(1, 2).mT, given.flatten(1, 2), out=out)


class Shares:
    """How much of each step's gradient a client's weights have lost, `[clients, steps]`, and the velocity in the same terms."""

    def __init__(self, clients: int, steps: int, like: Tensor) -> None:
        self.share, self.speed = (like.new_zeros(clients, steps) for _ in range(2))
        self.at = torch.zeros(1, dtype=torch.int64, device=like.device)
        """The step that comes: on the device, so that a graph of launches can be repeated."""

    def begin(self) -> None:
        """Nothing was taken off yet."""
        for values in (self.share, self.speed, self.at):
            values.zero_()

    def before(self, clients: int, at: int) -> Tensor:
        """`[clients, steps]` of what was taken off before the step `at`; some more may be empty."""
        return self.share[:clients, : looked_back(at)]

    def step(self, clients: int, lr: Tensor | float, momentum: float, prox: float, done: Tensor | None) -> None:
        """One more: speed <- momentum speed + gradient + prox away; who is `done` stays."""
        share, speed = self.share[:clients], self.speed[:clients]
        speed.copy_((speed * momentum - share * prox).index_fill_(1, self.at, 1.0))
        share += lr * speed if done is None else (lr * speed).masked_fill_(done[:, None], 0.0)
        self.at += 1
