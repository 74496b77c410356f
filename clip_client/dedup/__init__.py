"""Finds near-duplicate photos.

``search`` runs straight through the rooms ``files``, ``features``, ``compare`` and ``judge`` to a ``report``. Nothing
here imports the client: a search takes any ``Embedder``.
"""

from clip_client._files import FailedFile
from clip_client._storage.sqlite import StoreError
from clip_client.dedup.aligned import Alignment, Match
from clip_client.dedup.compare.thresholds import thresholds_for
from clip_client.dedup.files.file_types import PHOTO_SUFFIXES
from clip_client.dedup.files.scanner import Scan, scan
from clip_client.dedup.group import DuplicateGroup, Member, Verdict
from clip_client.dedup.photo import Photo
from clip_client.dedup.report import DuplicateReport
from clip_client.dedup.search import find_duplicates
from clip_client.dedup.store.store import Store
from clip_client.dedup.types import SearchStats, Thresholds

__all__ = (
    "PHOTO_SUFFIXES",
    "Alignment",
    "DuplicateGroup",
    "DuplicateReport",
    "FailedFile",
    "Match",
    "Member",
    "Photo",
    "Scan",
    "SearchStats",
    "Store",
    "StoreError",
    "Thresholds",
    "Verdict",
    "find_duplicates",
    "scan",
    "thresholds_for",
)
