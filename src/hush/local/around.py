"""A local training around another one: it does something more with what that one trained."""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch import Tensor

from hush.core import LocalUpdate


@dataclass(frozen=True)
class Around(LocalUpdate):
    """All but what is done with the update is the inner training's affair."""

    local: LocalUpdate

    @property
    def draws_its_own(self) -> bool:
        return self.local.draws_its_own

    @property
    def needs_room(self) -> bool:
        return self.local.needs_room

    @property
    def batch_size(self) -> int:
        return int(getattr(self.local, "batch_size", 64))

    def shortened(self, steps: int) -> LocalUpdate:
        return replace(self, local=self.local.shortened(steps))

    def work(self, sizes: Tensor, slots: bool) -> tuple[int, int] | None:
        return self.local.work(sizes, slots)

    def size_class(self, sizes: Tensor) -> Tensor:
        return self.local.size_class(sizes)

    def steps_of(self, sizes: Tensor) -> Tensor:
        return self.local.steps_of(sizes)
