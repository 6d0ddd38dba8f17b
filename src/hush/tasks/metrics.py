"""How good a model is, in the measure its field uses. A metric is `f(outputs, targets) -> float` over all examples at once."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from hush.errors import UsageError
from hush.local.flat import IGNORED
from hush.names import pick

Metric = Callable[[Tensor, Tensor], float]
"""(outputs, targets), of all examples, to one number; not a number where it is not defined."""
Metrics = Sequence[str | Metric] | Mapping[str, Metric]


def auc(outputs: Tensor, targets: Tensor) -> float:
    """Area under the ROC curve: how often a member of the class scores above a non-member (ties half); mean over classes."""
    scores = _scores(outputs)
    targets = targets.reshape(-1)
    if len(scores) != len(targets):
        raise UsageError(f"auc takes one target for each example, not targets of shape {tuple(targets.shape)}.")
    scores, targets = scores[targets != IGNORED], targets[targets != IGNORED]
    if scores.dim() == 1:
        return _area(scores, targets > 0)
    classes = [1] if scores.shape[1] == 2 else range(scores.shape[1])
    areas = [_area(scores[:, c], targets == c) for c in classes]
    known = [area for area in areas if not math.isnan(area)]
    return sum(known) / len(known) if known else math.nan


def _scores(outputs: Tensor) -> Tensor:
    """One score for each class; for two classes, how far the second is ahead."""
    if outputs.dim() == 2 and outputs.shape[1] == 1:
        outputs = outputs[:, 0]
    if outputs.dim() == 1:
        return outputs
    if outputs.dim() != 2:
        raise UsageError(f"auc takes one score for each class, not outputs of shape {tuple(outputs.shape)}.")
    return torch.softmax(outputs.double(), 1)


def _area(scores: Tensor, member: Tensor) -> float:
    """Mann and Whitney's statistic, ties at their mean rank."""
    inside, outside = int(member.sum()), int((~member).sum())
    if not inside or not outside:
        return math.nan
    _, place, counts = torch.unique(scores, return_inverse=True, return_counts=True)
    last = torch.cumsum(counts, 0).double()
    rank = (last - (counts - 1) / 2)[place]
    return float((rank[member].sum() - inside * (inside + 1) / 2) / (inside * outside))


def macro_f1(outputs: Tensor, targets: Tensor) -> float:
    """Harmonic mean of precision and recall, averaged over the classes that occur, in truth or in the answers."""
    single = outputs.dim() == 1 or outputs.shape[1] == 1
    answers = (outputs.reshape(-1) > 0).long() if single else outputs.argmax(1).reshape(-1)
    truth = targets.reshape(-1).long()
    answers, truth = answers[truth != IGNORED], truth[truth != IGNORED]
    classes = max(int(outputs.shape[1]) if outputs.dim() > 1 else 2, 2)
    told, asked = torch.bincount(answers, minlength=classes), torch.bincount(truth, minlength=classes)
    right = torch.bincount(truth[answers == truth], minlength=classes)
    seen = (told + asked) > 0
    return float((2 * right[seen] / (told + asked)[seen]).double().mean()) if bool(seen.any()) else math.nan


def perplexity(outputs: Tensor, targets: Tensor) -> float:
    """e to the mean cross-entropy of a target: among how many equally likely tokens the model still hesitates."""
    loss = float(F.cross_entropy(outputs.float(), targets.long(), ignore_index=IGNORED))
    return math.nan if math.isnan(loss) else math.exp(min(700.0, loss))


def rmse(outputs: Tensor, targets: Tensor) -> float:
    """Root of the mean squared error."""
    return float(_errors(outputs, targets).square().mean().sqrt())


def mae(outputs: Tensor, targets: Tensor) -> float:
    """Mean absolute error."""
    return float(_errors(outputs, targets).abs().mean())


def _errors(outputs: Tensor, targets: Tensor) -> Tensor:
    if outputs.numel() != targets.numel():
        raise UsageError(f"Outputs of shape {tuple(outputs.shape)} and targets of {tuple(targets.shape)} have no difference.")
    return outputs.double().reshape(targets.shape) - targets.double()


METRICS: dict[str, Metric] = {"auc": auc, "macro_f1": macro_f1, "perplexity": perplexity, "rmse": rmse, "mae": mae}


def named(metrics: Metrics) -> dict[str, Metric]:
    """Metrics by name: those of Hush by theirs, a function by its own."""
    if isinstance(metrics, Mapping):
        return {name: next(iter(named((metric,)).values())) for name, metric in metrics.items()}
    if isinstance(metrics, str):
        metrics = (metrics,)
    given = {}
    for metric in metrics:
        if isinstance(metric, str):
            name = metric.replace("-", "_")
            given[name] = pick(METRICS, name, "metric")
        elif callable(metric):
            given[getattr(metric, "__name__", type(metric).__name__)] = metric
        else:
            raise UsageError(f"A metric is a name or a function of (outputs, targets), not {metric!r}.")
    return given


def usual(y: Tensor) -> dict[str, Metric]:
    """What one reports of targets like these besides loss and accuracy."""
    if y.is_floating_point():
        return {"rmse": rmse}
    return {"perplexity": perplexity} if y.dim() > 1 else {}
