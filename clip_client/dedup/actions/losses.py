"""What a duplicate has that the kept photo lacks, so that moving it would lose something: metadata, and its picture."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from clip_client.dedup.files.encoding import Encoding, read_encoding
from clip_client.dedup.files.field_names import DATES, rank
from clip_client.dedup.files.fields import Fields, read_attributes, read_fields, read_sidecar_fields
from clip_client.dedup.files.reading import read_file
from clip_client.dedup.types import EDITED, EXACT, RAW, SAME_PIXELS, SIMILAR, FailedFile

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from clip_client.dedup.files.fields import Value
    from clip_client.dedup.photo import Photo
    from clip_client.dedup.types import Metadata

_SAME_PLACE_DEGREES: Final = 0.0002
"""About 20 m: programs round positions when they copy them."""
_MOST_NAMES: Final = 4
"""Fields that a sentence names; people look into the files for the others."""
_IN_METADATA: Final = frozenset({"rating", "keywords"})
"""Fields that :class:`~clip_client.dedup.types.Metadata` holds from all places; of others it holds the first."""


@dataclass(frozen=True, kw_only=True)
class Loss:
    """Fields that would be lost with a duplicate, by the names that a report gives them."""

    missing: tuple[str, ...] = ()
    """Fields of :class:`~clip_client.dedup.types.Metadata` that the kept photo does not have, or keywords that it
    lacks. A sidecar could hold them."""
    differing: tuple[str, ...] = ()
    """Fields of it that have other values in the kept photo."""
    others: tuple[str, ...] = ()
    """All other fields of the file; the most important one first."""

    def __bool__(self) -> bool:
        return bool(self.missing or self.differing or self.others)


def loss(copy: Metadata, kept: Metadata) -> Loss:
    """Compare what two photos say about themselves, field by field."""
    fields: dict[str, tuple[bool, bool]] = {  # name -> (the copy has another value, the kept photo has none)
        "date": (not kept.taken.startswith(copy.taken), copy.taken.startswith(kept.taken)),
        "GPS position": (not _is_same_place(copy, kept), kept.latitude is None),
        "rating": (copy.rating not in (0, kept.rating), not kept.rating),
        "keywords": (not words(copy) <= words(kept), True),
        "title": (copy.title not in ("", kept.title), not kept.title),
        "caption": (copy.caption not in ("", kept.caption), not kept.caption),
    }
    return Loss(
        missing=tuple(name for name, (is_lost, is_free) in fields.items() if is_lost and is_free),
        differing=tuple(name for name, (is_lost, is_free) in fields.items() if is_lost and not is_free),
    )


def loss_in_files(copy: Photo, kept: Photo, known: Metadata, sidecars: Iterable[bytes] = ()) -> Loss:
    """Compare all fields of two files but housekeeping (:mod:`~clip_client.dedup.files.field_names`).

    ``known`` is the metadata of the kept photo with its ``sidecars``, the XMP packets beside it. Of files with the same
    bytes only the extended attributes can differ. Raises ValueError if the fields of the copy cannot be read.
    """
    lost, found = read_attributes(copy.path).lost_in([read_attributes(kept.path)]), Loss()
    if copy.sha256 != kept.sha256:
        metadata = copy.metadata
        found = loss(metadata, known)
        ours, theirs = _fields_of(copy.path, copy.sha256), _fields_of(kept.path, kept.sha256)
        if ours.is_unreadable:
            raise ValueError(f"the fields of {copy.path} cannot be read")
        # ``found`` is about the first value of each of these fields.
        compared: dict[str, set[Value]] = {name: {metadata.taken} for name in DATES}
        compared |= {name: {" ".join(getattr(metadata, name).split())} for name in ("title", "caption")}
        for name, values in ours.lost_in([theirs, *map(read_sidecar_fields, sidecars)]).items():
            if name not in _IN_METADATA:
                lost[name] = values - compared.get(name, set())
    return replace(found, others=tuple(sorted((name for name, values in lost.items() if values), key=rank)))


# A kept photo is compared with each of its copies: what a file says is read once while its content stays.
@lru_cache(maxsize=256)
def _fields_of(path: str, sha256: str) -> Fields:
    data = _data_of(path, sha256)
    return read_fields(data) if data else Fields(is_unreadable=True)


@lru_cache(maxsize=256)
def _encoding_of(path: str, sha256: str) -> Encoding | None:
    return read_encoding(_data_of(path, sha256))


@lru_cache(maxsize=2)
def _data_of(path: str, sha256: str) -> bytes:
    """Read a photo, or the one that is kept, once for its fields and its encoding; empty if it cannot be read."""
    found = read_file(path)
    return b"" if isinstance(found, FailedFile) else found[1]


def words(metadata: Metadata) -> set[str]:
    """Return the keywords."""
    return set(filter(None, metadata.keywords.split("\n")))


def _is_same_place(copy: Metadata, kept: Metadata) -> bool:
    if copy.latitude is None or copy.longitude is None:
        return True
    if kept.latitude is None or kept.longitude is None:
        return False
    return max(abs(copy.latitude - kept.latitude), abs(copy.longitude - kept.longitude)) <= _SAME_PLACE_DEGREES


def some(names: Sequence[str]) -> str:
    """Return ``"a, b, c, d and 3 more"``."""
    further = len(names) - _MOST_NAMES
    return joined(names if further <= 0 else [*names[:_MOST_NAMES], f"{further} more"])


def joined(names: Sequence[str]) -> str:
    """Return ``"a, b and c"``."""
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))


def picture_loss(photo: Photo, kept: Photo, tier: str) -> tuple[str, str]:
    """Return which kinds of data ``kept`` cannot hold, such as a colour profile, and why the photo stays.

    Both are empty if nothing is lost. Copies of the same bytes or pixels lose nothing: equal pixels have one colour
    space, 8 bits and no more frames. The reason alone says that the files do not tell whether ``kept`` is as good.
    """
    if photo.sha256 == kept.sha256 or tier in (EXACT, SAME_PIXELS):
        return "", ""
    ours, theirs = _encoding_of(photo.path, photo.sha256), _encoding_of(kept.path, kept.sha256)
    lost, is_raw = "", kept.features.format == RAW
    if ours is not None and is_raw:
        lost = " and ".join(ours.extras)  # of a developed picture; the sensor data lacks nothing else
    elif ours is not None and theirs is not None:
        lost = theirs.lacks_kinds_of(ours)
    if lost:
        return lost, f"It has what the kept photo lacks: {lost}."
    if tier == SIMILAR or (is_raw and tier == EDITED):  # edited: from the sensor data, which shows more than a preview
        return "", ""
    if is_raw:
        return "", "It was compared with the preview in the RAW file that is kept, which may be smaller."
    is_unknown = ours is None or theirs is None
    return "", "How its file or the kept one stores the picture cannot be read." if is_unknown else ""
