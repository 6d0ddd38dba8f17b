"""What stands between a client and its server, in one sentence. Flower's own log says one thing for all of it, or nothing."""

from __future__ import annotations

import datetime
import socket
import ssl

from hush.federation.folders import Invitation, split_address
from hush.federation.keys import Lifetime

_WAIT = 10.0
_WRONG_NAME = (62, 64)
"""OpenSSL's numbers for a certificate of another name, and of another IP address;"""
_TOO_EARLY, _TOO_LATE = 9, 10
"""for one that is not valid yet, and one that expired."""
_REFUSED = "Failed to activate SuperNode"
"""What Flower 1.41 says where a node's key is not registered, and where it is in use (code 2004)."""

_GIVEN_UP = "SSL/TLS handshake error"
"""What Flower 1.41 says where a connection ends before TLS is agreed on, as behind a proxy while the server starts anew."""


def obstacle(invitation: Invitation, wait: float = _WAIT) -> str | None:
    """Why nothing can be brought from there; None where the server answers, as itself."""
    host, port = split_address(invitation.address)
    try:
        with socket.create_connection((host, port), timeout=wait) as link:
            if not invitation.insecure:
                context = ssl.create_default_context(cadata=invitation.ca)
                context.wrap_socket(link, server_hostname=host).close()
    except (ssl.SSLEOFError, ConnectionResetError):
        return (
            f"what answers at {invitation.address} ends the connection at once: it stands before a server that is not running (a "
            "proxy, say), or the federation was made with --insecure"
        )
    except ssl.SSLError as error:
        return f"what answers at {invitation.address} {_mistaken(error, invitation)}"
    except OSError as error:
        return _unreachable(invitation.address, host, error)
    return None


def _mistaken(error: ssl.SSLError, invitation: Invitation) -> str:
    if not isinstance(error, ssl.SSLCertVerificationError):
        return f"speaks no TLS, so it is another program, or a federation made with --insecure ({error.reason or error})"
    if error.verify_code in _WRONG_NAME:
        return (
            "has a certificate for another name: the address must be the one that hush federation init or renew was given. Where "
            "the server got another since, take its new invitation (hush federation take)"
        )
    now = datetime.datetime.now(datetime.UTC)
    clock = f"or this machine's clock, which says {now:%Y-%m-%d %H:%M} UTC, is wrong"
    if error.verify_code == _TOO_EARLY:
        return f"has a certificate that is not valid yet: the server's clock was ahead when it was made, {clock}"
    if error.verify_code == _TOO_LATE and Lifetime.of(invitation.ca.encode()).ends < now:
        return f"has a certificate of an authority that expired: ask for a new invitation (hush federation take), {clock}"
    if error.verify_code == _TOO_LATE:
        return f"has a certificate that expired: its operator makes another (hush federation renew), {clock}"
    return (
        "is not the server that invited this client, or has a new authority since, whose invitation was not taken "
        f"(hush federation take): its certificate does not hold ({error.verify_message})"
    )


def _unreachable(address: str, host: str, error: OSError) -> str:
    if isinstance(error, socket.gaierror):
        return f"the name {host} is not known here: the address {address} is wrong, or this machine has no network"
    if isinstance(error, ConnectionRefusedError):
        return f"nobody listens at {address}: hush server is not running, or runs elsewhere"
    return f"{address} cannot be reached ({error.strerror or error}): the server is off, or a firewall is between"


def is_let_in(log: str) -> bool:
    """Whether a SuperNode was, by what it wrote."""
    return "SuperNode ID:" in log


def gave_up(log: str) -> bool:
    """Whether a SuperNode did, by what it wrote: it then stays, and neither asks nor answers any more."""
    return _GIVEN_UP in log


def refusal(invitation: Invitation, log: str) -> str:
    """Why it ended, by what it wrote."""
    if _REFUSED not in log:
        return f"the connection to {invitation.address} is lost"
    return (
        f"the server at {invitation.address} refuses this client: it is not admitted (hush federation admit, and the server "
        "started anew), or its keys are in use, or were less than a minute ago"
    )
