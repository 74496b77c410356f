"""The space of a search: an index, and the files that its results may show."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from clip_client._files import FailedFile
from clip_client.dedup.files.directories import DirectorySet
from clip_client.dedup.store.store import Store
from clip_client.search.photo_index import PhotoIndex

NOTHING: Final = DirectorySet(())


@dataclass(frozen=True, kw_only=True)
class SearchSpace:
    index: PhotoIndex
    store: Store | None = None
    """Store whose contents are the keys of the index; None if the keys are paths."""
    paths: Mapping[str, Sequence[str]] | None = None
    inside: NDArray[np.bool_] | None = None
    roots: Collection[str] = ()
    """Absolute paths of folders and files that limit the listed files; empty for no limit."""
    without: DirectorySet = NOTHING
    failed: Sequence[FailedFile] = ()
    skipped: Mapping[str, int] = field(default_factory=dict)


def is_below(path: str, folders: Collection[str]) -> bool:
    path = os.path.abspath(path)
    while folders and path not in folders and (above := os.path.dirname(path)) != path:
        path = above
    return not folders or path in folders
