"""Plans as plain values, for certificates and ledgers; and back, accepting the vocabulary's own words and nothing else."""

from __future__ import annotations

from typing import Any

from hush.errors import UsageError
from hush.plain import plain
from hush.privacy import bounds
from hush.privacy import vocabulary as say
from hush.privacy.bounds import Bound
from hush.privacy.guarantee import Relation, Unit, View
from hush.privacy.vocabulary import Drawn, Phase, Plan, Release, Sampling


def plan_to_dict(plan: Plan) -> dict[str, Any]:
    """Plain values for JSON; `plan_from_dict` is the inverse."""
    value: dict[str, Any] = plain(plan)
    return value


_KINDS: dict[str, Any] = {
    kind.__name__: kind
    for kind in (
        *(bounds.L2Ball, bounds.LInfBox, bounds.LinearImage, bounds.OneVote, bounds.Bit),
        *(bounds.RecordMean, bounds.Weighted, bounds.Rounded, bounds.Quantised),
        *(say.GaussianNoise, say.DiscreteGaussianNoise, say.SkellamNoise, say.LaplaceNoise, say.BinomialNoise),
        *(say.Everyone, say.PoissonSampling, say.FixedSampling),
        *(say.BoundedParticipation, say.SecretParticipation, say.MinSeparation),
        *(Release, Phase, Plan),
    )
}
_ENUMS = {
    "unit": Unit,
    "sampled": Unit,
    "relation": Relation,
    "view": View,
    "drawn": Drawn,
    "by": say.Sampler,
    "on": say.On,
    "divisor": say.Divisor,
    "side_data": say.SideData,
}
_PLACES: dict[str, type] = {"bound": Bound, "inner": Bound, "noise": say.Noise, "sampling": Sampling}
"""What may stand where."""


def plan_from_dict(value: dict[str, Any]) -> Plan:
    """The plan that `plan_to_dict` wrote."""
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
