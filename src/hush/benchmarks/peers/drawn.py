"""The data and the model that simulators in PyTorch train: drawn once, the same for everybody."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from hush.benchmarks.workloads import Workload
from hush.tasks.models import Lstm, build_model

DropoutKind = nn.modules.dropout._DropoutNd


def settle(tf32: bool) -> None:
    """Whether products may be rounded to TF32, on a GPU that has it."""
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = tf32


def examples(workload: Workload, device: str = "cpu") -> tuple[Tensor, Tensor]:
    """Inputs `[clients * samples, ...]` and targets; text is codes of characters."""
    generator = torch.Generator().manual_seed(0)
    count = workload.population * workload.samples
    if workload.is_text:
        x = torch.randint(0, workload.classes, (count, *workload.shape), generator=generator)
    else:
        x = torch.randn(count, *workload.shape, generator=generator)
    return x.to(device), torch.randint(0, workload.classes, (count,), generator=generator).to(device)


def network(workload: Workload, plain: bool = True) -> nn.Module:
    """The model of the catalogue without dropout; `plain`: PyTorch's own LSTM in the place of ours."""
    model = build_model(workload.model, torch.Size(workload.shape), workload.classes, seed=0)
    for name, layer in list(model.named_modules()):
        if isinstance(layer, DropoutKind):
            _put(model, name, nn.Identity())
        elif plain and isinstance(layer, Lstm):
            _put(model, name, _FirstOf(_as_torch(layer)))
    return model


def _put(model: nn.Module, name: str, layer: nn.Module) -> None:
    owner, _, own = name.rpartition(".")
    setattr(model.get_submodule(owner), own, layer)


def _as_torch(layer: Lstm) -> nn.LSTM:
    hidden, features = layer.get_parameter("weight_hh_l0").shape[1], layer.get_parameter("weight_ih_l0").shape[1]
    theirs = nn.LSTM(features, hidden, layer.layers, batch_first=True)
    theirs.load_state_dict(layer.state_dict())
    return theirs


class _FirstOf(nn.Module):
    """The outputs of `nn.LSTM`, without its last state."""

    def __init__(self, lstm: nn.LSTM) -> None:
        super().__init__()
        self.lstm = lstm

    def forward(self, x: Tensor) -> Tensor:
        return self.lstm(x)[0]  # type: ignore[no-any-return]


def count(model: nn.Module) -> int:
    """How many parameters it has."""
    return sum(p.numel() for p in model.parameters())


def wait_for(device: str) -> None:
    """Until the device is done."""
    if device == "cuda":
        torch.cuda.synchronize()
