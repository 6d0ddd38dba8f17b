"""Apple's pfl-research, unmodified: `FederatedAveraging` over a `SimulatedBackend`, postprocessed as in its own CIFAR-10 benchmark.

Its processes, where there are several, share the one device.
"""

from __future__ import annotations

import contextlib
import io
import os
import socket
import subprocess
import sys
import time
import warnings
from functools import partial
from threading import Thread
from typing import Any

from hush.benchmarks.pace import Pace

_RANK = "PFL_WORKER_RANK"


def start_others(processes: int) -> None:
    """The same script for every other worker; pfl finds peers and rank in the environment."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    os.environ["PFL_WORKER_ADDRESSES"] = ",".join(f"localhost:{port + i}" for i in range(processes))
    for rank in range(1, processes):
        command = [sys.executable, "-m", "hush.benchmarks.peers.pfl_research", sys.argv[1]]
        subprocess.Popen(command, env=os.environ | {_RANK: str(rank)}, stdin=subprocess.DEVNULL)
    os.environ[_RANK] = "0"


def end_with(parent: int) -> None:
    """A worker waits for others for half an hour: it ends when the first one does, however that ends."""
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(1)


def main() -> None:
    pace, others = Pace(), _RANK in os.environ
    processes = int(pace.way.split()[0])
    if others:
        Thread(target=end_with, args=(os.getppid(),), daemon=True).start()
    elif processes > 1:
        start_others(processes)
    os.environ["PFL_PYTORCH_DEVICE"] = pace.device
    import torch
    from torch import Tensor, nn

    warnings.simplefilter("ignore")
    if processes > 1:
        _share_one_device(torch)
    if pace.device == "cpu":
        torch.set_num_threads(max(1, (os.cpu_count() or 1) // processes))
    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.aggregate.weighting import WeightByUser
    from pfl.algorithm import FederatedAveraging, NNAlgorithmParams
    from pfl.callback.base import TrainingProcessCallback
    from pfl.data.federated_dataset import FederatedDataset
    from pfl.data.sampling import get_user_sampler
    from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
    from pfl.metrics import Metrics, Weighted
    from pfl.model.pytorch import PyTorchModel
    from pfl.privacy import CentrallyAppliedPrivacyMechanism, GaussianMechanism
    from pfl.version import __version__ as version

    from hush.benchmarks.peers.drawn import count, examples, network, settle, wait_for

    w, device = pace.workload, pace.device
    settle(pace.tf32)

    class Net(nn.Module):
        """A module with the `loss` and `metrics` that pfl asks for."""

        def __init__(self) -> None:
            super().__init__()
            self.inner = network(w)

        def forward(self, x: Tensor) -> Tensor:
            return self.inner(x)  # type: ignore[no-any-return]

        def loss(self, x: Tensor, y: Tensor, eval: bool = False) -> Tensor:
            self.train(not eval)
            return nn.functional.cross_entropy(self(x), y)

        @torch.no_grad()
        def metrics(self, x: Tensor, y: Tensor, eval: bool = True) -> dict[str, Any]:
            return {"loss": Weighted(self.loss(x, y, eval).item() * len(x), len(x))}

    module = Net()
    if not others:
        pace.ready(f"pfl {version}", count(module), torch=torch.__version__)
    module.to(device)
    x, y = examples(w, device)
    parts = [(x[i : i + w.samples], y[i : i + w.samples]) for i in range(0, len(x), w.samples)]
    data = FederatedDataset.from_slices(parts, get_user_sampler("random", range(w.population)))
    model = PyTorchModel(
        module,
        local_optimizer_create=partial(torch.optim.SGD, momentum=w.momentum),
        central_optimizer=torch.optim.SGD(module.parameters(), 1.0),
    )
    noise = CentrallyAppliedPrivacyMechanism(GaussianMechanism(w.clip, w.noise))
    backend = SimulatedBackend(training_data=data, val_data=data, postprocessors=[WeightByUser(), noise])

    class Clock(TrainingProcessCallback):  # type: ignore[misc,unused-ignore]
        def after_central_iteration(self, aggregate_metrics: Any, model: Any, *, central_iteration: int) -> Any:
            wait_for(device)
            if not others:
                pace.lap()
            return False, Metrics()

    with contextlib.redirect_stdout(io.StringIO()):
        FederatedAveraging().run(
            algorithm_params=NNAlgorithmParams(pace.rounds, 10**9, w.cohort, 0),
            backend=backend,
            model=model,
            model_train_params=NNTrainHyperParams(local_batch_size=w.batch, local_num_epochs=1, local_learning_rate=w.lr),
            model_eval_params=NNEvalHyperParams(local_batch_size=None),
            callbacks=[Clock()],
            send_metrics_to_platform=False,
        )


def _share_one_device(torch: Any) -> None:
    """pfl, while it is imported, picks NCCL where there is CUDA, and NCCL refuses two ranks on one GPU: Gloo stands in for it."""
    begin = torch.distributed.init_process_group
    torch.distributed.init_process_group = lambda backend=None, **given: begin(backend="gloo", **given)


if __name__ == "__main__":
    main()
