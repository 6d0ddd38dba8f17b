"""What the server does with the average update, which points uphill: params minus it goes down."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from hush.checks import check_number, check_share
from hush.core import ServerUpdate, State, scope, within
from hush.errors import UsageError


@dataclass(frozen=True)
class Average(ServerUpdate):
    """theta <- theta - lr * update. With lr=1 this is federated averaging (McMahan et al. 2017)."""

    lr: float = 1.0

    def __post_init__(self) -> None:
        check_number("server_lr", self.lr, above=0)

    def step(self, params: Tensor, update: Tensor, state: State) -> tuple[Tensor, State]:
        return params - self.lr * update, state

    @property
    def keeps_sparse(self) -> bool:
        return True


@dataclass(frozen=True)
class Momentum(ServerUpdate):
    """u <- beta u + update; theta <- theta - lr u (FedAvgM, Hsu, Qi, Brown 2019)."""

    lr: float = 1.0
    beta: float = 0.9

    def __post_init__(self) -> None:
        check_number("server_lr", self.lr, above=0)
        check_share("server_momentum", self.beta)

    def init(self, params: Tensor) -> State:
        return {"u": torch.zeros_like(params)}

    def step(self, params: Tensor, update: Tensor, state: State) -> tuple[Tensor, State]:
        u = self.beta * state["u"] + update
        return params - self.lr * u, {"u": u}


@dataclass(frozen=True)
class Adam(ServerUpdate):
    """FedAdam (Reddi et al. 2021, algorithm 2): u and v averaged, no bias correction, theta <- theta - lr u / (sqrt(v) + kappa)."""

    lr: float = 0.01
    beta: float = 0.9
    beta2: float = 0.99
    kappa: float = 1e-3

    def __post_init__(self) -> None:
        check_number("server_lr", self.lr, above=0)
        check_number("kappa", self.kappa, above=0)
        check_share("server_momentum", self.beta)
        check_share("server_beta2", self.beta2)

    def init(self, params: Tensor) -> State:
        return {"u": torch.zeros_like(params), "v": torch.full_like(params, self.kappa**2)}

    def step(self, params: Tensor, update: Tensor, state: State) -> tuple[Tensor, State]:
        u = self.beta * state["u"] + (1 - self.beta) * update
        v = self.beta2 * state["v"] + (1 - self.beta2) * self.followed(update, u).square()
        return params - self.lr * u / (v.sqrt() + self.kappa), {"u": u, "v": v}

    def followed(self, update: Tensor, u: Tensor) -> Tensor:
        """Whose squares v averages."""
        return update


@dataclass(frozen=True)
class FedSpaAdam(Adam):
    """Fed-SPA's equations (6): like `Adam`, but v follows the momentum u and not the update; no bias correction.

    u <- beta u + (1 - beta) update;  v <- beta2 v + (1 - beta2) u^2, kappa^2 at first;  theta <- theta - lr u / (sqrt(v) + kappa).
    """

    def followed(self, update: Tensor, u: Tensor) -> Tensor:
        return u


@dataclass(frozen=True)
class Decayed(ServerUpdate):
    """`inner`, with steps that shrink: that of round t is taken decay^t as far.

    Clipped updates do not get smaller by themselves as training goes on, and neither does the noise.
    """

    inner: ServerUpdate
    decay: float = 0.99

    def __post_init__(self) -> None:
        if not 0 < self.decay <= 1:
            raise UsageError(f"server_lr_decay must lie in (0, 1], not {self.decay:g}.")

    def init(self, params: Tensor) -> State:
        return {"factor": torch.ones((), dtype=torch.float64)} | scope("inner", self.inner.init(params))

    def step(self, params: Tensor, update: Tensor, state: State) -> tuple[Tensor, State]:
        after, inner = self.inner.step(params, update, within("inner", state))
        factor = state["factor"]
        return params + float(factor) * (after - params), {"factor": factor * self.decay} | scope("inner", inner)


@dataclass(frozen=True)
class Averaged(ServerUpdate):
    """`inner`, and hand out an exponential average of its iterates: a <- decay a + (1 - decay) theta, bias-corrected.

    Averaging released models is post-processing: it costs no privacy, and it removes noise (Polyak and Juditsky 1992).
    """

    inner: ServerUpdate
    decay: float = 0.9

    def __post_init__(self) -> None:
        if not 0 < self.decay < 1:
            raise UsageError(f"average_iterates must lie between 0 and 1, not {self.decay:g}.")

    def init(self, params: Tensor) -> State:
        own = {"sum": torch.zeros_like(params), "weight": torch.zeros((), dtype=torch.float64)}
        return own | scope("inner", self.inner.init(params))

    def step(self, params: Tensor, update: Tensor, state: State) -> tuple[Tensor, State]:
        params, inner = self.inner.step(params, update, within("inner", state))
        total = self.decay * state["sum"] + (1 - self.decay) * params
        weight = self.decay * state["weight"] + (1 - self.decay)
        return params, {"sum": total, "weight": weight} | scope("inner", inner)

    def model(self, params: Tensor, state: State) -> Tensor:
        weight = float(state["weight"])
        return state["sum"] / weight if weight > 0 else params
