"""AE-DPFL: voting-based approaches for differentially private federated learning (Zhu et al. 2020), agent-level.

    h_q = sum_i one_hot(argmax f_i(x_q)) + N(0, Q z^2 I),   f_i client i's model, x_q the Q unlabelled public examples

Clients train on their own and vote; the server learns the public examples with the noised counts h as their labels. Nothing is
clipped: a client's votes have the norm sqrt(Q). One round is one vote, and best with everybody. Of the paper's semi-supervised
training the server has soft labels alone, shares of the noised votes: mixup and self-training on top did not help on digits.
Answers that depend on the margin of the true votes are not offered: their privacy is not accounted.
"""

from __future__ import annotations

from dataclasses import dataclass

from hush.core import Method, chain
from hush.methods.groups import LocalTraining, Noised, ServerStep
from hush.methods.recipe import method
from hush.settings import COUNT, NOT_NEGATIVE, POSITIVE, SHARE, setting


@dataclass(frozen=True, kw_only=True)
class AeDpfl(ServerStep, LocalTraining):
    """Settings of `ae-dpfl`."""

    queries: int = setting(2000, "the most public examples that are voted on", COUNT)
    noise: float | None = Noised.redefined("noise", None)
    vote_memory: float = setting(0.8, "what the votes of the last round weigh against this one's", SHARE)
    server_epochs: int = setting(30, "the server's passes over the public examples that were voted on", COUNT)
    server_train_lr: float = setting(0.1, "the server's learning rate there", POSITIVE)
    server_batch_size: int = setting(10, "the server's batch there", COUNT)
    bits_per_query: int = setting(0, "what a public example costs on the way down; 0: clients have them", NOT_NEGATIVE)
    local_epochs: int = LocalTraining.redefined("local_epochs", 50, own=True)  # a model that hardly left the server's votes as that


@method("ae-dpfl", AeDpfl, rounds=1, everybody=True)
def ae_dpfl(s: AeDpfl) -> Method:
    """Clients vote on the labels of public examples, at most `queries`; the server learns from the noisy counts."""
    from hush.local import Sgd
    from hush.methods.stations import local_training, server_step
    from hush.transforms import Gaussian
    from hush.transforms.votes import Votes

    training = Sgd(lr=s.server_train_lr, batch_size=s.server_batch_size, epochs=s.server_epochs, momentum=0.5)
    votes = Votes(training, s.queries, memory=s.vote_memory, bits_per_query=s.bits_per_query)
    return Method("ae-dpfl", local_training(s), chain(votes, Gaussian(s.noise)), server_step(s))
