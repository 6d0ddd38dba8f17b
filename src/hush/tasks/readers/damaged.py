"""One sentence for a file that is not what it should be."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from hush.errors import DataError


def damaged(what: str) -> DataError:
    """`what` is wrong with a file that was verified: it must come from elsewhere."""
    return DataError(f"{what}: fetch it again.")


@contextmanager
def reading(name: object, *errors: type[Exception]) -> Iterator[None]:
    """Turns what a damaged file makes its reader raise into that sentence."""
    try:
        yield
    except (DataError, MemoryError):
        raise
    except errors as error:
        raise damaged(f"{name} cannot be read ({error})") from error
