"""The values that several parts of dedup share: files, metadata, and groups of photos."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from clip_client._files import stored_ns

# Arrays, named by their content; functions that use them state the shapes.
Floats = NDArray[np.float32]
Hashes = NDArray[np.uint64]
Indices = NDArray[np.intp]
Mask = NDArray[np.bool_]
Pixels = NDArray[np.uint8]
Vectors = NDArray[np.float32]

OnProgress = Callable[[str, int, int | None], None]
"""``on_progress(what, done, total)``; the total is None while it is not known."""

EXACT: Final = "exact"
"""All files of the group have the same bytes."""
SAME_PIXELS: Final = "same-pixels"
"""All photos decode to the same pixels; their metadata or lossless formats differ."""
RE_ENCODED: Final = "re-encoded"
"""Frame and colours are the same, in another size, quality or format. This is proved, or a doubt says why not."""
EDITED: Final = "edited"
"""The alignment shows the same shot after a change to the whole picture: a crop, a rotation, more contrast."""
ALTERED: Final = "altered"
"""The alignment shows that a region differs, such as a text on top. This never proves a copy."""
SIMILAR: Final = "similar"
"""Vectors or perceptual hashes alone say that the photo is like the kept one."""
TIERS: Final = (EXACT, SAME_PIXELS, RE_ENCODED, EDITED, ALTERED, SIMILAR)
SAFE_TIERS: Final = (EXACT, SAME_PIXELS, RE_ENCODED)
PROVED_TIERS: Final = (*SAFE_TIERS, EDITED)
"""Tiers that depend only on the copy and the kept photo, not on a model."""

BY_DEFAULT: Final = "by default"
ON_REQUEST: Final = "on request"
"""The photo moves if a person has seen it and chooses so; nothing speaks against the move."""
IF_CHOSEN: Final = "if chosen"
"""The photo moves if a person chooses so, although something speaks against the move."""
NEVER: Final = "never"

RAW: Final = "RAW file"

BURST: Final = "another frame of a burst"
SAME_SCENE: Final = "another moment of the same scene"

QUARANTINE_NAME: Final = ".clip-quarantine"
PREVIEWS_MARK: Final = ".clip-previews"
"""Name of a file that marks a folder of small pictures for a page."""
PREVIEW_NAME: Final = re.compile(r"[0-9a-f]{32,64}-\w+\.jpg(\.part)?")
"""Names of the pictures in such a folder. Searches skip only these, because a person may have put photos there, too."""


class PhotoFile(NamedTuple):
    path: str
    size_bytes: int
    mtime_ns: int
    ctime_ns: int | None = None
    """Time of the last change of its bytes, name, owner or times, which programs cannot set back; None if unknown."""

    @classmethod
    def of(cls, path: str, status: os.stat_result) -> PhotoFile:
        return cls(path, status.st_size, stored_ns(status.st_mtime_ns), stored_ns(status.st_ctime_ns))

    def is_as(self, other: PhotoFile) -> bool:
        """Tell whether size and times equal those of ``other``. The ctime counts only if both are known."""
        return self[1:3] == other[1:3] and len({self.ctime_ns, other.ctime_ns} - {None}) < 2


@dataclass(frozen=True, kw_only=True)
class Companion:
    path: str
    kind: str
    """Such as ``"film"``: one of :mod:`clip_client.dedup.files.file_types`."""
    others: tuple[str, ...] = ()
    """Further photos that the file belongs to. It moves with the last of its photos."""


@dataclass(frozen=True, kw_only=True)
class LibraryPhoto:
    path: str
    """Path of the original, which is outside the library if Photos only refers to it."""
    library: str
    uuid: str
    name: str
    taken_ns: int | None
    """Date in Photos, which a person may have corrected; nanoseconds since 1970."""
    companions: tuple[Companion, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Metadata:
    """Metadata of a photo. A field is empty if the file lacks it. Each field is a column of the store."""

    taken_ms: int | None = None
    """Capture by the camera's clock, ms since 1970. Like all fields down to ``exposure_bias``, from EXIF alone."""
    has_sub_second: bool = False
    sequence: int | None = None
    camera: str = ""
    fields: int = 0
    exposure_s: float | None = None
    f_number: float | None = None
    iso: float | None = None
    exposure_bias: float | None = None
    """EV."""
    taken: str = ""
    """Time of capture by the camera's clock: ISO 8601, to the second, the minute or the day."""
    latitude: float | None = None
    """Degrees; north and east are positive."""
    longitude: float | None = None
    lens: str = ""
    software: str = ""
    has_maker_note: bool = False
    has_exposure: bool = False
    """True with an exposure time, aperture, sensitivity or focal length, which scanners do not write."""
    is_resized: bool = False


@dataclass(frozen=True, kw_only=True)
class Thresholds:
    """Cosine similarities for one model, and their source."""

    similar: float
    """Least similarity to the kept photo at which a photo is worth looking at."""
    source: str
    recommended: bool
    """False if the numbers only serve to try the program, and not to decide about photos."""


NO_MODEL: Final = "none"
"""The model id of a search by bytes, pixels, perceptual hashes and alignment alone."""


def has_trained_vectors(model_id: str) -> bool:
    return model_id != NO_MODEL and not is_random(model_id)


def is_random(model_id: str) -> bool:
    return split_model_id(model_id)[1].partition(":")[0] == "random"


def split_model_id(model_id: str) -> tuple[str, str]:
    model, _, rest = model_id.partition("/")  # the tag may be a path with "/" and "@" in it
    return model, rest.rpartition("@")[0] or rest


@dataclass(frozen=True, kw_only=True)
class RecallEstimate:
    method: str
    recall: float
    recall_95: tuple[float, float]
    pairs: int
    """Similar pairs in the sample; 0 if nothing was measured."""


@dataclass(frozen=True, kw_only=True)
class SearchStats:
    """Numbers of results that a search had to compute because the store did not have them."""

    files_read: int = 0
    decoded: int = 0
    pixels_decoded: int = 0
    embedded: int = 0
    keypoints: int = 0
    aligned: int = 0

    def __add__(self, other: SearchStats) -> SearchStats:
        return SearchStats(**{one.name: getattr(self, one.name) + getattr(other, one.name) for one in fields(self)})
