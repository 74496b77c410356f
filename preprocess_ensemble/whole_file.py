"""Files that appear under their names only when they are complete."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO


@contextmanager
def whole_file(path: Path, *, part: Path | None = None, final: Callable[[], Path] | None = None) -> Iterator[IO[bytes]]:
    """Open a new file that replaces ``path`` at the end of the block; if the block raises, the new file is removed.

    Until then it has the name ``part`` in the same folder (default: a hidden name). Its bytes are on the disk before it
    gets its final name, so a crash leaves the old file or the new file. ``final`` is called at the end and may name
    another file in the folder to replace. Raises OSError.
    """
    part = part or path.with_name(f".{path.name}.{os.getpid()}.part")
    file = open(part, "wb")
    try:
        with file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path if final is None else final())
    finally:
        part.unlink(missing_ok=True)
