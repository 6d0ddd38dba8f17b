"""Keys and certificates of a federation's transport: a certificate authority of its own, the server's certificate, nodes' keys."""

from __future__ import annotations

import datetime
import ipaddress
import os
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from hush.errors import DataError

_YEARS = 10
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


def make_authority(folder: Path, name: str, host: str) -> None:
    """`ca.crt`, and the server's `server.crt` and `server.key` that it signed. The authority's own key is forgotten at once."""
    authority, own = ec.generate_private_key(ec.SECP384R1()), ec.generate_private_key(ec.SECP384R1())
    root = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"{name} (Hush)"[:64])])
    everybody = {host, "localhost", "127.0.0.1"}
    names: list[x509.GeneralName] = [_general(one) for one in sorted(everybody)]
    constraints = x509.BasicConstraints(ca=True, path_length=0)
    signing = x509.KeyUsage(True, False, False, False, False, True, True, False, False)
    ca = (
        _certificate(root, root, authority.public_key())
        .add_extension(constraints, critical=True)
        .add_extension(signing, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(authority.public_key()), critical=False)
        .sign(authority, hashes.SHA384())
    )
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, host[:64])])
    server = (
        _certificate(subject, root, own.public_key())
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.public_key()), critical=False)
        .sign(authority, hashes.SHA384())
    )
    (folder / "ca.crt").write_bytes(ca.public_bytes(_PEM))
    (folder / "server.crt").write_bytes(server.public_bytes(_PEM))
    write_secret(folder / "server.key", own.private_bytes(_PEM, serialization.PrivateFormat.PKCS8, _NO_PASSWORD))


def _certificate(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=365 * _YEARS))
    )


def _general(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def make_node_key(path: Path) -> str:
    """A Flower node's key, P-384, in OpenSSH's form; the public one is returned."""
    key = ec.generate_private_key(ec.SECP384R1())
    write_secret(path, key.private_bytes(_PEM, serialization.PrivateFormat.OpenSSH, _NO_PASSWORD))
    public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    return public.decode()


def is_node_key(text: str) -> bool:
    """Whether a public key is one that `make_node_key` writes, letter by letter: so that no key has two forms."""
    try:
        key = serialization.load_ssh_public_key(text.encode())
    except (ValueError, UnsupportedAlgorithm):
        return False
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP384R1):
        return False
    return key.public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH).decode() == text
