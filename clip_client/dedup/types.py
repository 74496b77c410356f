"""What a search for duplicates found, and its JSON form."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    OnProgress = Callable[[str, int, int | None], None]
    """``on_progress(what, done, total)``; the total is None while it is not known."""

EXACT: Final = "exact"
"""All files of the group hold the same bytes."""
SAME_PIXELS: Final = "same-pixels"
"""Every photo decodes to the same pixels; what differs is metadata, or the lossless form."""
NEAR_IDENTICAL: Final = "near-identical"
"""Every two photos of the group are at least as similar as the model's stricter threshold asks."""
SIMILAR: Final = "similar"
"""Every photo of the group is similar enough to the kept one."""
TIERS: Final = (EXACT, SAME_PIXELS, NEAR_IDENTICAL, SIMILAR)
"""From the surest to the least sure."""

BURST: Final = "another frame of a burst"
SAME_SCENE: Final = "another moment of the same scene"

QUARANTINE_NAME: Final = ".clip-quarantine"
"""Folder that copies are moved to; no search enters it."""


@dataclass(frozen=True, kw_only=True)
class FailedFile:
    """A file that was not compared, and why."""

    path: str
    code: str
    """Name of an ``ImageStatus``, or ``"UNREADABLE"``."""
    message: str
    """One sentence for people."""


class PhotoFile(NamedTuple):
    """A file as it was when it was found."""

    path: str
    """Names that are not UTF-8 are kept with ``surrogateescape``, as :func:`os.fsdecode` does."""
    size_bytes: int
    mtime_ns: int


@dataclass(frozen=True, kw_only=True)
class Companion:
    """A file that belongs to a photo."""

    path: str
    kind: str
    """``"RAW file"``, ``"film"``, ``"sidecar"``, or, in a library of Apple Photos, ``"edited version"``."""


@dataclass(frozen=True, kw_only=True)
class LibraryPhoto:
    """One photo of a library, as Photos knows it: the original, and all that belongs to it."""

    path: str
    """The original; for one that Photos only refers to it lies outside the library."""
    library: str
    """Path of the library."""
    uuid: str
    """Photos' own name for it."""
    name: str
    """Name of the file when it was imported."""
    taken_ns: int | None
    """Date in Photos, nanoseconds since 1970; a person may have corrected it."""
    companions: tuple[Companion, ...] = ()
    """RAW file, film of a Live Photo, edited version."""


@dataclass(frozen=True, kw_only=True)
class Links:
    """Symbolic links to files, photos that only they reach, and photos with further hard links."""

    by_target: Mapping[str, str] = field(default_factory=dict)
    """Real path of a file -> a symbolic link that leads to it. Moving the file would leave that link dangling."""
    only_by_link: frozenset[str] = frozenset()
    """Paths of photos that were reached by a link only: the files themselves lie outside what was searched."""
    hard_linked: frozenset[str] = frozenset()
    """Paths of photos that have other names, here or anywhere on their file system: removing one name frees nothing."""

    def to(self, path: str) -> str:
        """Return a symbolic link that leads to the file at ``path``; empty if the search met none."""
        return self.by_target.get(os.path.realpath(path), "") if self.by_target else ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Metadata:
    """What is known beside the pixels; empty if the file does not say. All are plain values, for a table's columns."""

    taken: str = ""
    """ISO 8601 by the camera's own clock, to the second or less exact."""
    latitude: float | None = None
    """Degrees, north and east are positive."""
    longitude: float | None = None
    rating: int = 0
    """1 to 5, -1 for rejected, 0 for none."""
    keywords: str = ""
    """In order, one in a line."""
    title: str = ""
    caption: str = ""
    lens: str = ""
    software: str = ""
    """Programs that wrote the file, as far as they say."""
    has_maker_note: bool = False
    has_exposure: bool = False
    """An exposure time, aperture, sensitivity or focal length, which scanners do not write."""
    is_resized: bool = False
    """EXIF names another size than the picture has."""
    is_incomplete: bool = False
    """There is more that could not be read."""


@dataclass(frozen=True, kw_only=True)
class Thresholds:
    """Cosine similarities for one model, and where they come from."""

    near_identical: float
    """At least this between every two photos of a group: the same picture, stored another way."""
    similar: float
    """At least this to the kept photo: worth a person's look."""
    source: str
    """One sentence that says where the numbers come from."""
    recommended: bool
    """False where the numbers serve to try the program and nobody should decide about photos by them."""


def is_random(model_id: str) -> bool:
    """Tell whether ``model_id`` names weights that were never trained."""
    return split_model_id(model_id)[1].partition(":")[0] == "random"


def split_model_id(model_id: str) -> tuple[str, str]:
    """Split off (model, pretrained); the pretrained tag may be a path and hold ``/`` and ``@`` itself."""
    model, _, rest = model_id.partition("/")
    return model, rest.rpartition("@")[0] or rest


@dataclass(frozen=True, kw_only=True)
class RecallEstimate:
    """How the vectors were compared."""

    method: str
    """``"exact"`` or ``"cells"``."""
    recall: float
    """Share of alike pairs that were compared; 1 for ``"exact"``, else measured on a sample."""
    recall_95: tuple[float, float]
    """Between these the recall lies with 95 % confidence."""
    pairs: int
    """Alike pairs in the sample that ``recall`` was measured on; 0 where nothing was measured."""


@dataclass(frozen=True, kw_only=True)
class Match:
    """One test that two photos passed."""

    test: str
    """``"bytes"``, ``"pixels"``, ``"perceptual hash"`` or ``"embedding"``."""
    value: float
    """Bits that differ for a perceptual hash, a cosine similarity for an embedding, else 1."""
    threshold: float
    """What ``value`` had to reach, or, for a perceptual hash, not to exceed."""

    def __str__(self) -> str:
        if self.test == "embedding":
            return f"embedding: {self.value:.4f}, at least {self.threshold:g}"
        if self.test == "perceptual hash":
            return f"perceptual hash: {self.value:g} of 64 bits differ, at most {self.threshold:g}"
        return f"same {self.test}"


@dataclass(frozen=True, kw_only=True)
class Member:
    """One photo of a group."""

    path: str
    similarity: float
    """Cosine similarity to the kept photo; 1 for the kept photo and for files of the same bytes."""
    width: int
    """Pixels, upright."""
    height: int
    size_bytes: int
    sha256: str
    tier: str = SIMILAR
    """How sure it is that it shows the same as the kept photo, of :data:`TIERS`."""
    matches: tuple[Match, ...] = ()
    """Why it is in the group: every test that it passed against the kept photo. Empty for the kept photo."""
    moment: str = ""
    """``BURST`` or ``SAME_SCENE`` where its time says that it is another picture than the kept one, else empty."""
    copy_of: str = ""
    """Path of a better file of the group that holds its very picture, where the kept photo is another; else empty."""
    copy_tier: str = ""
    """How sure that is: ``EXACT`` or ``SAME_PIXELS``."""
    embedded: str = ""
    """What its file holds beyond the picture, such as ``"film, gain map"``."""
    embedded_digest: str = ""
    """Equal for photos that hold the same beyond their pictures."""
    is_reference: bool = False
    """It lies in a reference folder and is never moved."""
    camera: str = ""
    metadata: Metadata = field(default_factory=Metadata)
    """What its file says beside the pixels."""
    in_library: LibraryPhoto | None = None
    """What Apple Photos knows about it, where it belongs to one of its libraries; it is never moved either."""

    @property
    def why(self) -> str:
        """For people: the tests that it passed, and what else of the group it is a copy of."""
        same = "bytes" if self.copy_tier == EXACT else "pixels"
        copy = f"same {same} as {self.copy_of}" if self.copy_of else ""
        return "; ".join(filter(None, (*map(str, self.matches), copy)))

    @property
    def origin(self) -> str:
        """For people: when it was taken, and by which camera."""
        return ", ".join(filter(None, (self.metadata.taken.replace("T", " "), self.camera)))

    @property
    def label(self) -> str:
        """The path; in a library of Apple Photos, where that says nothing to anybody, the name at its import."""
        if self.in_library is None:
            return self.path
        return os.path.join(os.path.basename(self.in_library.library.rstrip(os.sep)), self.in_library.name)


@dataclass(frozen=True, kw_only=True)
class DuplicateGroup:
    """Photos that show the same; the first member is the one to keep."""

    tier: str
    """The least sure of its members', of :data:`TIERS`."""
    min_similarity: float
    """Of all pairs in the group, not only of those with the kept photo."""
    members: tuple[Member, ...]
    """The kept photo first, then by falling similarity to it."""
    reason: str = ""
    """Why the first one is kept: the rule that decided against the next best."""

    @property
    def keep(self) -> str:
        """Path of the photo to keep."""
        return self.members[0].path

    @property
    def warnings(self) -> tuple[str, ...]:
        """For people: what they should look at before the copies go."""
        kept, *others = map(_exif_fields, (self.members[0], *(one for one in self.members if not one.moment)))
        lacking = dict.fromkeys(name for fields in others for name in fields if name not in kept)
        if not lacking:
            return ()
        return (f"the kept photo lacks EXIF that a copy has: {', '.join(lacking)}",)


@dataclass(frozen=True, kw_only=True)
class SearchStats:
    """What a search had to do itself; the rest was in the store."""

    files_read: int = 0
    decoded: int = 0
    """Contents whose size, perceptual hash and time were taken."""
    pixels_decoded: int = 0
    """Contents that were decoded in full, to compare their pixels."""
    embedded: int = 0


@dataclass(frozen=True, kw_only=True)
class DuplicateReport:
    """The groups, and what could not be compared."""

    model: str
    """Id of the model whose vectors were compared."""
    thresholds: Thresholds
    compared: int
    """Number of files that were compared."""
    groups: tuple[DuplicateGroup, ...]
    """Ordered by the path of the kept photo."""
    failed: tuple[FailedFile, ...]
    """Ordered by path."""
    work: SearchStats = field(default_factory=lambda: SearchStats())
    """What the search had to do."""
    coverage: RecallEstimate | None = None
    """How the vectors were compared."""
    bytes_only: tuple[str, ...] = ()
    """Those of the compared that no picture could be read from, such as RAW files: only their bytes were compared."""
    links: Links = field(default_factory=Links)
    """What the links that the search met mean for moving files."""
    skipped: Mapping[str, int] = field(default_factory=dict)
    """Kind -> number of files that were passed over, because their names are not those of photos."""

    @property
    def spare_bytes(self) -> int:
        """Return the size of all members but the kept ones, those of reference folders and those with hard links."""
        return sum(
            member.size_bytes
            for group in self.groups
            for member in group.members[1:]
            if not member.is_reference and member.path not in self.links.hard_linked
        )

    def to_mapping(self) -> dict[str, Any]:
        """Return the report as JSON holds it."""
        return {
            "model": self.model,
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
            "failed": [{"path": file.path, "code": file.code, "message": file.message} for file in self.failed],
            "bytes_only": list(self.bytes_only),
            "skipped": dict(self.skipped),
        }

    def to_json(self) -> str:
        """Return the report as ASCII JSON; a byte of a name that is not UTF-8 stands as ``\\udc80`` to ``\\udcff``."""
        return json.dumps(self.to_mapping(), indent=2) + "\n"


def _exif_fields(member: Member) -> tuple[str, ...]:
    said = {
        "date": member.metadata.taken,
        "camera": member.camera,
        "lens": member.metadata.lens,
        "GPS position": member.metadata.latitude is not None,
    }
    return tuple(name for name, value in said.items() if value)


def _member(member: Member) -> dict[str, Any]:
    return {
        "path": member.path,
        "similarity": member.similarity,
        "tier": member.tier,
        "matches": [{"test": m.test, "value": m.value, "threshold": m.threshold} for m in member.matches],
        "moment": member.moment,
        "copy_of": member.copy_of or None,
        "embedded": member.embedded.split(", ") if member.embedded else [],
        "reference": member.is_reference,
        "taken": member.metadata.taken or None,
        "camera": member.camera or None,
        "photos_library": None
        if member.in_library is None
        else {
            "path": member.in_library.library,
            "uuid": member.in_library.uuid,
            "name": member.in_library.name,
        },
    }
