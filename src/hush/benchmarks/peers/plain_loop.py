"""The loop that everybody writes first: one client after another, `torch.optim.SGD`, clip, sum, noise."""

from __future__ import annotations

import torch
from torch.nn import functional as F
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from hush.benchmarks.pace import Pace
from hush.benchmarks.peers.drawn import count, examples, network, settle, wait_for


def main() -> None:
    pace = Pace()
    w, device = pace.workload, pace.device
    settle(pace.tf32)
    if device == "cpu" and pace.way:
        torch.set_num_threads(int(pace.way.split()[0]))
    model = network(w)
    pace.ready(f"torch {torch.__version__}", count(model), torch=torch.__version__)
    model.to(device).train()
    inputs, targets = examples(w, device)
    x, y = inputs.view(w.population, w.steps, w.batch, *w.shape), targets.view(w.population, w.steps, w.batch)
    params = list(model.parameters())
    start = parameters_to_vector(params).detach().clone()
    for _ in range(pace.rounds):
        total = torch.zeros_like(start)
        for client in torch.randperm(w.population)[: w.cohort].tolist():
            vector_to_parameters(start.clone(), params)  # views of the vector are trained, so it is a copy
            optimiser = torch.optim.SGD(params, w.lr, w.momentum)
            for step in range(w.steps):
                optimiser.zero_grad()
                F.cross_entropy(model(x[client, step]), y[client, step]).backward()  # type: ignore[no-untyped-call]
                optimiser.step()
            update = parameters_to_vector(params).detach() - start
            total += update * (w.clip / update.norm()).clamp(max=1.0)
        start += (total + w.noise * w.clip * torch.randn_like(total)) / w.cohort
        wait_for(device)
        pace.lap()


if __name__ == "__main__":
    main()
