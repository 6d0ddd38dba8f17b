"""Keys and certificates of a federation's transport: a certificate authority of its own, the server's certificate, nodes' keys."""

from __future__ import annotations

import datetime
import ipaddress
import os
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from hush.errors import DataError

_AUTHORITY_LASTS = datetime.timedelta(days=365 * 30)
"""Whoever is invited pins it: another one is a new invitation to everybody."""
_SERVER_LASTS = datetime.timedelta(days=365 * 10)
_PEM = serialization.Encoding.PEM
_NO_PASSWORD = serialization.NoEncryption()


def write_secret(path: Path, content: bytes) -> None:
    """A file for its owner alone, from its first byte on; never over another."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def read_secret(path: Path) -> bytes:
    """The same again; one that others may read is refused, as ssh does."""
    try:
        held = path.stat()
        content = path.read_bytes()
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}.") from error
    if held.st_mode & 0o077:
        raise DataError(f"{path} is a secret that others may read: chmod 600 {path}, and think of who may have.")
    return content


def write_secret_anew(path: Path, content: bytes) -> None:
    """The same in the place of another: whole or not at all."""
    draft = path.with_name(f".{path.name}.draft")
    draft.unlink(missing_ok=True)
    write_secret(draft, content)
    draft.replace(path)


def make_authority(folder: Path, name: str) -> None:
    """`ca.crt`, which clients pin, and `ca.key`, which signs the server's certificates: this one, and those after it."""
    key = ec.generate_private_key(ec.SECP384R1())
    root = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"{name} (Hush)"[:64])])
    constraints = x509.BasicConstraints(ca=True, path_length=0)
    signing = x509.KeyUsage(True, False, False, False, False, True, True, False, False)
    certificate = (
        _certificate(root, root, key.public_key(), _now() + _AUTHORITY_LASTS)
        .add_extension(constraints, critical=True)
        .add_extension(signing, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA384())
    )
    write_secret_anew(folder / "ca.key", _as_pem(key))
    (folder / "ca.crt").write_bytes(certificate.public_bytes(_PEM))


def can_sign(folder: Path) -> bool:
    """Whether the folder's authority has its key here, and lasts long enough to sign another certificate."""
    try:
        certificate = x509.load_pem_x509_certificate((folder / "ca.crt").read_bytes())
        key = serialization.load_pem_private_key(read_secret(folder / "ca.key"), None)
    except (DataError, OSError, ValueError):
        return False
    lasts = certificate.not_valid_after_utc - _now()
    return key.public_key() == certificate.public_key() and lasts > datetime.timedelta(days=365)


def make_server_certificate(folder: Path, host: str) -> None:
    """`server.crt` and `server.key`, signed by the folder's authority; they end no later than that does."""
    authority = x509.load_pem_x509_certificate((folder / "ca.crt").read_bytes())
    signing = serialization.load_pem_private_key(read_secret(folder / "ca.key"), None)
    assert isinstance(signing, ec.EllipticCurvePrivateKey)
    own = ec.generate_private_key(ec.SECP384R1())
    everybody = {host, "localhost", "127.0.0.1"}
    names: list[x509.GeneralName] = [_general(one) for one in sorted(everybody)]
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, host[:64])])
    ends = min(_now() + _SERVER_LASTS, authority.not_valid_after_utc)
    certificate = (
        _certificate(subject, authority.subject, own.public_key(), ends)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signing.public_key()), critical=False)
        .sign(signing, hashes.SHA384())
    )
    write_secret_anew(folder / "server.key", _as_pem(own))
    (folder / "server.crt").write_bytes(certificate.public_bytes(_PEM))


class Lifetime(NamedTuple):
    """When a certificate holds."""

    begins: datetime.datetime
    ends: datetime.datetime

    @staticmethod
    def of(pem: bytes) -> Lifetime:
        try:
            certificate = x509.load_pem_x509_certificate(pem)
        except ValueError:
            raise DataError("A certificate of the federation is damaged: hush federation renew makes another.") from None
        return Lifetime(certificate.not_valid_before_utc, certificate.not_valid_after_utc)


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)


def _as_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(_PEM, serialization.PrivateFormat.PKCS8, _NO_PASSWORD)


def _certificate(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, ends: datetime.datetime
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(_now() - datetime.timedelta(days=1))
        .not_valid_after(ends)
    )


def _general(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def make_node_key(path: Path) -> str:
    """A Flower node's key, P-384, in OpenSSH's form; the public one is returned."""
    key = ec.generate_private_key(ec.SECP384R1())
    secret = key.private_bytes(_PEM, serialization.PrivateFormat.OpenSSH, _NO_PASSWORD)
    write_secret(path, secret)
    return public_node_key(secret)


def public_node_key(secret: bytes) -> str:
    """What a card shows of a node's key."""
    key = serialization.load_ssh_private_key(secret, None).public_key()
    return key.public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH).decode()


def is_node_key(text: str) -> bool:
    """Whether a public key is one that `make_node_key` writes, letter by letter: so that no key has two forms."""
    try:
        key = serialization.load_ssh_public_key(text.encode())
    except (ValueError, UnsupportedAlgorithm):
        return False
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP384R1):
        return False
    return key.public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH).decode() == text
