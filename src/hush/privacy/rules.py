"""What has no proof is refused, with the reason and the fix. One function, one rule."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

from hush.errors import NoGuarantee
from hush.privacy import vocabulary as say
from hush.privacy.bounds import Bit, Bound, LinearImage, Quantised, RecordMean, Weighted
from hush.privacy.guarantee import LARGEST_DELTA, Relation, Unit, View, at_least
from hush.privacy.vocabulary import Drawn, Phase, Plan, Release

_FEW = 100
"""Below so many clients, noise for whole clients leaves little to learn."""


def refuse_without_proof(plan: Plan) -> None:
    """Raise `NoGuarantee` for the first rule that the plan breaks."""
    if not plan.phases or not all(phase.releases for phase in plan.phases):
        raise NoGuarantee("Nothing in this plan is noised, so there is no privacy guarantee.", "Add noise to every release.")
    _side_data(plan)
    _local_noise(plan)
    _relation(plan)
    _holders(plan)
    for phase in plan.phases:
        _participation(plan, phase)
        _adaptive(phase)
        for release in phase.releases:
            _bound(release.bound, plan.unit)
            _noise(plan, phase, release)
            _skellam(phase, release)
            _divisor(plan, phase, release)
        _amplification(plan, phase)


def _side_data(plan: Plan) -> None:
    if plan.side_data is say.SideData.PRIVATE:
        raise NoGuarantee(
            "A mask or statistic is computed from the protected data without noise, which voids the guarantee.",
            "Take it from public examples that belong to no client, from noised sums of earlier rounds, or draw it at random.",
        )


def _local_noise(plan: Plan) -> None:
    if plan.noise_per_local_step and plan.view is View.SECAGG:
        raise NoGuarantee(
            "Noise inside the local loop: other clients' noise does not hide this client's trajectory (CPFed's lemma 4 is false).",
            "Clip the final update and add the noise once, or account every local step with its own noise (view 'messages').",
        )


def _relation(plan: Plan) -> None:
    if plan.relation is Relation.ADD_REMOVE and plan.view is not View.RELEASED:
        raise NoGuarantee(
            f"In the view '{plan.view}' who takes part is visible, so adding or removing a {plan.unit} cannot be hidden.",
            "Ask for zero-out (sensitivity C) or replace-one (2C).",
        )
    own = any(release.noise.drawn is not Drawn.SERVER for release in plan.releases)
    if own and plan.relation is Relation.ADD_REMOVE and not all(isinstance(p.sampling, say.FixedSampling) for p in plan.phases):
        raise NoGuarantee(
            f"The {plan.unit}s draw the noise themselves, so one that is removed takes its noise along, and the sum shows it.",
            "Ask for zero-out or replace-one, or let a trusted server draw the noise once.",
        )
    secret = any(isinstance(phase.sampling, say.SecretParticipation) for phase in plan.phases)
    if secret and plan.relation is Relation.ADD_REMOVE:
        raise NoGuarantee(
            "Under secret participation the contacted clients are public, so adding or removing one cannot be hidden.",
            "Ask for zero-out: what a client's data said stays secret.",
        )


def _holders(plan: Plan) -> None:
    several = any(phase.holders > 1 for phase in plan.phases)
    if several and plan.unit is not Unit.PERSON:
        raise NoGuarantee(f"A {plan.unit} lies at one client.", "Leave holders out.")
    if several and plan.view is not View.MESSAGES:
        raise NoGuarantee(
            "Several clients have rows of one person and add to the same sum, so that it holds several clips of that person.",
            "Bring each person's rows to one client, or let every client cover its own message: leave --secure out.",
        )


def _participation(plan: Plan, phase: Phase) -> None:
    sampling = phase.sampling
    if sampling.amplifies and plan.unit is Unit.CLIENT and (phase.participations is not None or phase.period is not None):
        raise NoGuarantee(
            "Clients are drawn by chance and their turns are limited: then the draws are not independent, and a client may be in "
            "any of the rounds, not in a given one by chance.",
            "Count every round (participations=None), or let sampling amplify nothing: BoundedParticipation.",
        )
    if isinstance(sampling, say.BoundedParticipation) and sampling.times is None:
        raise NoGuarantee(
            "Nothing limits how often a client takes part, so its loss has no limit either.",
            "Cap the participations beforehand and enforce it: Bounded(size, participations=k).",
        )
    if isinstance(sampling, say.MinSeparation) and phase.steps > 1:
        raise NoGuarantee("Correlated noise is proved for one release a round.", "Release once a round.")
    if isinstance(sampling, say.MinSeparation):
        column = sampling.strategy
        if not all(v >= 0 for v in column) or any(b > a for a, b in itertools.pairwise(column)):
            raise NoGuarantee(
                "The worst pattern of participation is known only for strategies that are non-negative and do not increase.",
                "Use a Toeplitz strategy such as (2j choose j)/4^j.",
            )


def _adaptive(phase: Phase) -> None:
    adaptive = any(getattr(r.bound, "adaptive", False) for r in phase.releases)
    if adaptive and not any(isinstance(r.bound, Bit) for r in phase.releases):
        raise NoGuarantee(
            "The clip adapts to the clients' norms, and the bits that it adapts by are not among the releases.",
            "Put the bit under the same noise, as AdaptiveClip does.",
        )


def _amplification(plan: Plan, phase: Phase) -> None:
    sampling = phase.sampling
    if not sampling.amplifies:
        return
    if isinstance(sampling, say.PoissonSampling | say.FixedSampling | say.SecretParticipation):
        if plan.unit is not plan.sampled:
            raise NoGuarantee(
                f"{str(plan.sampled).capitalize()}s are sampled and {plan.unit}s are protected: the output can show whether the "
                f"{plan.sampled} took part, so epsilon is not amplified.",
                f"Sample {plan.unit}s, or bound the participations (BoundedParticipation).",
            )
        if sampling.population != plan.population:
            raise NoGuarantee(
                f"The sampling is from {sampling.population:,} {plan.sampled}s and {plan.population:,} are enrolled: "
                "a hypothetical population amplifies nothing.",
                "Sample from those who are really there.",
            )
    if isinstance(sampling, say.SecretParticipation):
        return  # its coins are the client's own, and everybody sends noise
    hidden = getattr(sampling, "by", say.Sampler.SERVER) is say.Sampler.OWN and plan.sampled.within_client
    if plan.view is not View.RELEASED and not hidden:
        raise NoGuarantee(
            "A server that picks the cohort, or sees who sends, knows who is in it: against it, sampling amplifies nothing.",
            "Use secret participation, bound the participations, or ask for the view 'released'.",
        )
    theirs = any(release.noise.drawn is not Drawn.SERVER for release in phase.releases)
    if theirs and isinstance(sampling, say.PoissonSampling) and not hidden:
        raise NoGuarantee(
            "The selected clients add shares of the noise, so it shows how many there were, and Poisson amplification is lost.",
            "Use secret participation, where everybody contacted sends noise, or let a trusted server draw the noise once.",
        )


def _bound(bound: Bound, unit: Unit) -> None:
    if isinstance(bound, LinearImage) and bound.operator_norm is None:
        raise NoGuarantee(
            "A sketch after the clip: sqrt(rows) * C does not bound its norm, because of hash collisions.",
            "Clip the sketch table itself, or give a proved operator norm.",
        )
    if isinstance(bound, RecordMean) and not bound.per_record:
        raise NoGuarantee(
            "The mean gradient is clipped, not each record: one record can move the whole clipped vector.",
            "Clip record by record, or take the bound C without 1/B, under replace-one 2C.",
        )
    if isinstance(bound, RecordMean) and unit is Unit.CLIENT:
        raise NoGuarantee(
            "A client can move every record of the batch, so a mean over records does not bound what it adds.",
            "Protect records, or clip the client's own update.",
        )
    if isinstance(bound, Quantised):
        _bound(bound.inner, unit)
    if isinstance(bound, Weighted):
        if bound.largest is None:
            raise NoGuarantee(
                "Clients are weighted by how many examples they hold, and nothing bounds the weight.",
                "Weight all alike, or cap the weights.",
            )
        _bound(bound.inner, unit)
    if not math.isfinite(bound.reach()):
        raise NoGuarantee("The noise covers no bound.", "Put Clip(C) directly before it.")


def _noise(plan: Plan, phase: Phase, release: Release) -> None:
    noise = release.noise
    if noise.on is say.On.SUPPORT:
        raise NoGuarantee(
            "Noise only where the private vector is not zero releases its support: epsilon is infinite.",
            "Noise every entry, or use a mask that is public.",
        )
    if noise.drawn is Drawn.SERVER and plan.view is not View.RELEASED:
        raise NoGuarantee(
            f"The server draws the noise itself, so in the view '{plan.view}' nothing covers a client.",
            "Let the clients draw it: shares under a secure sum, or noise on every message.",
        )
    if noise.drawn is Drawn.SHARES and plan.view is not View.MESSAGES and plan.honest_min is None:
        raise NoGuarantee(
            "Clients add shares of the noise, and nothing says how many honest ones survive.",
            "State honest_min, the fewest honest shares in any sum; the protocol that sums must enforce it.",
        )
    if noise.drawn is Drawn.SHARES and plan.honest_min is not None and plan.honest_min > _most_shares(plan, phase):
        raise NoGuarantee(
            f"{plan.honest_min:,} honest shares are counted on, and no more than {_most_shares(plan, phase):,} are sent.",
            "Count those that are really there.",
        )
    if isinstance(noise, say.LaplaceNoise) and noise.drawn is Drawn.SHARES:
        raise NoGuarantee("A sum of Laplace shares is not Laplace noise.", "Use Gaussian or Skellam noise for shares.")
    if isinstance(noise, say.GaussianNoise) and noise.secure and noise.drawn is Drawn.SHARES:
        raise NoGuarantee("Rounded Gaussian shares do not add up to a rounded Gaussian.", "Draw shares of Skellam noise.")
    lattice = release.bound.lattice or math.nan
    integers = isinstance(noise, say.DiscreteGaussianNoise | say.SkellamNoise | say.BinomialNoise)
    if integers and not math.isclose(lattice, getattr(noise, "grid", 0.0), rel_tol=1e-9):
        raise NoGuarantee(
            "Integer noise covers integers alone: off its grid, one contribution shows through at once.",
            "Round contributions to the grid of the noise, and bound their norm after that (Discretize).",
        )
    if isinstance(noise, say.DiscreteGaussianNoise) and noise.drawn is Drawn.SHARES and noise.std < noise.grid / 2:
        raise NoGuarantee(
            "Shares below half a grid step are outside of the theorem on their sum.", "Take a finer grid, or Skellam."
        )
    if isinstance(noise, say.DiscreteGaussianNoise) and noise.drawn is Drawn.SHARES and noise.entries is None:
        raise NoGuarantee(
            "A sum of discrete Gaussian shares is not discrete Gaussian, and the correction grows with the number of entries.",
            "State the entries, or use Skellam noise, whose sums are Skellam.",
        )


def _skellam(phase: Phase, release: Release) -> None:
    """Its proof is for whole numbers."""
    if isinstance(release.noise, say.SkellamNoise) and isinstance(phase.sampling, say.MinSeparation):
        raise NoGuarantee(
            "Correlated noise weighs what it covers by its strategy, and Skellam noise covers whole numbers alone.",
            "Use Gaussian noise.",
        )


def _most_shares(plan: Plan, phase: Phase) -> int:
    """How many shares of noise a sum can hold."""
    sampling = phase.sampling
    if isinstance(sampling, say.FixedSampling):
        return sampling.size
    if plan.unit.within_client:
        return int(plan.cohort or 1)
    return sampling.contacted if isinstance(sampling, say.SecretParticipation) else plan.population


def _divisor(plan: Plan, phase: Phase, release: Release) -> None:
    if release.divisor is say.Divisor.CONSTANT or isinstance(phase.sampling, say.FixedSampling):
        return
    visible = isinstance(phase.sampling, say.Everyone | say.BoundedParticipation | say.MinSeparation)
    if plan.relation is Relation.ADD_REMOVE or not visible:
        raise NoGuarantee(
            "Dividing by the cohort that came reveals its size, which the accounting keeps secret.",
            "Divide by the constant expected cohort.",
        )


def large_delta(plan: Plan, delta: float) -> str | None:
    """Why nobody should take a delta who did not choose it; None where it is small enough."""
    if delta >= 1 / plan.units and plan.units > 1:
        units = f"{plan.unit}s" if plan.unit is plan.sampled else "units"
        return f"delta is not below 1/{plan.units:,}: such a delta permits publishing one of the {units} outright"
    if delta > LARGEST_DELTA:  # below 1/n, but n is small
        told = at_least(delta, 2)
        return f"delta is {told}: with that probability the guarantee may fail altogether; choose a smaller one (--delta)"
    return None


def warnings_of(plan: Plan, delta: float) -> Iterator[str]:
    """What is proved and still needs saying."""
    if (large := large_delta(plan, delta)) is not None:
        yield large
    if plan.unit is Unit.CLIENT and plan.population < _FEW:
        yield (
            f"noise that hides one of {plan.population:,} clients drowns the model: below about {_FEW}, and where each holds many "
            "records, protect these instead (hush run fed-spa, cpfed, dp-sgd; in a federation dp-sgd)"
        )
    if (most := max((phase.holders for phase in plan.phases), default=1)) > 1:
        yield (
            f"a person has rows at up to {most:,} clients, all of which are counted: where the same name at two clients is not the "
            "same person, make the names differ"
        )
    drawn = [phase.sampling for phase in plan.phases if isinstance(phase.sampling, say.PoissonSampling | say.FixedSampling)]
    if plan.sampled.within_client and drawn and not any(sampling.amplifies for sampling in drawn):
        yield (
            f"the smallest client holds {plan.population:,} {plan.sampled}s, no more than a batch: it reads them all at every "
            "step, which hides none of them; fewer clients or smaller batches need less noise"
        )
