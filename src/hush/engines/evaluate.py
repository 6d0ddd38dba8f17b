"""Loss, accuracy and the task's own metrics of a model, over all examples and, where these belong to clients, client by client."""

from __future__ import annotations

import math
import warnings
from typing import Any, NamedTuple

import torch
from torch import Tensor

from hush.engines.run import Run
from hush.errors import UsageError
from hush.local.flat import IGNORED, FlatModel, Scores
from hush.tasks.clients import Clients, Examples
from hush.tasks.metrics import perplexity
from hush.tasks.task import Task


class Figures(NamedTuple):
    """How good a model is; None where a figure is not defined."""

    loss: float | None = None
    accuracy: float | None = None
    metrics: dict[str, float | None] | None = None
    per_client: dict[str, Any] | None = None


def evaluate(run: Run, model: Tensor, part: str) -> Figures:
    """`model` on the task's `test` or `validation` examples."""
    examples = run.data.test if part == "test" else run.data.validation
    if examples is None or not len(examples.x):
        return Figures()
    measures = run.data.task.measures()
    from_loss = run.data.task.loss is None  # perplexity is then e to the loss, and no outputs need be kept
    wanted = {name: m for name, m in measures.items() if not (m is perplexity and from_loss)}
    scores = run.data.server.learner.scores(model, *examples, outputs=bool(wanted))
    weight = scores.targets.double()
    loss = _mean(scores.losses, weight)
    found: dict[str, float | None] = {}
    targets = _targets(run.data.task, examples.y)
    for name, measure in measures.items():
        if name in wanted:
            try:
                found[name] = _finite(float(measure(scores.outputs, targets)))  # type: ignore[arg-type]
            except Exception as error:  # rounds were paid for: a figure less must not lose the model
                found[name] = None
                warnings.warn(f"The metric '{name}' failed on the {part} examples, so it is null: {error}", stacklevel=2)
        else:
            found[name] = None if loss is None else _finite(math.exp(min(loss, 700.0)))
    accuracy = None if scores.correct is None else _mean(scores.correct, weight)
    held = getattr(run.data.task, part)
    return Figures(loss, accuracy, found, _per_client(scores, held) if isinstance(held, Clients) else None)


def _targets(task: Task, y: Tensor) -> Tensor:
    """Targets as metrics know them: padding has PyTorch's own number, whatever the task's loss calls it."""
    if task.ignored == IGNORED or y.is_floating_point():
        return y
    return y.masked_fill(y == task.ignored, IGNORED)


def refuse_broken_metrics(task: Task, learner: FlatModel, examples: Examples | None) -> None:
    """Try the task's metrics before the first round is paid for."""
    if examples is None or not len(examples.x) or not task.measures():
        return
    few = Examples(examples.x[:256], examples.y[:256])
    outputs = learner.scores(learner.initial(), *few, outputs=True).outputs
    for name, measure in task.measures().items():
        try:
            float(measure(outputs, _targets(task, few.y)))  # type: ignore[arg-type]
        except UsageError:
            raise
        except Exception as error:
            why = f"{type(error).__name__}: {str(error)[:120]}".splitlines()[0]
            raise UsageError(
                f"The metric '{name}' cannot be computed on {len(few.x)} of the task's examples ({why}): it takes all outputs and "
                "targets, and returns one number."
            ) from None


def _per_client(scores: Scores, held: Clients) -> dict[str, Any] | None:
    """How unequally the model serves the clients: its accuracy, or else its loss, on each one's own examples."""
    figure, values = ("accuracy", scores.correct) if scores.correct is not None else ("loss", scores.losses)
    weight, owner = scores.targets.double().cpu(), held.owner.cpu()
    total = torch.zeros(held.count, dtype=torch.float64).index_add_(0, owner, values.double().cpu() * weight)
    count = torch.zeros(held.count, dtype=torch.float64).index_add_(0, owner, weight)
    each = total[count > 0] / count[count > 0]
    if not len(each):  # nothing but padding
        return None
    worst, tenth = (each.min(), 0.1) if figure == "accuracy" else (each.max(), 0.9)
    told = {
        "mean": float(each.mean()),
        "std": float(each.std(correction=0)),
        "worst": float(worst),
        "worst_tenth": float(torch.quantile(each, tenth, interpolation="lower" if figure == "accuracy" else "higher")),
    }
    return {"figure": figure, "clients": len(each)} | {key: _finite(value) for key, value in told.items()}


def _mean(values: Tensor, weight: Tensor) -> float | None:
    return _finite(float((values.double() * weight).sum() / weight.sum().clamp_min(1.0)))


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
