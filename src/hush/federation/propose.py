"""From what a server's owner typed to a run that waits for its clients: the task without the clients' data, and the proposal."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import torch
from torch import nn

from hush.config import RunConfig
from hush.engines.federation import Remote
from hush.engines.run import Run
from hush.engines.setup import assemble
from hush.errors import UsageError
from hush.experiment import Experiment, resolve
from hush.federation.members import Members
from hush.federation.proposal import Examples, Proposal, agree, refuse_public_at_clients, refuse_what_cannot_travel
from hush.local.remembered import remembered
from hush.plugins import shown
from hush.privacy.guarantee import Unit
from hush.privacy.settle import settle_privacy
from hush.privacy.shares import as_run
from hush.privacy.vocabulary import Enrolled
from hush.random import derive
from hush.secagg.terms import Terms
from hush.tasks.catalogue import dataset
from hush.tasks.models import build_model
from hush.tasks.own import columns_of
from hush.tasks.task import Clients, Task

TheRemote = TypeVar("TheRemote", bound=Remote)

ELSEWHERE = "the clients' examples never were on the server, so nobody could check that its test examples are not among them"
INSECURE = "letters travelled without TLS and node authentication (--insecure): whoever is on the way could read and drop them"


def resolved(asked: RunConfig, members: Members) -> Experiment:
    """The run as it is proposed: every default filled in, the sum secure, everybody of the roster a client."""
    clients = len(members.cards)
    if asked.clients not in (None, clients):
        raise UsageError(f"The roster has {clients:,} clients, not {asked.clients:,}: leave --clients out.")
    mode = "secure" if asked.noise_seed is None else asked.noise_mode  # shares are exact, and nobody repeats them
    told = replace(asked, secure=True, clients=clients, diagnostics=False, noise_mode=mode)
    if asked.sampling is None:
        told = replace(told, sampling="rotation")
    if asked.cohort is None and told.sampling == "rotation":
        told = replace(told, cohort=float(clients))
    if asked.chunk is not None or asked.memory is not None:
        raise UsageError("--chunk and --memory are about clients that are simulated side by side: leave them out.")
    experiment = resolve(told)
    refuse_public_at_clients(experiment.method)
    refuse_what_cannot_travel(experiment.config, clients)
    return replace(experiment, config=replace(experiment.config, federation=members.fingerprint))


def task_of(experiment: Experiment, data_dir: Path | None) -> Task:
    """Model and the server's own examples; of the clients nothing but their number."""
    config, clients = experiment.config, experiment.config.clients
    assert clients is not None
    task = _of_own_tables(config) if dataset(config.data).own else experiment.task(data_dir)
    x, y = task.train.x[:0], task.train.y[:0]
    own = {part: getattr(task, part) for part in ("test", "validation", "public")}
    if any(isinstance(held, Clients) for held in own.values()):
        raise UsageError("The server judges models on examples of nobody: give it a test table of its own (test = ...).")
    caveats = tuple(line for line in task.caveats if "simulated" not in line)
    notes = tuple(line for line in task.notes if not line.startswith("partition"))
    nobody = torch.zeros(0, dtype=torch.int64) if config.unit == Unit.PERSON else None
    elsewhere = Clients(x, y, torch.zeros(clients, dtype=torch.int64), nobody)
    return replace(task, clients=elsewhere, caveats=(*caveats, ELSEWHERE), notes=notes)


def _of_own_tables(config: RunConfig) -> Task:
    """The tables that a description of the server's names, whoever trains elsewhere."""
    entry = dataset(config.data)
    raw = entry.load(Path())
    network = build_model(str(config.model), torch.Size(entry.shape), entry.classes, derive(config.seed, 11))
    return Task(
        model=network,
        clients=Clients(raw.train.x[:0], raw.train.y[:0], torch.zeros(1, dtype=torch.int64)),
        test=None if raw.test_owner is not None else raw.test,
        validation=raw.validation,
        public=raw.public,
        loss=entry.loss,
        metrics=entry.metrics,
        name=entry.name,
        model_name=shown(str(config.model)),
        drawn=remembered(network.state_dict()),
        person_rows=entry.person_rows,
    )


def examples_of(experiment: Experiment, task: Task) -> Examples:
    """What each client's examples must look like."""
    entry = dataset(experiment.config.data)
    like: dict[str, Any] = {
        "shape": tuple(entry.shape),
        "dtype": str(task.train.x.dtype).removeprefix("torch."),
        "classes": entry.classes,
    }
    like |= {"mean": tuple(entry.mean), "std": tuple(entry.std), "numbers": isinstance(entry.loss, nn.MSELoss)}
    if entry.own:
        columns = columns_of(Path(experiment.config.data))
        like |= {"target": columns.target, "features": tuple(columns.features or ()), "categories": dict(columns.categories)}
        if experiment.config.unit == Unit.PERSON:
            like |= {"person": columns.person, "person_rows": entry.person_rows}
    return Examples(**like)


def propose(experiment: Experiment, task: Task, members: Members) -> Proposal:
    """The run as clients are asked for it. The noise that an epsilon needs is found now, and is a number from here on."""
    config = experiment.config
    dim, clients = task.enrolled.dim, len(members.cards)
    assert dim is not None
    if config.epsilon is not None and "noise" in config.set:
        method = as_run(experiment.method, experiment.cohort, clients, False, experiment.secure_sum, config.dropout)
        enrolled = Enrolled(clients, dim=dim, persons=examples_of(experiment, task).persons)
        settled = settle_privacy(
            method, experiment.cohort, enrolled, experiment.rounds, experiment.budget, config.delta, config.dropout
        )
        if settled.plan is not None:
            noise = settled.plan.noise_multiplier
            config = replace(config, epsilon=None, noise=noise, delta=settled.delta, set=dict(config.set) | {"noise": noise})
    return Proposal(config, examples_of(experiment, task), dim, members)


class Rehearsal(Remote):
    """Clients whom nobody asks: what else could refuse a run does so before they are."""

    def __init__(self, proposal: Proposal) -> None:
        self.name = proposal.digest

    def bind(self, terms: Terms) -> Rehearsal:
        self.terms = terms
        return self

    def sum_of(self, *given: Any, **more: Any) -> NoReturn:
        raise UsageError("A rehearsal asks no clients, so it has no sums.")


def ready(proposal: Proposal, task: Task, insecure: bool, remote: Callable[[Proposal], TheRemote]) -> tuple[Run, TheRemote]:
    """The run itself, as the server plays it; with the very terms that clients derive for themselves."""
    experiment = Experiment.of(proposal.run)
    if insecure:
        task = replace(task, caveats=(*task.caveats, INSECURE))
    federation = remote(proposal)
    run = assemble(experiment.config, experiment.method, task, experiment.cohort, federation)
    own = proposal.run.method.partition("+")[0] if proposal.run.code is not None else None
    if agree(proposal, own).terms.digest != federation.terms.digest:
        raise UsageError("Clients would derive other terms from this run than the server has: it cannot be proposed.")
    return run, federation
