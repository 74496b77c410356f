"""The report of a search, and its JSON form."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from clip_client._files import FailedFile
from clip_client.dedup.group import DuplicateGroup, Member
from clip_client.dedup.text import counted
from clip_client.dedup.types import NO_MODEL, RecallEstimate, SearchStats, Thresholds


def count_verdicts(groups: Iterable[DuplicateGroup]) -> Counter[tuple[str, str]]:
    """Return (``moves`` of a verdict, tier) -> number of such photos, without the kept ones."""
    verdicts = (member.verdict for group in groups for member in group.members[1:])
    return Counter((verdict.moves, verdict.tier) for verdict in verdicts)


@dataclass(frozen=True, kw_only=True)
class DuplicateReport:
    """The groups, and the files that could not be compared."""

    model: str
    thresholds: Thresholds
    compared: int
    groups: tuple[DuplicateGroup, ...]
    failed: tuple[FailedFile, ...]
    work: SearchStats = field(default_factory=SearchStats)
    coverage: RecallEstimate | None = None
    failed_by_bytes: int = 0
    """Number of the ``failed`` files whose bytes were compared: they have copies."""
    bytes_only: tuple[str, ...] = ()
    """Paths of RAW files without a readable preview, of which only the bytes were compared."""
    links: Mapping[tuple[int, int | str], str] = field(default_factory=dict)
    """``identity_of`` a file -> a symbolic link to it, which a move of the file would break."""
    skipped: Mapping[str, int] = field(default_factory=dict)
    note: str = ""
    """Reason, in words, why no copy could be verified, or why the only two photos, which were named, are apart."""

    @classmethod
    def combine(cls, parts: Sequence[DuplicateReport], coverage: RecallEstimate) -> DuplicateReport:
        return replace(
            parts[0],
            compared=sum(part.compared for part in parts),
            groups=tuple(
                sorted((group for part in parts for group in part.groups), key=lambda group: os.fsencode(group.keep))
            ),
            work=sum((part.work for part in parts), SearchStats()),
            coverage=coverage,
            note=next((part.note for part in parts if part.note), ""),
        )

    @property
    def has_cosines(self) -> bool:
        return self.model != NO_MODEL

    @property
    def failed_in_words(self) -> str:
        """Say ``"2 files compared by bytes only, 1 file not compared"``; empty if no file failed."""
        folders = sum(one.is_folder for one in self.failed)
        numbers = (
            (self.failed_by_bytes, "file", "compared by bytes only"),
            (len(self.failed) - self.failed_by_bytes - folders, "file", "not compared"),
            (folders, "folder", "not read"),
        )
        return ", ".join(f"{counted(number, noun)} {what}" for number, noun, what in numbers if number)

    @property
    def groups_by_space(self) -> tuple[DuplicateGroup, ...]:
        return tuple(sorted(self.groups, key=lambda group: group.spare_bytes, reverse=True))

    def to_mapping(self) -> dict[str, Any]:
        return {
            "model": self.model,
            "thresholds": asdict(self.thresholds),
            "groups": [
                {
                    "tier": group.tier,
                    "min_similarity": group.min_similarity if self.has_cosines else None,
                    "keep": group.keep,
                    "reason": group.reason,
                    "members": [_member(member, has_cosine=self.has_cosines) for member in group.members],
                }
                for group in self.groups
            ],
            "failed": [asdict(file) for file in self.failed],
            "bytes_only": list(self.bytes_only),
            "skipped": dict(self.skipped),
            "note": self.note,
        }


def _member(member: Member, *, has_cosine: bool) -> dict[str, Any]:
    photo, verdict, library = member.photo, member.verdict, member.photo.in_library
    return {
        "path": photo.path,
        "sha256": photo.sha256,
        "size_bytes": photo.size_bytes,
        "width": photo.width,
        "height": photo.height,
        "format": photo.features.format or None,
        "similarity": member.similarity if has_cosine else None,
        "tier": member.tier,
        "matches": [match.to_mapping() for match in member.matches],
        "verdict": asdict(verdict) | {"kept": verdict.kept or None, "doubt": member.doubt or None},
        "cannot_verify": member.cannot_verify or None,
        "moment": member.other_shot,
        "copy_of": member.copy_of or None,
        "copy_tier": member.copy_tier or None,
        "copy_alignment": member.copy_alignment and asdict(member.copy_alignment),
        "embedded": photo.features.embedded.split(", ") if photo.features.embedded else [],
        "reference": photo.is_reference,
        "taken": photo.metadata.taken or None,
        "camera": photo.camera or None,
        "photos_library": library and {"path": library.library, "uuid": library.uuid, "name": library.name},
    }
