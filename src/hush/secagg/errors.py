"""How a secure sum can end otherwise than well, each with one sentence that holds no secret."""

from __future__ import annotations

from hush.errors import HushError


class Refused(HushError):
    """A client will not do what it was asked: its own privacy would depend on the server's honesty."""

    complaint: bytes | None = None
    """What to send to the server all the same, where another client is to blame."""


class Aborted(HushError):
    """A round ended without a sum. No single client's vector was opened."""

    opening: bool = False
    """Whether clients had begun to open it: then a server may have had enough for the sum, and it counts as released."""


class BadMessage(HushError):
    """A message that cannot be what it says it is. Nothing of it was used."""

    def __init__(self, sender: int | None, reason: str) -> None:
        self.sender = sender
        """The number of the client it is from, or claims to be from; None: the server's."""
        self.reason = reason
        super().__init__(f"The message of {'the server' if sender is None else f'client {sender}'} is refused: {reason}.")
