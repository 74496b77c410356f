"""Counts the files that a scan skips, by kind, for the report."""

from __future__ import annotations

import mimetypes
import os
import re
from collections import Counter
from typing import Final

from clip_client.dedup.files.file_types import suffix_of
from clip_client.dedup.files.reading import open_file

NO_ENDING: Final = "no ending"
OTHER_ENDINGS: Final = "other endings"
"""For names whose last dot does not begin an ending, such as ``"letter to Dr. Who"``."""

_ENDING: Final = re.compile(r"\.\w{1,10}")
_FIRST_BYTES: Final = 512

_UNREAD_IMAGES: Final = frozenset({"HEIC", "JPEG XL"})
"""Formats of photos that only some installations read."""


class SkippedFiles:
    """Counts files by their endings, and images whose names have another ending by their format as well.

    A file without an ending that Python's :mod:`mimetypes` knows, such as ``photo.jpg_large`` or ``photo.dat``, is
    opened to read its first bytes. At most ``most_opened`` are: on a network share each takes about a millisecond.
    """

    def __init__(self, *, most_opened: int = 10_000) -> None:
        self._most_opened = most_opened
        self._counts: Counter[str] = Counter()
        self._known_endings = frozenset(mimetypes.MimeTypes().types_map[True])
        self._opened = 0

    def add(self, path: str) -> None:
        """Count a regular file."""
        ending = suffix_of(os.path.basename(path))
        kind = NO_ENDING if not ending else ending if _ENDING.fullmatch(ending) else OTHER_ENDINGS
        if ending not in self._known_endings and self._opened < self._most_opened:
            self._opened += 1
            if image_format := _image_format(path):
                kind = f"{image_format} image with {'the ending ' if kind == ending else ''}{kind}"
        self._counts[kind] += 1

    def by_kind(self) -> dict[str, int]:
        """Return kind -> number of files, the most frequent first."""
        return dict(sorted(self._counts.items(), key=lambda item: (-item[1], item[0])))


def _image_format(path: str) -> str:
    """Return the format of an image that a search could compare; empty for all other files."""
    from preprocess_ensemble.imaging.formats import identify

    try:
        with open_file(path) as file:
            known = identify(file.read(_FIRST_BYTES))
    except OSError:
        return ""
    return known.name if known is not None and (known.readable or known.name in _UNREAD_IMAGES) else ""
