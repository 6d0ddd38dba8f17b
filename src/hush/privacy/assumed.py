"""What must be so for a statement to hold, in words."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hush.privacy import vocabulary as say
from hush.privacy.guarantee import Unit, View
from hush.privacy.vocabulary import Drawn, Plan
from hush.secagg.parameters import SECURITY_BITS, SMALL

if TYPE_CHECKING:
    from hush.transforms import NoiseShares

TRUSTED = "the server that sums and draws the noise is trusted; others see the models it releases, after any number of rounds"
HIDDEN = "nobody else learns who took part in a round, and the rate or size of cohorts was fixed beforehand"
SHARES = (
    "every contacted client sends its share of the noise in every round, and the shares of honest clients that answer carry the "
    "noise in full (in this simulation it is drawn once, on the sum)"
)
OWN_COINS = "each client keeps its own coin secret: whether a message holds data or noise alone"
OWN_NOISE = (
    "each client draws the noise on its message by itself and tells nobody (in this simulation one process draws for all of them); "
    "that it takes part is no secret"
)
SECURE_SUM = "a secure sum shows the server the total alone (in this simulation the sum is plain)"
ONE_PROCESS = " (in this simulation one process plays all clients)"
DRAWN_SHARES = (
    "every client draws its own share of the noise and opens no sum that may hold fewer than {among:,} shares of honest clients, "
    "which carry the noise in full"
) + ONE_PROCESS
DIFFERENT_PARTIES = "the clients of the roster are different parties, of whom the server invented none"
SECAGG = (
    "the server {server} and learns the sum alone ({protocol}, docs/secagg.md); at most {corrupted:.0%} of a cohort tell it what "
    "they know; X25519, Ed25519, SHA-256 and AES are as strong as they are taken for"
)
_PROTOCOLS = {
    ("fresh", "curious"): f"SecAgg+, in cohorts above {SMALL} but for a chance below 2^-{SECURITY_BITS['curious']} in each round",
    ("fresh", "malicious"): f"SecAgg+, in cohorts above {SMALL} but for a chance below 2^-{SECURITY_BITS['malicious']} for every "
    "circle of clients that it tries",
    ("amortised", "curious"): "amortised pairwise masks",
}
_SERVERS = {
    "curious": "follows the protocol, however curious,",
    "malicious": "may say different things to different clients, which they notice,",
}

EXACT = (
    "AES-256 is a good cipher (each draw of the noise is exact to 2^-100, which adds less than 1e-12 to delta for a billion draws "
    "up to epsilon 20; each {unit}'s norm was checked in integers)"
)
FAST = (
    "nobody exploits rounding: of floating-point noise, and the last bits by which clients that train side by side in a simulation "
    "affect each other (fast noise: fit for research, not for adversaries)"
)
PUBLIC_EXAMPLES = "the public examples, which shape what is released, belong to nobody that this statement speaks of"
SECRET_COINS = (
    "each client draws by coins of its own, and tells nobody, which of its records a step reads, each with the chance {rate:.4g}; "
    "neither who drops out nor how long a client takes depends on what was drawn"
)


def assumptions(plan: Plan, real: NoiseShares | None = None) -> tuple[str, ...]:
    """What must be so for the statement to hold. `real`: shares that clients draw, under a sum that is secure."""
    secret = any(isinstance(phase.sampling, say.SecretParticipation) for phase in plan.phases)
    shared = any(release.noise.drawn is Drawn.SHARES for release in plan.releases)
    own = any(release.noise.drawn is Drawn.MESSAGE for release in plan.releases)
    shares = SHARES if real is None else DRAWN_SHARES.format(among=real.among)
    told = [OWN_COINS, shares] if secret else [shares] if shared else [OWN_NOISE] if own else [TRUSTED]
    if plan.unit.within_client:
        told.insert(0, SECRET_COINS.format(rate=getattr(plan.phases[0].sampling, "rate", 1.0)) + ONE_PROCESS)
    if real is not None:
        told.append(
            SECAGG.format(server=_SERVERS[real.threat], protocol=_PROTOCOLS[real.masks, real.threat], corrupted=real.corrupted)
        )
    elif shared and plan.view is not View.RELEASED:
        told.append(SECURE_SUM)
    if not secret and plan.unit is Unit.CLIENT and any(phase.sampling.amplifies for phase in plan.phases):
        told.append(HIDDEN)
    if plan.side_data is say.SideData.PUBLIC:
        told.append(PUBLIC_EXAMPLES)
    return (*told, EXACT.format(unit=plan.unit) if plan.secure else FAST)
