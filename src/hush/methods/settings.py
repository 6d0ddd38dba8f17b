"""What the settings of `--set` mean, one line each: `hush methods NAME` prints them, and docs/settings.md has them by subject."""

from __future__ import annotations

import inspect
from typing import Any, NamedTuple

from hush.methods import METHODS, settings_of
from hush.methods.parts import split


class Setting(NamedTuple):
    """A key, as one method takes it."""

    key: str
    default: str
    meaning: str


class Known(NamedTuple):
    """A key, as most methods take it. Of a default of None, `unset` says what happens instead."""

    meaning: str
    default: Any = None
    unset: str = "none"


KNOWN: dict[str, Known] = {
    "lr": Known("local learning rate", 0.1),
    "lr_decay": Known("lr is multiplied by this every lr_decay_every rounds", 1.0),
    "lr_decay_every": Known("rounds from one decay of lr to the next", 1),
    "momentum": Known("local momentum, reset every round", 0.0),
    "batch_size": Known("local batch", 10),
    "local_epochs": Known("passes over a client's own examples, unless local_steps is given", 1),
    "local_steps": Known("exactly so many batches a client and round", None, "local_epochs"),
    "max_local_steps": Known("the most batches a client trains on in a round, whatever its size"),
    "prox": Known("FedProx's pull towards the global model", 0.0),
    "blur": Known("BLUR's pull on updates that leave blur_limit while they are trained", 0.0),
    "blur_limit": Known("the norm that BLUR pulls back to", None, "the clip, if any"),
    "sparsity": Known("LUS: the share of every layer that a client drops, the least salient; noise covers all the same", 0.0),
    "weight_cap": Known("weigh clients by min(examples, cap)/cap; only bounded weights have a bound", None, "all alike"),
    "server": Known("average, momentum, adam or fed-spa", "average"),
    "server_lr": Known("the server's step; of adam and fed-spa 0.01", None, "1 or 0.01"),
    "server_lr_decay": Known("the server's step shrinks by this factor from round to round", 1.0),
    "server_momentum": Known("of server=momentum, adam and fed-spa", 0.9),
    "server_beta2": Known("of server=adam and fed-spa", 0.99),
    "kappa": Known("of server=adam and fed-spa: added to the root in the denominator", 0.001),
    "average_iterates": Known("decay of an average of the released models, between 0 and 1; 0 is none", 0.0),
    "clip": Known("the most that a client's update (a record's gradient, where records are protected) may weigh", 1.0),
    "clip_quantile": Known("let the clip follow this quantile of the norms, by a noised bit that the plan pays for", None, "fixed"),
    "clip_tolerance": Known("the share that clipping may take of an update that still counts as inside"),
    "clip_lr": Known("how fast the clip follows"),
    "clip_in": Known("clip the sketch; the gradient, at the price of a sketch's largest norm; or as the paper, without a number"),
    "clip_per": Known("clip a record's gradient by its l2 norm, or per coordinate"),
    "noise": Known("noise multiplier, as --noise gives it", None, "from the budget"),
    "noise_by": Known("noise by the server, in shares under a secure sum, on every client's messages; or none, without privacy"),
    "noise_on": Known("all: noise on the kept coordinates alone is refused, for it has no proof"),
    "mask": Known("none, rand-k, top-k or saliency (from public examples), free (from past noised sums), sketch", "none"),
    "ratio": Known("with a mask: the share of coordinates that is sent", 0.1),
    "explore": Known("mask=free: the share of these that is drawn at random", 0.2),
    "public_steps": Known("top-k, saliency: batches the server trains on public examples; 0 is the clients' own epochs", 0),
    "rows": Known("sketch: rows of counters", 5),
    "cols": Known("sketch: counters in a row; below 1 a share of the model", 0.07),
    "k": Known("sketch: coordinates applied in a round; below 1 a share of the model", 0.007),
    "factor": Known("the clip is so many times the norm of past noised averages"),
    "memory": Known("how slowly that norm follows"),
    "history": Known("global; a clip that follows a client's own past is refused, for it has no proof"),
    "bits": Known("bits of an entry, and of the sum"),
    "shares": Known("every client adds a share of the noise: then the server is covered, and nothing is amplified"),
    "queries": Known("the most public examples that are voted on"),
    "vote_memory": Known("what the votes of the last round weigh against this one's"),
    "server_epochs": Known("the server's passes over the public examples that were voted on"),
    "server_train_lr": Known("the server's learning rate there"),
    "server_batch_size": Known("the server's batch there"),
    "bits_per_query": Known("what a public example costs on the way down; 0: clients have them"),
    "batches": Known("poisson or fixed batches of records, drawn anew and in secret at every step"),
    "mode": Known("proved; or paper, as it is written, without a number"),
    "secure_sum": Known("whether the paper's claim counts on one; what is proved is the same"),
    "levels": Known("how many levels a coordinate has in [-most, most]"),
    "most": Known("the largest coordinate"),
    "trials": Known("fair coins in the noise", None, "from the budget"),
    "rotate": Known("rotate at random before rounding"),
}

_GRADIENT = {"lr": 1.0, "batch_size": 50, "local_steps": 1}
_SKETCHED = {**_GRADIENT, "server_lr": 1.0, "server_momentum": 0.0}
_DENSE = {**_GRADIENT, "local_epochs": None, "server": "momentum", "server_lr": 0.1}
_NOISY_STEPS = {"local_steps": 10}
INSTEAD: dict[str, dict[str, Any]] = {
    **dict.fromkeys(("fetchsgd", "dpsfl", "dpsfl-ac"), _SKETCHED),
    **dict.fromkeys(("dpfl", "adpfl"), _DENSE),
    **dict.fromkeys(("dp-fed", "cpfed"), _NOISY_STEPS),
    "fed-spa": {**_NOISY_STEPS, "server": "fed-spa", "server_lr": 0.01},
    "ae-dpfl": {"local_epochs": 20},
}
"""Where a method's own default is another."""


def explained(name: str) -> list[Setting]:
    """All settings of a method, by its name with or without parts: those of its own first."""
    base, parts = split(name)
    own = {
        key: parameter.default
        for key, parameter in inspect.signature(METHODS[base]).parameters.items()
        if parameter.kind is not parameter.VAR_KEYWORD
    }
    found = []
    for key in sorted(settings_of(name), key=lambda key: key not in own):
        known = KNOWN[key]
        default = {key: known.default, **{k: v for k, v in own.items() if v is not None}, **INSTEAD.get(base, {}), **parts}[key]
        found.append(Setting(key, known.unset if default is None else _word(default), known.meaning))
    return found


def _word(value: Any) -> str:
    """As `--set` takes it."""
    return str(value).lower() if isinstance(value, bool) else f"{value:g}" if isinstance(value, float) else str(value)
