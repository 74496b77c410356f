"""Near-duplicate photos: find the files, compare them, group them, report.

``scan``, ``hashing`` and ``preview`` look at files, ``grouping`` is arithmetic on vectors, ``thresholds`` says which
similarity counts for which model, ``find`` puts them together; ``report``, ``page`` and ``table`` say what came out.
"""

from clip_client.dedup.database import StoreError
from clip_client.dedup.file_kinds import PHOTO_SUFFIXES
from clip_client.dedup.find import find_duplicates
from clip_client.dedup.grouping import Evidence, Star, minimum_similarity, star_groups
from clip_client.dedup.joining import components
from clip_client.dedup.report import DuplicateGroup, DuplicateReport, FailedFile, Match, Member, Work
from clip_client.dedup.scan import Scan, scan
from clip_client.dedup.store import Store
from clip_client.dedup.thresholds import Thresholds, thresholds_for

__all__ = (
    "PHOTO_SUFFIXES",
    "DuplicateGroup",
    "DuplicateReport",
    "Evidence",
    "FailedFile",
    "Match",
    "Member",
    "Scan",
    "Star",
    "Store",
    "StoreError",
    "Thresholds",
    "Work",
    "components",
    "find_duplicates",
    "minimum_similarity",
    "scan",
    "star_groups",
    "thresholds_for",
)
