"""CPFed: communication-efficient and privacy-preserving federated learning (Hu, Guo, Gong), algorithm 1.

    theta_i <- theta_i - lr (sum_j clip_C(grad l(theta_i, z_j)) + N(0, C^2 z^2)) / B,   tau times;   theta <- (1/r) sum_i theta_i

The paper counts the noise of all r clients, under a secure sum, and multiplies by r/n; neither is proved (`docs/privacy.md`). What
is proved is what each step's own noise covers, and that holds whether the sum is secure or not. `mode=paper` clips nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from hush.core import Method, chain
from hush.methods.groups import Records, RecordSteps, ServerStep, SharedMask
from hush.methods.recipe import method
from hush.settings import setting

_CLAIM = "whether the paper's claim counts on a secure sum; what is proved is the same"


@dataclass(frozen=True, kw_only=True)
class Cpfed(ServerStep, SharedMask, RecordSteps):
    """Settings of `cpfed`."""

    secure_sum: bool = setting(True, _CLAIM)


@dataclass(frozen=True, kw_only=True)
class DpSgd(ServerStep, SharedMask, Records):
    """Settings of `dp-sgd`: one step a round."""

    secure_sum: bool = setting(True, _CLAIM)


@method("cpfed", Cpfed)
def cpfed(s: Cpfed) -> Method:
    """Noisy local steps and an average, protecting a client's records; `secure_sum` changes what the paper claims."""
    return noisy_steps("cpfed", s, s.local_steps)


def noisy_steps(name: str, s: Cpfed | DpSgd, steps: int) -> Method:
    """So many of them in a round, proved or as the paper writes them."""
    from hush.local.as_written import CpfedAsWritten
    from hush.methods.stations import local_dp_sgd, masking, server_step
    from hush.privacy.claimed import claimed_by_cpfed

    local = local_dp_sgd(s, steps, as_written=CpfedAsWritten)
    return Method(name, local, chain(*masking(s)), server_step(s), claim=partial(claimed_by_cpfed, secure_sum=s.secure_sum))
