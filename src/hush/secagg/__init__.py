"""Secure aggregation by itself: the server learns a sum and nothing else, whoever leaves and whenever.

SecAgg+ (Bell, Bonawitz, Gascon, Lepoint, Raykova 2020) as state machines over bytes: no sockets, no torch, nothing else of Hush.
`Client` and `Server` say how they are driven; docs/secagg.md says what they protect from, and what not.
"""

from hush.errors import UsageError
from hush.secagg.amortised import AmortisedClient, AmortisedServer
from hush.secagg.client import Client, ClientRound
from hush.secagg.errors import Aborted, BadMessage, Refused
from hush.secagg.identity import Identity, Roster
from hush.secagg.parameters import Graph, graph_for
from hush.secagg.server import Server, ServerRound, Stage
from hush.secagg.terms import Session, Terms

__all__ = [
    "Aborted",
    "AmortisedClient",
    "AmortisedServer",
    "BadMessage",
    "Client",
    "ClientRound",
    "Graph",
    "Identity",
    "Refused",
    "Roster",
    "Server",
    "ServerRound",
    "Session",
    "Stage",
    "Terms",
    "UsageError",
    "graph_for",
]
