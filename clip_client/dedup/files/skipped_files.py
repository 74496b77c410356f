"""Which files a walk passes over, by kind, so that a report can say so."""

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
"""Of names with a dot whose last part is no ending, such as ``"letter to Dr. Who"``."""

_ENDING: Final = re.compile(r"\.\w{1,10}")
_FIRST_BYTES: Final = 512

_MOST_OPENED: Final = 10_000
"""Files of unknown endings that one walk opens. On a network share each costs about a millisecond."""

_UNREAD_IMAGES: Final = frozenset({"HEIC", "JPEG XL"})
"""Formats of photos that not every installation reads."""


class SkippedFiles:
    """Counts files by kind: by their ending, and images whose ending does not say so by their format, too.

    Only a file whose ending says nothing (``photo.jpg_large``, ``photo.dat``, no ending) is opened, for its first bytes
    and no more than 10,000 times. Endings that Python's :mod:`mimetypes` knows, such as .txt, are believed.
    """

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._believed = frozenset(mimetypes.MimeTypes().types_map[True])
        self._opened = 0

    def add(self, path: str) -> None:
        """Count a regular file."""
        ending = suffix_of(os.path.basename(path))
        kind = NO_ENDING if not ending else ending if _ENDING.fullmatch(ending) else OTHER_ENDINGS
        if ending not in self._believed and self._opened < _MOST_OPENED:
            self._opened += 1
            if image_format := _image_format(path):
                kind = f"{image_format} image with {'the ending ' if kind == ending else ''}{kind}"
        self._counts[kind] += 1

    def by_kind(self) -> dict[str, int]:
        """Return kind -> number of files, the most frequent first."""
        return dict(sorted(self._counts.items(), key=lambda item: (-item[1], item[0])))


def _image_format(path: str) -> str:
    """Return the format of an image that a search could compare; empty for any other file."""
    from preprocess_ensemble.imaging.formats import identify

    try:
        with open_file(path) as file:
            known = identify(file.read(_FIRST_BYTES))
    except OSError:
        return ""
    return known.name if known is not None and (known.readable or known.name in _UNREAD_IMAGES) else ""
