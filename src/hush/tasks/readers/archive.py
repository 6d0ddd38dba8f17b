"""Members of compressed tar files, one at a time and by expected name: nothing is ever extracted to the disk."""

from __future__ import annotations

import bz2
import gzip
import io
import shutil
import tarfile
import zlib
from collections.abc import Collection, Iterator
from pathlib import Path

from hush.errors import DataError

BLOCK = 1 << 20


def tar_members(path: Path, wanted: Collection[str]) -> Iterator[tuple[str, io.BytesIO]]:
    """The (name, content) of each wanted member, in the order of the file, which is then read to its end.

    So its checksum is checked too: take what was read for good only when the last member was given.
    """
    missing = set(wanted)
    try:
        with bz2.open(path) if path.name.endswith(".bz2") else gzip.open(path) as content:
            with tarfile.open(fileobj=content, mode="r|", bufsize=BLOCK) as tar:
                for member in tar:
                    name = member.name.removeprefix("./")
                    part = tar.extractfile(member) if name in missing else None
                    if part is not None:
                        missing.remove(name)
                        held = io.BytesIO()  # grows in place; part.read() would need room for three copies
                        shutil.copyfileobj(part, held, BLOCK)
                        yield name, held
            while content.read(BLOCK):
                pass
    except (OSError, EOFError, zlib.error, tarfile.TarError) as error:
        raise DataError(f"{path} cannot be read ({error}): fetch it again.") from error
    if missing:
        raise DataError(f"{path} does not hold {sorted(missing)[0]}: fetch it again.")
