"""A bundle as the content of one of Flower's messages.

Flower fetches every part of a message by a request of its own, of about a kilobyte. Bytes in a ConfigRecord are one part; an array
is three, and goes in chunks: that is for what is large.
"""

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

_LARGE = 1 << 20


def wrap(bundle: bytes) -> RecordDict:
    """A message's content."""
    if len(bundle) < _LARGE:
        return RecordDict({"letters": ConfigRecord({"bundle": bundle})})
    return RecordDict({"letters": ArrayRecord({"bundle": Array(np.frombuffer(bundle, dtype=np.uint8))})})


def unwrap(content: RecordDict) -> bytes:
    """The inverse."""
    held = content["letters"]["bundle"]
    return held if isinstance(held, bytes) else held.numpy().tobytes()
