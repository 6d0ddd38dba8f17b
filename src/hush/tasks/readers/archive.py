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

from hush.tasks.readers.damaged import damaged, reading

BLOCK = 1 << 20


def tar_members(path: Path, wanted: Collection[str]) -> Iterator[tuple[str, io.BytesIO]]:
    """The (name, content) of each wanted member, in the order of the file, which is then read to its end.

    So its checksum is checked too: take what was read for good only when the last member was given.
    """
    missing = set(wanted)
    unpacked = bz2.open if path.name.endswith(".bz2") else gzip.open
    with reading(path, OSError, EOFError, zlib.error, tarfile.TarError), unpacked(path) as content:
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
    if missing:
        raise damaged(f"{path} does not hold {sorted(missing)[0]}")
