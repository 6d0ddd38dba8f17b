"""Peers in turns, each in a process; who is missing or fails is told, and stops nobody."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path

import pytest
import torch

from hush.benchmarks import simulation, tables
from hush.benchmarks.busy import union
from hush.benchmarks.floor import floors
from hush.benchmarks.peers.drawn import network
from hush.benchmarks.simulation import Asked, measure
from hush.benchmarks.workloads import WORKLOADS
from hush.cli.app import app

SMALL = dataclasses.replace(WORKLOADS["digits"], cohort=3, steps=2)


def test_everybody_takes_turns_and_who_is_missing_or_breaks_is_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Asked, "ways", lambda self, peer: {"loop": ("1 thread",), "pfl": ("no number",)}.get(peer, ("",)))
    monkeypatch.setitem(simulation.MODULES, "jax", "nobody_wrote_this")
    found = measure(SMALL, ["hush", "loop", "jax", "pfl"], Asked("cpu", rounds=2, passes=2, warmup=1, python=sys.executable))
    hush, loop, jax, pfl = found["rows"]
    assert hush["rounds"] == loop["rounds"] == 4
    assert hush["parameters"] == loop["parameters"] == 4810
    assert not jax["installed"]
    assert "ValueError" in pfl["failed"]
    assert found["over_hush"]["loop"] == pytest.approx(loop["round_s"] / hush["round_s"])
    shown = tables.markdown([found], "a machine")
    assert "| **" in shown
    assert "Not installed: JAX, jitted." in shown
    kept = tmp_path / "found.json"
    kept.write_text(json.dumps({"machine": "a machine", "found": [found]}))
    assert not app(["bench", "simulation", "--from", str(kept), "--markdown"], standalone_mode=False)
    assert capsys.readouterr().out == shown + "\n"


def test_time_that_kernels_share_counts_once() -> None:
    assert union([(5.0, 6.0), (0.0, 2.0), (1.0, 3.0), (1.5, 1.75)]) == 4.0


def test_the_floor_is_the_weights_traffic() -> None:
    workload = dataclasses.replace(SMALL, cohort=100, steps=10, momentum=0.5)
    assert floors(workload, 1_663_370, 4.3e12)["floor_s"] == pytest.approx(0.01238, rel=1e-3)
    assert floors(workload, 1_663_370, 4.3e12)["fused_floor_s"] == pytest.approx(0.01238 * 6 / 8, rel=1e-3)


@pytest.mark.parametrize("name", ["cifar", "shakespeare"])
def test_a_plain_loop_trains_the_same_model_without_dropout_and_with_pytorchs_lstm(name: str) -> None:
    workload = WORKLOADS[name]
    ours, theirs = network(workload, plain=False), network(workload)
    x = torch.randint(0, 80, (2, 80)) if workload.is_text else torch.randn(2, *workload.shape)
    torch.testing.assert_close(ours.train()(x), theirs.train()(x))


@pytest.mark.parametrize("name", ["fed-smp", "cifar", "shakespeare", "resnet18", "digits"])
def test_jax_computes_the_same_model(name: str) -> None:
    jnp = pytest.importorskip("jax.numpy")
    from hush.benchmarks.peers.jax_models import NETWORKS, Weights

    workload = WORKLOADS[name]
    model = network(workload)
    given = [_as_jax(key, p.detach(), model) for key, p in model.named_parameters()]
    x = torch.randint(0, 80, (2, 80)) if workload.is_text else torch.randn(2, *workload.shape)
    theirs = NETWORKS[workload.model](
        Weights([jnp.asarray(p.numpy()) for p in given]), jnp.asarray((x if workload.is_text else x.movedim(1, -1)).numpy())
    )
    torch.testing.assert_close(torch.tensor(theirs.tolist()), model(x), rtol=1e-4, atol=1e-5)


def _as_jax(key: str, p: torch.Tensor, model: torch.nn.Module) -> torch.Tensor:
    layer = model.get_submodule(key.rpartition(".")[0])
    if isinstance(layer, torch.nn.Conv2d) and p.dim() == 4:
        return p.permute(2, 3, 1, 0)
    if isinstance(layer, torch.nn.GroupNorm) and key.endswith("weight"):
        return p - 1
    if p.dim() != 2 or isinstance(layer, torch.nn.Embedding):
        return p
    if p.shape[1] > 1000:  # the first layer after pictures: channels are innermost there
        side = int((p.shape[1] // 64) ** 0.5)
        p = p.view(-1, 64, side, side).permute(0, 2, 3, 1).flatten(1)
    return p.T
