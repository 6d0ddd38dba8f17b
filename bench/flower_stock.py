"""Flower's own way beside ours: FedAvg over three clients on digits, as its tutorials write it; and `hush federation local`.

    python bench/flower_stock.py          # lines that a user writes, bytes that a client sends, seconds a round; three minutes

Both run on this machine, with Flower's real processes. Flower's has no noise, no secure sum, no TLS and no authentication.
"""

from __future__ import annotations

import itertools
import json
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from safetensors.torch import save_file

from hush import load_task
from hush.engines.flower import process

ROUNDS, CLIENTS = 5, 3
PROJECT = """[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"
[project]
name = "stock"
version = "1.0.0"
description = "stock"
license = "Apache-2.0"
dependencies = []
[tool.hatch.build.targets.wheel]
packages = ["."]
[tool.flwr.app]
publisher = "stock"
[tool.flwr.app.components]
serverapp = "stock.server:app"
clientapp = "stock.client:app"
[tool.flwr.app.config]
rounds = 1
"""
MODEL = """import torch
from torch import nn

def model():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))

def train(net, x, y, lr=0.1, batch=10):
    optimizer = torch.optim.SGD(net.parameters(), lr=lr)
    for rows in torch.randperm(len(x)).split(batch):
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(x[rows]), y[rows]).backward()
        optimizer.step()
"""
CLIENT = """from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from safetensors.torch import load_file
from stock.model import model, train

app = ClientApp()

@app.train()
def fit(message: Message, context: Context):
    net = model()
    net.load_state_dict(message.content["arrays"].to_torch_state_dict())
    data = load_file(context.node_config["data"])
    train(net, data["x"], data["y"])
    content = {"arrays": ArrayRecord(net.state_dict()), "metrics": MetricRecord({"num-examples": len(data["x"])})}
    return Message(content=RecordDict(content), reply_to=message)
"""
SERVER = """import time
from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from stock.model import model

app = ServerApp()

@app.main()
def main(grid: Grid, context: Context):
    def told(round, arrays):
        print("STOCK", round, time.time(), flush=True)
    strategy = FedAvg(fraction_train=1.0, fraction_evaluate=0.0, min_train_nodes=3, min_available_nodes=3)
    arrays, rounds = ArrayRecord(model().state_dict()), context.run_config["rounds"]
    strategy.start(grid=grid, initial_arrays=arrays, num_rounds=rounds, evaluate_fn=told)
"""


def stock(place: Path) -> list[float]:
    """Seconds of each round of Flower's own."""
    app = place / "app" / "stock"
    app.mkdir(parents=True)
    (app.parent / "pyproject.toml").write_text(PROJECT)
    for name, text in (("__init__", ""), ("model", MODEL), ("client", CLIENT), ("server", SERVER)):
        (app / f"{name}.py").write_text(text)
    dealt, port = load_task("digits", clients=CLIENTS).train, process.free_port()
    (place / "config.toml").write_text(
        f'[superlink]\ndefault = "lab"\n[superlink.lab]\naddress = "127.0.0.1:{port}"\ninsecure = true\n'
    )
    started = []
    with (place / "log").open("wb") as log:
        started.append(process.start(["flower-superlink", "--host", "127.0.0.1", "--port", str(port), "--insecure"], place, log))
        time.sleep(6)
        for number in range(CLIENTS):
            shard = dealt.shard(torch.tensor([number]))
            rows = slice(int(shard.start[0]), int(shard.start[0] + shard.size[0]))
            save_file({"x": dealt.x[rows].contiguous(), "y": dealt.y[rows].contiguous()}, place / f"{number}.safetensors")
            node = ["flower-supernode", "--insecure", "--superlink", f"127.0.0.1:{port}", "--host", "127.0.0.1"]
            node += [
                "--port",
                str(process.free_port()),
                "--node-config",
                f"data={json.dumps(str(place / f'{number}.safetensors'))}",
            ]
            started.append(process.start(node, place, log))
        try:
            command = ["flwr", "run", str(app.parent), "lab", "--run-config", f"rounds={ROUNDS}", "--stream"]
            done = subprocess.run(
                command, cwd=place, env=process.environment(place), capture_output=True, text=True, timeout=400, check=False
            )
        finally:
            for one in started:
                process.stop(one)
    times = [float(found) for found in re.findall(r"STOCK \d+ ([\d.]+)", done.stdout)]
    return [after - before for before, after in itertools.pairwise(times)]


def ours(place: Path) -> tuple[list[float], float]:
    """Seconds of each round of a federation of Hush's, and the bytes that a client sent in one."""
    command = [sys.executable, "-m", "hush", "federation", "local", str(CLIENTS), "dp-fedavg", "--rounds", str(ROUNDS)]
    command += ["--noise", "1", "--delta", "1e-3", "--out", str(place / "ours")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=True)
    result = json.loads((place / "ours" / "run" / "result.json").read_text())
    return [float(s) for s in re.findall(r"round \d+ of .*?([\d.]+) s\n", done.stderr)], result["uplink_bytes_per_client"] / ROUNDS


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        (place / "stock").mkdir()
        theirs = stock(place / "stock")
        own, sent = ours(place)
    lines = sum(len(text.strip().splitlines()) for text in (PROJECT, MODEL, CLIENT, SERVER))
    parameters = 64 * 64 + 64 + 64 * 10 + 10
    print(f"lines a user writes: Flower {lines}, Hush 0 (seven commands)")
    print(f"bytes a client sends in a round: Flower {4 * parameters:,} (float32), Hush {sent:,.0f} (24 bits, with keys and shares)")
    print("seconds a round: Flower", *(f"{s:.1f}" for s in theirs))
    print("seconds a round: Hush", *(f"{s:.1f}" for s in own), "(the first with the enrolment)")


if __name__ == "__main__":
    main()
