"""The values that several rooms of dedup share: files, metadata, groups and the report with its JSON form."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    OnProgress = Callable[[str, int, int | None], None]
    """``on_progress(what, done, total)``; the total is None while it is not known."""

EXACT: Final = "exact"
"""All files of the group have the same bytes."""
SAME_PIXELS: Final = "same-pixels"
"""All photos decode to the same pixels; their metadata or lossless formats differ."""
NEAR_IDENTICAL: Final = "near-identical"
"""Every two photos of the group reach the model's stricter threshold."""
SIMILAR: Final = "similar"
"""Every photo of the group reaches the model's threshold against the kept one."""
TIERS: Final = (EXACT, SAME_PIXELS, NEAR_IDENTICAL, SIMILAR)
"""From the most to the least certain."""

BURST: Final = "another frame of a burst"
SAME_SCENE: Final = "another moment of the same scene"

QUARANTINE_NAME: Final = ".clip-quarantine"
"""Name of the folder that copies are moved to; no search enters it."""
PREVIEWS_MARK: Final = ".clip-previews"
"""Name of a file in a folder of small pictures that a report page shows; no search enters such a folder."""


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
    """One photo in a library of Apple Photos: the original and its companions."""

    path: str
    """The original; it is outside the library if Photos only refers to it."""
    library: str
    """Path of the library."""
    uuid: str
    """The id that Photos gave it."""
    name: str
    """Name of the file when it was imported."""
    taken_ns: int | None
    """Date in Photos, which a person may have corrected; nanoseconds since 1970."""
    companions: tuple[Companion, ...] = ()
    """RAW file, film of a Live Photo, edited version."""


@dataclass(frozen=True, kw_only=True)
class Links:
    """Symbolic links to files, photos that only they reach, and photos with further hard links."""

    by_target: Mapping[str, str] = field(default_factory=dict)
    """Real path of a file -> a symbolic link that leads to it, which a move of the file would break."""
    only_by_link: frozenset[str] = frozenset()
    """Paths of photos that only a link leads to: the files themselves lie outside what was searched."""
    hard_linked: frozenset[str] = frozenset()
    """Paths of photos with further names anywhere on their file system: removing one name frees no space."""

    def to(self, path: str) -> str:
        """Return a symbolic link that leads to the file at ``path``; empty if the search found none."""
        return self.by_target.get(os.path.realpath(path), "") if self.by_target else ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Metadata:
    """What a file says about its photo; a field is empty if the file does not say. Each is a column of the store."""

    taken: str = ""
    """Time of capture by the camera's clock: ISO 8601, to the second, the minute or the day."""
    latitude: float | None = None
    """Degrees; north and east are positive."""
    longitude: float | None = None
    rating: int = 0
    """1 to 5, -1 for rejected, 0 for no rating."""
    keywords: str = ""
    """Sorted, one per line."""
    title: str = ""
    caption: str = ""
    lens: str = ""
    software: str = ""
    """The programs that wrote the file, if they say so."""
    has_maker_note: bool = False
    has_exposure: bool = False
    """An exposure time, aperture, sensitivity or focal length, which scanners do not write."""
    is_resized: bool = False
    """The size in EXIF is not that of the picture."""
    is_incomplete: bool = False
    """Some of the metadata could not be read."""


@dataclass(frozen=True, kw_only=True)
class Thresholds:
    """Cosine similarities for one model, and where they come from."""

    near_identical: float
    """At least this between every two photos of a group: the same picture in another file."""
    similar: float
    """At least this to the kept photo: worth looking at."""
    source: str
    """One sentence that says where the numbers come from."""
    recommended: bool
    """False if the numbers only serve to try the program, and not to decide about photos."""


def is_random(model_id: str) -> bool:
    """Tell whether the weights of a model were never trained, by its id."""
    return split_model_id(model_id)[1].partition(":")[0] == "random"


def split_model_id(model_id: str) -> tuple[str, str]:
    """Return (model, pretrained) of a model id. The pretrained tag may be a path with ``/`` and ``@`` in it."""
    model, _, rest = model_id.partition("/")
    return model, rest.rpartition("@")[0] or rest


@dataclass(frozen=True, kw_only=True)
class RecallEstimate:
    """How the vectors were compared, and which share of the alike pairs was found."""

    method: str
    """``"exact"`` or ``"cells"``."""
    recall: float
    """Share of alike pairs that were compared: 1 for ``"exact"``, else measured on a sample."""
    recall_95: tuple[float, float]
    """The 95 % confidence interval of the recall."""
    pairs: int
    """Alike pairs in the sample; 0 if nothing was measured."""


@dataclass(frozen=True, kw_only=True)
class Match:
    """One test that two photos passed."""

    test: str
    """``"bytes"``, ``"pixels"``, ``"perceptual hash"`` or ``"embedding"``."""
    value: float
    """Differing bits for a perceptual hash, cosine similarity for an embedding, else 1."""
    threshold: float
    """The least ``value`` that passes; for a perceptual hash, the greatest."""

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
    """Cosine similarity to the kept photo; 1 for the kept photo and for files with its bytes."""
    width: int
    """Pixels, after the EXIF orientation."""
    height: int
    size_bytes: int
    sha256: str
    tier: str = SIMILAR
    """How certain it is that the photo shows the same as the kept one; one of :data:`TIERS`."""
    matches: tuple[Match, ...] = ()
    """Every test that it passed against the kept photo. Empty for the kept photo."""
    moment: str = ""
    """``BURST`` or ``SAME_SCENE`` if its time shows that it is not the same picture as the kept one, else empty."""
    copy_of: str = ""
    """Path of a better file of the group with the same picture, if the kept photo is another picture; else empty."""
    copy_tier: str = ""
    """How certain that is: ``EXACT`` or ``SAME_PIXELS``."""
    embedded: str = ""
    """What its file holds besides the picture, such as ``"film, gain map"``."""
    embedded_digest: str = ""
    """Equal for files that hold the same besides their pictures."""
    is_reference: bool = False
    """It lies in a reference folder and is never moved."""
    camera: str = ""
    metadata: Metadata = field(default_factory=Metadata)
    in_library: LibraryPhoto | None = None
    """The photo in Apple Photos, if it is in one of its libraries. Such a photo is never moved either."""

    @property
    def is_copy(self) -> bool:
        """False for another frame or moment, unless it is a copy of another photo in the group."""
        return not self.moment or bool(self.copy_of)

    @property
    def why(self) -> str:
        """For people: the tests that it passed, and the file that it is a copy of."""
        same = "bytes" if self.copy_tier == EXACT else "pixels"
        copy = f"same {same} as {self.copy_of}" if self.copy_of else ""
        return "; ".join(filter(None, (*map(str, self.matches), copy)))

    @property
    def origin(self) -> str:
        """For people: when it was taken, and by which camera."""
        return ", ".join(filter(None, (self.metadata.taken.replace("T", " "), self.camera)))

    @property
    def label(self) -> str:
        """The path; in a library of Apple Photos, which renames its files, the name at the import."""
        if self.in_library is None:
            return self.path
        return os.path.join(os.path.basename(self.in_library.library.rstrip(os.sep)), self.in_library.name)


@dataclass(frozen=True, kw_only=True)
class DuplicateGroup:
    """Photos that show the same; the first one is kept."""

    tier: str
    """The least certain tier of its members."""
    min_similarity: float
    """The smallest cosine similarity of any two members."""
    members: tuple[Member, ...]
    """The kept photo first, then by descending similarity to it."""
    reason: str = ""
    """Why the first one is kept: the rule that preferred it to the next best."""

    @property
    def keep(self) -> str:
        """Path of the photo to keep."""
        return self.members[0].path

    @property
    def warnings(self) -> tuple[str, ...]:
        """For people: what to check before the copies are moved."""
        kept, *others = map(_exif_fields, (self.members[0], *(one for one in self.members if not one.moment)))
        lacking = dict.fromkeys(name for fields in others for name in fields if name not in kept)
        return (f"the kept photo lacks EXIF that a copy has: {', '.join(lacking)}",) if lacking else ()


@dataclass(frozen=True, kw_only=True)
class SearchStats:
    """What a search had to compute because it was not in the store."""

    files_read: int = 0
    decoded: int = 0
    """Contents whose features were extracted."""
    pixels_decoded: int = 0
    """Contents that were decoded at full size, to compare their pixels."""
    embedded: int = 0


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

    @property
    def copies(self) -> int:
        """Number of members besides the kept ones; frames of a burst and moments of a scene are no copies."""
        return sum(member.is_copy for group in self.groups for member in group.members[1:])

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
            "failed": [asdict(file) for file in self.failed],
            "bytes_only": list(self.bytes_only),
            "skipped": dict(self.skipped),
        }

    def to_json(self) -> str:
        """Return the report as ASCII JSON; a byte of a name that is not UTF-8 becomes ``\\udc80`` to ``\\udcff``."""
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
    library = member.in_library
    return {
        "path": member.path,
        "similarity": member.similarity,
        "tier": member.tier,
        "matches": [asdict(match) for match in member.matches],
        "moment": member.moment,
        "copy_of": member.copy_of or None,
        "embedded": member.embedded.split(", ") if member.embedded else [],
        "reference": member.is_reference,
        "taken": member.metadata.taken or None,
        "camera": member.camera or None,
        "photos_library": library and {"path": library.library, "uuid": library.uuid, "name": library.name},
    }
