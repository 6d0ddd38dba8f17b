"""Keys of one round, and what two clients derive from them.

Both are X25519. Keys are drawn anew for every round, so that the one that is put together again, where a client vanishes, opens
masks of that round alone, and a device that is seized later has none of the earlier ones.
"""

from __future__ import annotations

import hashlib
import struct

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from hush.secagg.identity import Identity
from hush.secagg.messages import SEALED_BYTES, SignedKey
from hush.secagg.shamir import SHARE_BYTES

MASK_SEED_BYTES = 16
"""AES-128 for masks: as strong as X25519 is, and faster than AES-256 by a tenth."""
_ANY_KEY = X25519PrivateKey.generate()
"""Of nobody: what is exchanged with it is not looked at."""


class RoundKeys:
    """The secret halves of one round's keys."""

    __slots__ = ("_cipher", "_mask", "signed")

    def __init__(self, identity: Identity, about: bytes, sender: int, round: int) -> None:
        self._cipher = X25519PrivateKey.generate()
        self._mask = X25519PrivateKey.generate()
        cipher, mask = (key.public_key().public_bytes_raw() for key in (self._cipher, self._mask))
        self.signed = SignedKey(cipher, mask, identity.sign(SignedKey.statement(about, sender, round, cipher, mask)))

    def mask_secret(self) -> bytes:
        """What neighbours get shares of."""
        return self._mask.private_bytes_raw()

    def meet(self, theirs: SignedKey) -> Pair:
        """What this client has in common with a neighbour in this round; `ValueError` where the keys would give nothing secret."""
        return Pair(_exchange(self._cipher, theirs.cipher), _exchange(self._mask, theirs.mask))

    def __repr__(self) -> str:
        return "RoundKeys(secret)"


class Pair:
    """Two secrets that two neighbours share in one round: one for letters, one for masks."""

    __slots__ = ("_letters", "_masks")

    def __init__(self, letters: bytes, masks: bytes) -> None:
        self._letters, self._masks = letters, masks

    def seed(self, session: bytes, one: int, other: int) -> bytes:
        return _mask_seed(self._masks, session, one, other)

    def seal(self, session: bytes, sender: int, receiver: int, own: bytes, mask: bytes) -> bytes:
        """The sender's two shares for the receiver, which nobody else can read."""
        about = session + struct.pack(">II", sender, receiver)
        return AESGCM(self._letter_key(about)).encrypt(bytes(12), own + mask, about)

    def open(self, session: bytes, sender: int, receiver: int, sealed: bytes) -> tuple[bytes, bytes] | None:
        """The same two; None where they are not what was sealed, for this pair, round and terms."""
        about = session + struct.pack(">II", sender, receiver)
        if len(sealed) != SEALED_BYTES:
            return None
        try:
            both = AESGCM(self._letter_key(about)).decrypt(bytes(12), sealed, about)
        except InvalidTag:
            return None
        return both[:SHARE_BYTES], both[SHARE_BYTES:]

    def _letter_key(self, about: bytes) -> bytes:
        """One key for one direction of one pair in one round: it encrypts once, so that its nonce may be zero."""
        return _derive(self._letters, b"hush secagg share" + about)

    def __repr__(self) -> str:
        return "Pair(secret)"


def pair_seed(mask_secret: bytes, session: bytes, one: int, other: int, theirs: bytes) -> bytes:
    """The seed of a pair's mask from the secret half of one of their keys: what the server does for one that vanished."""
    return _mask_seed(_exchange(X25519PrivateKey.from_private_bytes(mask_secret), theirs), session, one, other)


def _mask_seed(shared: bytes, session: bytes, one: int, other: int) -> bytes:
    return _derive(shared, b"hush secagg mask" + session + struct.pack(">II", *sorted((one, other))), MASK_SEED_BYTES)


def _exchange(mine: X25519PrivateKey, theirs: bytes) -> bytes:
    return mine.exchange(X25519PublicKey.from_public_bytes(theirs))


def self_seed(secret: bytes, session: bytes, me: int) -> bytes:
    """The seed of a client's own mask, which hides its vector also from one who knows all its pairs."""
    return _derive(secret, b"hush secagg self" + session + struct.pack(">I", me), MASK_SEED_BYTES)


def _derive(secret: bytes, info: bytes, size: int = 32) -> bytes:
    return HKDF(SHA256(), size, None, info).derive(secret)


def commitment(secret: bytes, session: bytes, me: int) -> bytes:
    """A name of a random secret, by which the server knows that it put it together rightly. It does not tell the secret."""
    return hashlib.sha256(b"hush secagg commitment" + session + struct.pack(">I", me) + secret).digest()


def belongs_to(mask_secret: bytes, public: bytes) -> bool:
    """Whether this is the secret half of a mask key."""
    return X25519PrivateKey.from_private_bytes(mask_secret).public_key().public_bytes_raw() == public


def is_usable(public: bytes) -> bool:
    """Whether a public key is one that an exchange can be made with; a few are not, and give the same secret with everybody."""
    try:
        _exchange(_ANY_KEY, public)
    except ValueError:
        return False
    return True
