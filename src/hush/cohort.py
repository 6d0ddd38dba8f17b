"""Who takes part in a round.

Every kind states its expected size, a constant, and draws from the run's `Secret`: amplification by sampling holds only while
nobody outside knows who was drawn. `hush.privacy` reads the kind and its numbers from these very objects.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from hush.checks import keep_python_numbers
from hush.core import State
from hush.errors import UsageError
from hush.names import pick
from hush.settings import word

if TYPE_CHECKING:
    from torch import Tensor

    from hush.secret import Secret


@dataclass(frozen=True)
class Cohort:
    """Expected number of clients a round, out of a population of `clients`."""

    size: float
    whole: ClassVar[str] = ""
    """What kind it is, where it needs a whole number of clients."""

    def __post_init__(self) -> None:
        keep_python_numbers(self)

    def check(self, clients: int) -> None:
        """Refuse a cohort that this population cannot fill."""
        if not isinstance(self.size, int | float) or not 0 < self.size <= clients:
            raise UsageError(
                f"A cohort of {word(self.size)} out of {clients:,} clients is not possible: 0 < cohort <= {clients:,}."
            )
        if self.size < 1:
            raise UsageError(
                f"A cohort of {self.size:g} is less than one client: it is a number and no share, so write "
                f"{max(1.0, self.size * clients):g} for {self.size:.4g} of {clients:,} clients."
            )
        if self.whole and self.size != int(self.size):
            raise UsageError(f"A {self.whole} needs a whole number of clients, not {self.size:g}.")

    def init(self, clients: int) -> State:
        return {}

    def expected_participations(self, rounds: int, clients: int) -> float:
        """How often a client takes part in so many rounds, on average."""
        return rounds * self.size / clients

    def most_participations(self, rounds: int, clients: int) -> int:
        """The most rounds that any client joins: what the privacy of its records is accounted for."""
        return rounds

    def turns(self, clients: int) -> int | None:
        """In how many rounds nobody comes twice; None where somebody may."""
        return None

    def draw(self, index: int, clients: int, state: State, secret: Secret) -> tuple[Tensor, State]:
        """The ids that take part in round `index`, ascending."""
        raise UsageError(f"{type(self).__name__} does not say who takes part: override draw.")


@dataclass(frozen=True)
class Poisson(Cohort):
    """Each client flips its own coin with probability size/clients. The default: it has the best accounting.

    The number that takes part varies and may be zero; it is not published, and the sum is divided by `size` all the same.
    """

    def draw(self, index: int, clients: int, state: State, secret: Secret) -> tuple[Tensor, State]:
        return (secret.coins("cohort", index, clients) < self.size / clients).nonzero().flatten(), state


@dataclass(frozen=True)
class FixedSize(Cohort):
    """Exactly `size` clients, uniformly, without replacement. Adding a client then displaces another: it costs 2C."""

    whole = "fixed cohort"

    def draw(self, index: int, clients: int, state: State, secret: Secret) -> tuple[Tensor, State]:
        order = secret.coins("cohort", index, clients).argsort()
        return order[: int(self.size)].sort().values, state


@dataclass(frozen=True)
class SecretParticipation(Cohort):
    """All clients send noise in every round, and each adds its data only if its own secret coin, size/clients, says so.

    Nobody picks a cohort, so nobody knows one: the amplification holds against the server too, under a secure sum. It costs
    uploads from everybody.
    """

    def expected_participations(self, rounds: int, clients: int) -> float:
        return float(rounds)

    def draw(self, index: int, clients: int, state: State, secret: Secret) -> tuple[Tensor, State]:
        return (secret.coins("cohort", index, clients) < self.size / clients).nonzero().flatten(), state


@dataclass(frozen=True)
class Bounded(Cohort):
    """Poisson coins until a client has taken part `participations` times; then it rests for good.

    Whether a client takes part depends on its own coins alone, so one client touches at most `participations` rounds and no
    other client's schedule. That bound holds without secrecy, hence also where cohorts are visible, and without amplification.
    """

    participations: int = 1

    def check(self, clients: int) -> None:
        super().check(clients)
        if self.participations < 1 or self.participations != int(self.participations):
            raise UsageError(f"participations must be a whole number of at least 1, not {self.participations:g}.")

    def lasts(self, clients: int) -> float:
        """After about so many rounds every client has had its turns, and nobody is left."""
        return clients * self.participations / self.size

    def too_short(self, clients: int, rounds: int) -> str:
        """What to say where that is before the last round."""
        return (
            f"Clients that join {self.participations} times at most last for about {self.lasts(clients):.0f} of {rounds} rounds; "
            "later ones train nobody. Raise the participations, or lower the cohort or the rounds."
        )

    def most_participations(self, rounds: int, clients: int) -> int:
        return min(rounds, self.participations)

    def init(self, clients: int) -> State:
        import torch

        return {"taken": torch.zeros(clients, dtype=torch.int64)}

    def expected_participations(self, rounds: int, clients: int) -> float:
        """E[min(participations, Binomial(rounds, size/clients))]."""
        from scipy import stats

        counts = range(min(self.participations, rounds))
        return float(sum(stats.binom.sf(j, rounds, self.size / clients) for j in counts))

    def draw(self, index: int, clients: int, state: State, secret: Secret) -> tuple[Tensor, State]:
        taken = state["taken"]
        chosen = (secret.coins("cohort", index, clients) < self.size / clients) & (taken < self.participations)
        return chosen.nonzero().flatten(), {"taken": taken + chosen}


@dataclass(frozen=True)
class Rotation(Cohort):
    """Everybody once, in a random order, `size` at a time; then again in another order.

    So nobody takes part more often than once in clients/size rounds, where coins would have some come twice as often as others.
    That is the best there is where sampling amplifies nothing: for records, and against a server that sees who sends. Who is
    enrolled is public, and one who is added changes everybody's turn: what is hidden is what a client's data say.
    """

    whole = "rotation"

    def period(self, clients: int) -> int:
        """After so many rounds everybody had one turn."""
        return -(-clients // int(self.size))

    def turns(self, clients: int) -> int | None:
        return self.period(clients)

    def most_participations(self, rounds: int, clients: int) -> int:
        return -(-rounds // self.period(clients))

    def expected_participations(self, rounds: int, clients: int) -> float:
        return rounds / self.period(clients)

    def init(self, clients: int) -> State:
        import torch

        return {"turn": torch.tensor(-1), "order": torch.arange(clients)}

    def draw(self, index: int, clients: int, state: State, secret: Secret) -> tuple[Tensor, State]:
        import torch

        turn, place = divmod(index, self.period(clients))
        if int(state["turn"]) != turn:  # the order is kept: a run that goes on with another secret must not shuffle a turn anew
            state = {"turn": torch.tensor(turn), "order": secret.coins("rotation", turn, clients).argsort()}
        return torch.tensor_split(state["order"], self.period(clients))[place].sort().values, state


NAMES: dict[str, type[Cohort]] = {
    "poisson": Poisson,
    "fixed": FixedSize,
    "bounded": Bounded,
    "secret": SecretParticipation,
    "rotation": Rotation,
}
"""As the command line calls them."""


def make_cohort(sampling: str, size: float, participations: int = 1) -> Cohort:
    """A cohort by its name."""
    kind = pick(NAMES, sampling, "sampling")
    return Bounded(size, participations) if kind is Bounded else kind(size)


def sampling_name(cohort: Cohort) -> str:
    """A cohort's name, or that of a class of the user's own."""
    return next((name for name, kind in NAMES.items() if type(cohort) is kind), type(cohort).__name__)
