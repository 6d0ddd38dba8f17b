"""A task of the catalogue: data set, partition, model, one line."""

from __future__ import annotations

from pathlib import Path

import torch

from hush.errors import UsageError
from hush.local.remembered import remembered
from hush.names import pick
from hush.plugins import shown as without_place
from hush.random import derive
from hush.tasks.catalogue import dataset
from hush.tasks.deal import EVALUATIONS, deal, fewer
from hush.tasks.fetch import data_dir
from hush.tasks.models import build_model
from hush.tasks.models.pixels import on_pixels
from hush.tasks.start import STARTS, read_start, start_from
from hush.tasks.task import Task

_PUBLIC_START = "the model's features come from public examples too, which must belong to nobody that this statement speaks of"


def load_task(
    data: str = "digits",
    model: str | None = None,
    *,
    clients: int | None = None,
    split: str | None = None,
    validation: int | None = None,
    public: int = 0,
    evaluation: str | None = None,
    test_examples: int | None = None,
    start: str = "random",
    seed: int = 0,
    folder: Path | None = None,
) -> Task:
    """`data` split over `clients`, with `validation` and `public` examples taken out of the training set *first*.

    Args:
        data: a name of the catalogue; `None` elsewhere means its default there.
        model: a name of `hush models`.
        clients: how many; by default the paper's number, or all there are by nature.
        split: `iid`, `dirichlet:ALPHA`, `shards:K`, `natural`, or with sizes `iid+lognormal:SIGMA`, `dirichlet:ALPHA+zipf:A`.
        validation: examples that pick the best round; they belong to no client.
        public: examples that a mask may be made from; they belong to no client either.
        evaluation: `central`, on examples of nobody; or `clients`: each keeps a tenth of its own to validate and one to test.
        test_examples: at most so many, drawn by the seed.
        start: `random` weights; or features of images of nobody, `processes`, and of public examples, `public`, on which clients
            train the last layer alone. `processes:2500` trains the layers before on such images first.
        seed: of the split and of the model's weights.
        folder: where data sets lie.
    """
    entry = dataset(data)
    evaluation = evaluation or entry.evaluation
    pick(dict.fromkeys(EVALUATIONS), evaluation, "evaluation")
    split = split or entry.partition
    held = entry.validation if validation is None else validation
    if evaluation == "clients":
        if validation:
            raise UsageError("With evaluation=clients each client keeps a tenth of its own for validation: leave validation out.")
        held = 0
    if entry.own and not entry.train and split != "nobody":
        raise UsageError(f"{Path(data).name} has no train table: it is for the server of a federation (hush server).")
    if entry.own and split != "natural":
        raise UsageError(f"{Path(data).name} says who its clients are: '{split}' would prove something about invented ones.")
    if entry.text and model not in (None, *entry.papers):
        raise UsageError(f"{data} is text: its model is {' or '.join(entry.papers)}.")
    network = build_model(model or entry.model, torch.Size(entry.shape), entry.classes, derive(seed, 11))
    wanted = clients if clients is not None or split == "natural" else entry.clients
    dealt = deal(entry.load(data_dir(folder)), split, wanted, held, public, seed, evaluation)
    test, note = fewer(dealt.test, test_examples if test_examples is not None else entry.test_examples, seed)
    name, _ = read_start(start)
    shown = f" ({len(dealt.public.x):,} of them)" if name == "public" and dealt.public is not None else ""
    told = (f"start {start}: {STARTS[name]}{shown}",) if name != "random" else ()
    whole = on_pixels(network, entry.mean, entry.std) if entry.mean else network
    whole = start_from(start, whole, entry.shape, dealt.public, in_bytes=bool(entry.mean))
    return Task(
        model=whole,
        clients=dealt.clients,
        test=test,
        validation=dealt.validation,
        public=dealt.public,
        loss=entry.loss,
        metrics=entry.metrics,
        name=entry.name,
        notes=(f"partition: {split}", *dealt.notes, *note, *told),
        caveats=(*dealt.caveats, *((_PUBLIC_START,) if name == "public" else ())),
        of_clients=dealt.of_clients,
        of_persons=dealt.of_persons,
        model_name=without_place(model or entry.model),
        drawn=remembered(whole.state_dict()),
        person_rows=entry.person_rows,
    )
