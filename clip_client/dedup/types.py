"""The values that several rooms of dedup share: files, metadata, and groups of photos."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from clip_client.dedup.aligned import Alignment, Match

    OnProgress = Callable[[str, int, int | None], None]
    """``on_progress(what, done, total)``; the total is None while it is not known."""

EXACT: Final = "exact"
"""All files of the group have the same bytes."""
SAME_PIXELS: Final = "same-pixels"
"""All photos decode to the same pixels; their metadata or lossless formats differ."""
RE_ENCODED: Final = "re-encoded"
"""Aligned: the same frame and colours in another size, quality or format."""
EDITED: Final = "edited"
"""Aligned: the same shot after a change to the whole picture, such as a crop, a rotation or more contrast."""
ALTERED: Final = "altered"
"""Aligned, but a region differs, such as a text on top. Never proof of a copy."""
NEAR_IDENTICAL: Final = "near-identical"
"""Every two photos of the group reach the model's stricter threshold."""
SIMILAR: Final = "similar"
"""Every photo of the group reaches the model's threshold against the kept one."""
TIERS: Final = (EXACT, SAME_PIXELS, RE_ENCODED, EDITED, ALTERED, NEAR_IDENTICAL, SIMILAR)
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
class CaptureTime:
    """The time of capture in EXIF; a field is empty if EXIF does not say it. Each is a column of the store."""

    taken_ms: int | None = None
    """Milliseconds since 1970 by the camera's clock, whose time zone is mostly unknown."""
    has_sub_second: bool = False
    sequence: int | None = None
    """Number of the shot."""
    camera: str = ""
    fields: int = 0
    """Number of EXIF fields, including GPS."""
    exposure_s: float | None = None
    """Exposure time in seconds. This field and the next three are 0 in a store of an older version."""
    f_number: float | None = None
    iso: float | None = None
    exposure_bias: float | None = None
    """EV."""


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
    candidate: float = 0.85
    """At least this between two photos: worth aligning, which decides."""
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
    mtime_ns: int = 0
    """When the file was last changed, nanoseconds since 1970."""
    format: str = ""
    """Name of the file format, such as ``"JPEG"``, whatever the file is called."""
    tier: str = SIMILAR
    """How certain it is that the photo shows the same as the kept one; one of :data:`TIERS`."""
    matches: tuple[Match, ...] = ()
    """Every test that it passed against the kept photo. Empty for the kept photo."""
    moment: str = ""
    """``BURST`` or ``SAME_SCENE`` if its time shows that it is not the same picture as the kept one, else empty."""
    copy_of: str = ""
    """Path of another file of the group that it is a closer copy of than of the kept photo; else empty."""
    copy_tier: str = ""
    """How certain that is: one of :data:`TIERS`, but neither ``NEAR_IDENTICAL`` nor ``SIMILAR``."""
    copy_alignment: Alignment | None = None
    """The alignment with ``copy_of``, if they were aligned."""
    cannot_verify: str = ""
    """One sentence that says why it could not be aligned with any photo; empty if it could."""
    embedded: str = ""
    """What its file holds besides the picture, such as ``"film, gain map"``."""
    embedded_digest: str = ""
    """Equal for files that hold the same besides their pictures."""
    is_reference: bool = False
    """It lies in a reference folder and is never moved."""
    is_by_link: bool = False
    """Only a symbolic link leads to it."""
    doubt: str = ""
    """For people: why it is probably made from another photo; empty if nothing shows that."""
    is_original: bool = False
    """It has all the metadata that a camera writes, and no trace of another program."""
    companions: tuple[str, ...] = ()
    """The kinds of its companions, such as ``"RAW file"``."""
    capture_time: CaptureTime = field(default_factory=CaptureTime)
    metadata: Metadata = field(default_factory=Metadata)
    in_library: LibraryPhoto | None = None
    """The photo in Apple Photos, if it is in one of its libraries. Such a photo is never moved either."""

    @property
    def camera(self) -> str:
        """Make and model of the camera; empty if EXIF does not say it."""
        return self.capture_time.camera

    @property
    def is_copy(self) -> bool:
        """False for another frame or moment and for an altered picture, unless it is a copy of another photo."""
        is_copy = not self.moment and self.tier != ALTERED
        return is_copy or (bool(self.copy_of) and self.copy_tier != ALTERED)

    @property
    def alignment(self) -> Alignment | None:
        """The alignment with the kept photo, if they were aligned and show the same."""
        return next((match.alignment for match in self.matches if match.alignment), None)

    @property
    def why(self) -> str:
        """For people: the tests that it passed, the file that it is a copy of, and why it may be no original."""
        same = {EXACT: "same bytes as", SAME_PIXELS: "same pixels as"}.get(self.copy_tier, f"{self.copy_tier} copy of")
        copy = f"{same} {self.copy_of}" if self.copy_of else ""
        doubt = f"may be made from another photo: {self.doubt}" if self.doubt else ""
        return "; ".join(filter(None, (*map(str, self.matches), copy, doubt)))

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
    def copies(self) -> int:
        """Number of members besides the kept one; frames of a burst and moments of a scene are no copies."""
        return sum(member.is_copy for member in self.members[1:])

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
    keypoints: int = 0
    """Contents whose keypoints were extracted."""


def _exif_fields(member: Member) -> tuple[str, ...]:
    said = {
        "date": member.metadata.taken,
        "camera": member.camera,
        "lens": member.metadata.lens,
        "GPS position": member.metadata.latitude is not None,
    }
    return tuple(name for name, value in said.items() if value)
