"""Flower's simulation engine (Ray): an actor for every core, `FedAvg` inside Flower's own server-side clipping and noise."""

from __future__ import annotations

import json
import logging
import os
import sys
from functools import lru_cache
from importlib import import_module
from typing import Any

os.environ |= {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1", "RAY_USAGE_STATS_ENABLED": "0"}

from hush.benchmarks.pace import Pace

_MODEL, _KEY = "arrays", "HUSH_BENCH_FLOWER"


def main() -> None:
    pace = Pace()
    import flwr
    import ray
    import torch
    from flwr.app import ArrayRecord
    from flwr.clientapp import ClientApp
    from flwr.serverapp import ServerApp
    from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping, FedAvg
    from flwr.simulation import run_simulation

    from hush.benchmarks.peers.drawn import count, network

    logging.disable(logging.WARNING)
    w, pace.closing = pace.workload, ray.shutdown
    actors = max(1, os.cpu_count() or 1) if pace.device == "cpu" else int(pace.way.split()[0])
    os.environ[_KEY] = json.dumps(json.loads(sys.argv[1]))
    model = network(w)
    pace.ready(f"flwr {flwr.__version__}", count(model), torch=torch.__version__)
    client, server = ClientApp(), ServerApp()
    client.train()(import_module("hush.benchmarks.peers.flower_engine").train)  # by this name its actors find it
    seen = [b""]

    def after_a_round(index: int, arrays: Any) -> None:
        now = next(iter(arrays.values())).numpy().tobytes()
        if now == seen[0]:  # Flower goes on where no client answers
            print("RuntimeError: no client's answer was used", file=sys.stderr, flush=True)
            os._exit(1)
        seen[0] = now
        if index:
            pace.lap()

    @server.main()  # type: ignore[misc,untyped-decorator,unused-ignore]
    def serve(grid: Any, context: Any) -> None:
        everybody = FedAvg(fraction_train=w.cohort / w.population, fraction_evaluate=0.0, min_train_nodes=w.cohort)
        strategy = DifferentialPrivacyServerSideFixedClipping(everybody, w.noise, w.clip, w.cohort)
        begin = ArrayRecord(model.state_dict())
        strategy.start(grid=grid, initial_arrays=begin, num_rounds=pace.rounds, evaluate_fn=after_a_round)

    share = 0.0 if pace.device == "cpu" else 1.0 / actors
    resources: Any = {"num_cpus": 1, "num_gpus": share}
    run_simulation(
        server_app=server,
        client_app=client,
        num_supernodes=w.population,
        backend_config={"init_args": {"num_cpus": actors, "log_to_driver": False}, "client_resources": resources},
    )


@lru_cache(1)
def _held() -> Any:
    """Once for every actor: settings, the model and the examples of all clients."""
    import torch

    from hush.benchmarks.peers.drawn import examples, network, settle
    from hush.benchmarks.workloads import Workload

    told = json.loads(os.environ[_KEY])
    workload, device = Workload.of(told["workload"]), told["device"]
    settle(told["tf32"])
    torch.set_num_threads(1)
    x, y = examples(workload, device)
    sizes = workload.population, workload.steps, workload.batch
    return workload, device, network(workload).to(device), x.view(*sizes, *workload.shape), y.view(sizes)


def train(message: Any, context: Any) -> Any:
    """One client's round."""
    import torch
    from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict

    w, device, model, x, y = _held()
    own = int(context.node_config["partition-id"])
    model.load_state_dict(message.content[_MODEL].to_torch_state_dict())
    model.to(device).train()
    optimiser = torch.optim.SGD(model.parameters(), w.lr, w.momentum)
    for step in range(w.steps):
        optimiser.zero_grad()
        torch.nn.functional.cross_entropy(model(x[own, step]), y[own, step]).backward()  # type: ignore[no-untyped-call]
        optimiser.step()
    told: Any = {_MODEL: ArrayRecord(model.state_dict()), "metrics": MetricRecord({"num-examples": w.samples})}
    return Message(RecordDict(told), reply_to=message)


if __name__ == "__main__":
    main()
