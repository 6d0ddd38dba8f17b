"""Who holds what, as one picture: every client's labels, how many examples each has, how many kinds."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hush.report.plots import blank
from hush.tasks.clients import Clients

_SHOWN = 12
"""Labels with a colour of their own; the rarer ones share a grey."""
_COLOURS = (
    "#1f5fbf", "#e07b39", "#2e8b57", "#8e44ad", "#d4a017", "#17889b",
    "#c0334d", "#7a8f1f", "#5b4ba8", "#b0578d", "#3f7f5f", "#9a6b3c",
)  # fmt: skip
_OTHERS = "#c9ced6"


def label_counts(clients: Clients) -> NDArray[np.int64] | None:
    """`[clients, labels]`: how often each client holds each label; None where targets are not labels."""
    if clients.y.is_floating_point():
        return None
    labels = clients.y.reshape(len(clients.y), -1).numpy().astype(np.int64)
    owner = np.repeat(clients.owner.numpy(), labels.shape[1])
    labels = labels.reshape(-1)
    owner, labels = owner[labels >= 0], labels[labels >= 0]  # padding of a text is no label
    kinds = int(labels.max(initial=0)) + 1
    return np.bincount(owner * kinds + labels, minlength=clients.count * kinds).reshape(clients.count, kinds)


def effective_labels(counts: NDArray[np.int64]) -> NDArray[np.float64]:
    """How many labels a client has, the rare ones counting less: e to the entropy of its mix."""
    share = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    return np.asarray(np.exp(-(share * np.log(np.where(share > 0, share, 1.0))).sum(1)), dtype=np.float64)


def summary(clients: Clients) -> dict[str, Any]:
    """The figures of the picture."""
    sizes = clients.sizes.double().numpy()
    told: dict[str, Any] = {"clients": clients.count, "examples": int(sizes.sum()), "examples_per_client": _spread(sizes)}
    counts = label_counts(clients)
    some = None if counts is None else counts[counts.sum(1) > 0]
    told["labels_per_client"] = None if some is None else _spread((some > 0).sum(1).astype(float))
    told["effective_labels_per_client"] = None if some is None else _spread(effective_labels(some))
    return told


def _spread(values: NDArray[np.float64]) -> dict[str, float]:
    figures = {"min": values.min(), "median": np.median(values), "mean": values.mean(), "max": values.max()}
    return {key: round(float(value), 4) for key, value in figures.items()}


def partition_figure(clients: Clients, title: str, names: tuple[str, ...] = ()) -> Any:
    """Each client a column of its labels' shares, sorted by their commonest; beside it sizes and kinds."""
    figure = blank(11, 4.6, what="Pictures")
    counts = label_counts(clients)
    if counts is None:
        _sizes(figure.subplots(), clients)
    else:
        panels = figure.subplot_mosaic([["labels", "sizes"], ["labels", "kinds"]], width_ratios=(2.4, 1))
        _labels(panels["labels"], counts[counts.sum(1) > 0], names)
        _sizes(panels["sizes"], clients)
        _kinds(panels["kinds"], counts[counts.sum(1) > 0])
    for axes in figure.axes:
        axes.spines[["top", "right"]].set_visible(False)
    figure.suptitle(title, fontsize=12)
    return figure


def _labels(axes: Any, counts: NDArray[np.int64], names: tuple[str, ...]) -> None:
    from matplotlib.colors import ListedColormap
    from matplotlib.patches import Patch

    common = np.argsort(-counts.sum(0), kind="stable")
    own, rest = np.sort(common[:_SHOWN]), common[_SHOWN:]
    share = counts / counts.sum(1, keepdims=True)
    shown = np.concatenate([share[:, own], share[:, rest].sum(1, keepdims=True)], axis=1)
    top = shown[:, : len(own)].argmax(1)
    by_top = np.lexsort((-shown[np.arange(len(shown)), top], top))
    axes.imshow(
        _columns(shown[by_top], top[by_top]),
        cmap=ListedColormap([*_COLOURS[: len(own)], _OTHERS]),
        vmin=-0.5,
        vmax=len(own) + 0.5,
        origin="lower",
        aspect="auto",
        interpolation="nearest",
        extent=(0, len(shown), 0, 1),
    )
    told = [names[label] if label < len(names) else str(label) for label in own]
    patches = [Patch(color=colour, label=name) for colour, name in zip(_COLOURS, told, strict=False)]
    patches += [Patch(color=_OTHERS, label=f"{len(rest)} others")] if len(rest) else []
    axes.set(xlabel=f"{len(shown):,} clients, by their commonest label", ylabel="share of a client's examples")
    below = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.13), "ncols": 7}
    axes.legend(handles=patches, frameon=False, fontsize=8, handlelength=1.0, **below)


def _columns(share: NDArray[np.float64], top: NDArray[np.int64], height: int = 400) -> NDArray[np.int64]:
    """`[height, clients]`: the label at each height of a client's column, its commonest at the bottom."""
    kinds = share.shape[1]
    order = np.argsort(np.arange(kinds)[None] != top[:, None], axis=1, kind="stable")
    edges = np.cumsum(np.take_along_axis(share, order, 1), axis=1)
    level = (np.arange(height) + 0.5) / height
    place = (level[:, None, None] > edges[None] + 1e-9).sum(2).clip(max=kinds - 1)
    return np.take_along_axis(order, place.T, 1).T


def _sizes(axes: Any, clients: Clients) -> None:
    sizes = clients.sizes.double().numpy()
    low, high = max(sizes.min(), 1.0), max(sizes.max(), 1.0)
    if high - low < 1.5:
        each = f"{sizes.min():,.0f}" if sizes.min() == sizes.max() else f"{sizes.min():,.0f} or {sizes.max():,.0f}"
        axes.text(0.5, 0.5, f"every client holds\n{each} examples", ha="center", va="center", transform=axes.transAxes, fontsize=11)
        axes.set_axis_off()
        return
    wide = high > 20 * low
    axes.hist(np.maximum(sizes, 1), bins=np.geomspace(low, high, 31) if wide else 30, color=_COLOURS[0])
    if wide:
        axes.set_xscale("log")
    axes.set(xlabel=f"examples of a client ({sizes.min():,.0f} to {sizes.max():,.0f})", ylabel="clients")


def _kinds(axes: Any, counts: NDArray[np.int64]) -> None:
    effective, labels = effective_labels(counts), float((counts.sum(0) > 0).sum())
    few = labels <= 20  # then all of the range is worth seeing
    axes.hist(effective, bins=30, range=(1, max(2.0, labels)) if few else None, color=_COLOURS[2])
    axes.set(xlabel="effective number of labels of a client\n(e to the entropy of its mix)", ylabel="clients")
