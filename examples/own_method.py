"""A method of one's own, with a transform of its own: updates are shortened softly instead of cut off at the clip.

    hush run examples/own_method.py:fed_soft --set softness=0.3
    hush methods examples/own_method.py:fed_soft

docs/own-method.md walks through it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from hush.core import Bound, Method, Public, Round, Transform, chain
from hush.methods import method
from hush.methods.groups import Clipped, ServerStep
from hush.methods.stations import clipping, local_training, server_step
from hush.settings import setting
from hush.transforms import Gaussian


@dataclass(frozen=True)
class SoftClip(Transform):
    """x times C / (C + softness |x|): short rows stay nearly as they are, long ones come close to C / softness."""

    norm: float
    softness: float

    def encode(self, x: Tensor, rnd: Round, keys: Tensor, public: Public) -> Tensor:
        lengths = torch.linalg.vector_norm(x, dim=1, keepdim=True)
        return x * (self.norm / (self.norm + self.softness * lengths))

    def bound(self, incoming: Bound) -> Bound:
        return Bound(reason="SoftClip shortens rows in floating point, which bounds them only nearly: put Clip(C) after it")


@dataclass(frozen=True, kw_only=True)
class FedSoft(ServerStep, Clipped):
    """Settings of `fed-soft`: those of local training, clip, noise and server step, and one of its own."""

    softness: float = setting(0.5, "how soon updates are shortened; near 0 only the clip does", "[0, 1]")


@method("fed-soft", FedSoft)
def fed_soft(s: FedSoft) -> Method:
    """Shorten updates softly, clip what is still too long, sum, add noise."""
    pipeline = chain(SoftClip(s.clip, s.softness), clipping(s), Gaussian(s.noise))
    return Method("fed-soft", local_training(s), pipeline, server_step(s))


if __name__ == "__main__":
    import hush

    method = fed_soft(softness=0.3, lr=0.1, batch_size=4, local_epochs=5)
    result = hush.simulate(method, hush.load_task("digits"), rounds=12, cohort=100, privacy=hush.Budget(epsilon=8))
    print(result.sentence())
