"""A real federation: who belongs to it, what it agrees on, and the two ends of a round, by bytes alone.

Whoever carries the bytes (Flower, in `hush.engines.flower`) is trusted with nothing: every letter is signed, and what is secret in
a round is sealed by `hush.secagg`. `Server` and `Member` are state machines; docs/federation.md tells the whole story.

In Python (docs/federation-python.md): `client` is a client's process, `run` the server's, and `relay` what the app of one's own
between them does with a message of Flower's. Names are loaded when they are first used: a relay needs no torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hush.engines.flower.exchange import answered as relay
    from hush.federation.asking import Carrier, Patience
    from hush.federation.consent import Policy
    from hush.federation.resident import Resident, client
    from hush.federation.running import run

_HOMES = {
    "Carrier": ("hush.federation.asking", "Carrier"),
    "Patience": ("hush.federation.asking", "Patience"),
    "Policy": ("hush.federation.consent", "Policy"),
    "Resident": ("hush.federation.resident", "Resident"),
    "client": ("hush.federation.resident", "client"),
    "relay": ("hush.engines.flower.exchange", "answered"),
    "run": ("hush.federation.running", "run"),
}

__all__ = ["Carrier", "Patience", "Policy", "Resident", "client", "relay", "run"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'hush.federation' has no attribute '{name}'")
    if name == "relay":
        from hush.engines.flower.process import check_flower

        check_flower()
    home, called = _HOMES[name]
    value = globals()[name] = getattr(import_module(home), called)
    return value
