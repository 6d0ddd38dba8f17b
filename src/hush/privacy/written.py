"""Plans as plain values, for certificates and ledgers; and back, accepting the vocabulary's own words and nothing else."""

from __future__ import annotations

from typing import Any

from hush.errors import UsageError
from hush.plain import plain
from hush.privacy.bounds import (
    Bit,
    Bound,
    L2Ball,
    LinearImage,
    LInfBox,
    OneVote,
    Quantised,
    RecordMean,
    Rounded,
    Weighted,
)
from hush.privacy.guarantee import Relation, Unit, View
from hush.privacy.vocabulary import (
    BinomialNoise,
    BoundedParticipation,
    DiscreteGaussianNoise,
    Divisor,
    Drawn,
    Everyone,
    FixedSampling,
    GaussianNoise,
    LaplaceNoise,
    MinSeparation,
    Noise,
    On,
    Phase,
    Plan,
    PoissonSampling,
    Release,
    Sampler,
    Sampling,
    SecretParticipation,
    SideData,
    SkellamNoise,
)


def plan_to_dict(plan: Plan) -> dict[str, Any]:
    """Plain values for JSON; `plan_from_dict` is the inverse."""
    value: dict[str, Any] = plain(plan)
    return value


_KINDS: dict[str, Any] = {
    kind.__name__: kind
    for kind in (
        *(L2Ball, LInfBox, LinearImage, OneVote, Bit, RecordMean, Weighted, Rounded, Quantised),
        *(GaussianNoise, DiscreteGaussianNoise, SkellamNoise, LaplaceNoise, BinomialNoise),
        *(Everyone, PoissonSampling, FixedSampling, BoundedParticipation, SecretParticipation, MinSeparation),
        *(Release, Phase, Plan),
    )
}
_ENUMS = {
    "unit": Unit,
    "sampled": Unit,
    "relation": Relation,
    "view": View,
    "drawn": Drawn,
    "by": Sampler,
    "on": On,
    "divisor": Divisor,
    "side_data": SideData,
}
_PLACES: dict[str, type] = {"bound": Bound, "inner": Bound, "noise": Noise, "sampling": Sampling}
"""What may stand where."""


def plan_from_dict(value: dict[str, Any]) -> Plan:
    """The plan that `Plan.to_dict` wrote."""
    try:
        plan = _made(value)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UsageError(f"This is not a plan that Hush wrote: {error}.") from None
    if not isinstance(plan, Plan):
        raise UsageError("This is not a plan that Hush wrote.")
    return plan


def phase_from_dict(value: dict[str, Any]) -> Phase:
    """One phase, as a ledger holds it."""
    phase = _made(value)
    if not isinstance(phase, Phase):
        raise UsageError("This is not a phase that Hush wrote.")
    return phase


def phase_to_dict(phase: Phase) -> dict[str, Any]:
    """The inverse of `phase_from_dict`."""
    value: dict[str, Any] = plain(phase)
    return value


def _made(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(_made(item) for item in value)
    if not isinstance(value, dict):
        return value
    kind = _KINDS[value["kind"]]
    made = {key: _ENUMS[key](item) if key in _ENUMS else _made(item) for key, item in value.items() if key != "kind"}
    for key, item in made.items():
        if key in _PLACES and not isinstance(item, _PLACES[key]):
            raise ValueError(f"{key} is a {type(item).__name__}")
    return kind(**made)
