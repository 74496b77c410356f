"""What a search found, and its JSON form."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from clip_client.dedup.types import Links, SearchStats

if TYPE_CHECKING:
    from collections.abc import Mapping

    from clip_client.dedup.aligned import PairSource
    from clip_client.dedup.types import DuplicateGroup, FailedFile, Member, RecallEstimate, Thresholds


@dataclass(frozen=True, kw_only=True)
class DuplicateReport:
    """The groups, and the files that could not be compared."""

    model: str
    """Id of the model whose vectors were compared."""
    thresholds: Thresholds
    compared: int
    """Number of files that were compared."""
    groups: tuple[DuplicateGroup, ...]
    """Ordered by the path of the kept photo."""
    failed: tuple[FailedFile, ...]
    """Ordered by path."""
    work: SearchStats = field(default_factory=SearchStats)
    coverage: RecallEstimate | None = None
    """How the vectors were compared."""
    bytes_only: tuple[str, ...] = ()
    """Paths of RAW files without a readable preview, of which only the bytes were compared."""
    links: Links = field(default_factory=Links)
    """What the links that the search found mean for moving files."""
    skipped: Mapping[str, int] = field(default_factory=dict)
    """Kind -> number of files that were skipped because their names are not those of photos."""
    pair_sources: tuple[PairSource, ...] = ()
    """Where the pairs came from that were aligned; empty if none were."""
    note: str = ""
    """For people: why no copy could be verified; empty if nothing hindered it."""

    @property
    def copies(self) -> int:
        """Number of members besides the kept ones; frames of a burst and moments of a scene are no copies."""
        return sum(group.copies for group in self.groups)

    @property
    def spare_bytes(self) -> int:
        """The size of all copies except those in reference folders and those with further hard links."""
        return sum(map(self.spare_bytes_of, self.groups))

    def spare_bytes_of(self, group: DuplicateGroup) -> int:
        """Return the share of one group in :attr:`spare_bytes`."""
        return sum(
            member.size_bytes
            for member in group.members[1:]
            if member.is_copy and not member.is_reference and member.path not in self.links.hard_linked
        )

    @property
    def groups_by_space(self) -> tuple[DuplicateGroup, ...]:
        """The groups, those that free the most space first."""
        return tuple(sorted(self.groups, key=self.spare_bytes_of, reverse=True))

    def to_mapping(self) -> dict[str, Any]:
        """Return the report as JSON holds it; ``docs/dedup.schema.json`` describes it."""
        return {
            "model": self.model,
            "thresholds": asdict(self.thresholds),
            "groups": [
                {
                    "tier": group.tier,
                    "min_similarity": group.min_similarity,
                    "keep": group.keep,
                    "reason": group.reason,
                    "warnings": list(group.warnings),
                    "members": [_member(member) for member in group.members],
                }
                for group in self.groups
            ],
            "failed": [asdict(file) for file in self.failed],
            "bytes_only": list(self.bytes_only),
            "skipped": dict(self.skipped),
            "pair_sources": [asdict(source) for source in self.pair_sources],
            "note": self.note,
        }

    def to_json(self) -> str:
        """Return the report as ASCII JSON; a byte of a name that is not UTF-8 becomes ``\\udc80`` to ``\\udcff``."""
        return json.dumps(self.to_mapping(), indent=2) + "\n"


def _member(member: Member) -> dict[str, Any]:
    library = member.in_library
    return {
        "path": member.path,
        "sha256": member.sha256,
        "size_bytes": member.size_bytes,
        "width": member.width,
        "height": member.height,
        "format": member.format or None,
        "similarity": member.similarity,
        "tier": member.tier,
        "matches": [match.to_mapping() for match in member.matches],
        "doubt": member.doubt or None,
        "cannot_verify": member.cannot_verify or None,
        "moment": member.moment,
        "copy_of": member.copy_of or None,
        "copy_tier": member.copy_tier or None,
        "copy_alignment": member.copy_alignment and asdict(member.copy_alignment),
        "embedded": member.embedded.split(", ") if member.embedded else [],
        "reference": member.is_reference,
        "taken": member.metadata.taken or None,
        "camera": member.camera or None,
        "photos_library": library and {"path": library.library, "uuid": library.uuid, "name": library.name},
    }
