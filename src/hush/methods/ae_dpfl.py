"""AE-DPFL: voting-based approaches for differentially private federated learning (Zhu et al. 2020), agent-level.

    h_q = sum_i one_hot(argmax f_i(x_q)) + N(0, Q z^2 I),   f_i client i's model, x_q the Q unlabelled public examples

Clients train on their own and vote; the server learns the public examples with the noised counts h as their labels. Nothing is
clipped: a client's votes have the norm sqrt(Q). One round is one vote, and best with everybody. Of the paper's semi-supervised
training the server has soft labels alone, shares of the noised votes: mixup and self-training on top did not help on digits.
Answers that depend on the margin of the true votes are not offered: their privacy is not accounted.
"""

from __future__ import annotations

from typing import Unpack

from hush.core import Method, chain
from hush.local.sgd import Sgd
from hush.methods.common import Common, local_training, server_step
from hush.transforms import Gaussian
from hush.transforms.votes import Votes


def ae_dpfl(
    queries: int = 2000,
    noise: float | None = None,
    vote_memory: float = 0.8,
    server_epochs: int = 30,
    server_train_lr: float = 0.1,
    server_batch_size: int = 10,
    bits_per_query: int = 0,
    **common: Unpack[Common],
) -> Method:
    """Clients vote on the labels of public examples, at most `queries`; the server learns from the noisy counts."""
    if "local_steps" not in common:  # a model that hardly left the server's would vote as that does
        common.setdefault("local_epochs", 20)
    training = Sgd(lr=server_train_lr, batch_size=server_batch_size, epochs=server_epochs, momentum=0.5)
    votes = Votes(training, queries, memory=vote_memory, bits_per_query=bits_per_query)
    return Method("ae-dpfl", local_training(**common), chain(votes, Gaussian(noise)), server_step(**common))
