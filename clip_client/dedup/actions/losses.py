"""What a duplicate has that the kept photo lacks, so that moving it would lose something: metadata, and its picture.

A duplicate stays where it is if its metadata would be lost. With ``--merge-metadata`` date, position, rating, keywords,
title and caption go into an XMP sidecar beside the kept photo, and the duplicate may move.
"""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from clip_client.dedup.actions.quarantine import CannotMove, why_read_only
from clip_client.dedup.actions.sidecars import SidecarToWrite, sidecar_path, sidecar_with
from clip_client.dedup.files.apple_photos import is_inside_library
from clip_client.dedup.files.encoding import Encoding, read_encoding
from clip_client.dedup.files.field_names import BY_PEOPLE, DATES, rank
from clip_client.dedup.files.fields import Fields, read_attributes, read_fields, read_sidecar_fields
from clip_client.dedup.files.file_types import SIDECAR, suffix_of
from clip_client.dedup.files.metadata import read_sidecar
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
_LARGEST_SIDECAR: Final = 2**20
"""Bytes."""
_UNREADABLE: Final = "Its metadata cannot be read, so it cannot be compared with that of the kept photo."
_LACKS: Final = "It has metadata that the kept photo lacks"


def unsaid(copy: Metadata, kept: Metadata) -> list[str]:
    """Name the fields in which a copy says what ``kept`` does not say."""
    is_said = {
        "date": kept.taken.startswith(copy.taken),
        "GPS position": _is_same_place(copy, kept),
        "rating": copy.rating in (0, kept.rating),
        "keywords": _keywords(copy) <= _keywords(kept),
        "title": copy.title in ("", kept.title),
        "caption": copy.caption in ("", kept.caption),
    }
    return [name for name, says_it in is_said.items() if not says_it]


def merged(kept: Metadata, copy: Metadata) -> Metadata:
    """Fill what ``kept`` does not say from ``copy``. What is still unsaid differs, and a photo can have only one."""
    placed = copy if kept.latitude is None else kept
    return replace(
        kept,
        taken=copy.taken if copy.taken.startswith(kept.taken) else kept.taken,
        latitude=placed.latitude,
        longitude=placed.longitude,
        rating=kept.rating or copy.rating,
        keywords="\n".join(sorted(_keywords(kept) | _keywords(copy))),
        title=kept.title or copy.title,
        caption=kept.caption or copy.caption,
    )


class KeptMetadata:
    """The metadata of a kept photo and its sidecars, and what copies that move add to it."""

    def __init__(self, kept: Photo) -> None:
        self.kept = kept
        self._sidecars: dict[str, bytes] = {}
        """Absolute path -> content."""
        known = kept.metadata
        for companion in kept.companions:
            if companion.kind == SIDECAR and suffix_of(companion.path) == ".xmp":
                with suppress(OSError), open(companion.path, "rb") as file:
                    data = file.read(_LARGEST_SIDECAR + 1)
                    self._sidecars[os.path.abspath(companion.path)] = data
                    known = merged(known, read_sidecar(data))
        self._before = self._merged = known

    def check(self, copy: Photo, *, is_same_shot: bool, can_merge: bool) -> None:
        """Raise CannotMove if metadata of the copy would be lost with it. If ``can_merge``, a new sidecar can save it.

        If the copy is not proved to be the same shot, only the date and what people write are compared. Of files with
        the same bytes only the extended attributes can differ.
        """
        kept, metadata = self.kept, copy.metadata
        has_same_bytes = copy.sha256 == kept.sha256
        if not has_same_bytes and metadata.is_incomplete:
            raise CannotMove(_UNREADABLE)
        lost = [] if has_same_bytes else unsaid(metadata, self._before)
        differing = unsaid(metadata, merged(self._before, metadata)) if lost else []
        missing = [name for name in lost if name not in differing]
        others = self._others_lost(copy)
        if not (is_same_shot or has_same_bytes):
            others = [name for name in others if name in BY_PEOPLE]
        if others:
            raise CannotMove(f"{_LACKS}: {_some(list(dict.fromkeys([*missing, *others])))}.")
        if not lost:
            return
        if differing := unsaid(metadata, merged(self._merged, metadata)):
            raise CannotMove(f"Its {_joined(differing)} differs from that of the kept photo, which can have only one.")
        if copy.in_library is not None:  # it does not move, so undo could not remove the sidecar
            raise CannotMove(f"{_LACKS}: {_joined(missing)}.")
        if not can_merge:
            raise CannotMove(f"{_LACKS}, which --merge-metadata can save: {_joined(missing)}.")
        path = sidecar_path(kept.path)
        folder = os.path.dirname(path)
        if self._sidecars or os.path.lexists(path):
            raise CannotMove("The kept photo already has a sidecar, and sidecars of other programs are never changed.")
        if kept.is_reference or kept.in_library is not None or is_inside_library(path):
            raise CannotMove(f"{_LACKS}, and nothing is written to the kept photo's folder.")
        if problem := why_read_only(folder):
            raise CannotMove(f"No sidecar can be written beside the kept photo: its {problem}: {folder}.")

    def _others_lost(self, copy: Photo) -> list[str]:
        """Name the other fields that would be lost, the most important one first; housekeeping does not count.

        Raises CannotMove if the fields of the copy cannot be read.
        """
        if copy.sha256 != self.kept.sha256 and _fields_of(copy.path, copy.sha256).is_unreadable:
            raise CannotMove(_UNREADABLE)
        attributes = read_attributes(copy.path).lost_in([read_attributes(self.kept.path)])
        return sorted({*attributes, *self._fields_lost(copy, self._sidecars.values())}, key=rank)

    def _fields_lost(self, copy: Photo, sidecars: Iterable[bytes]) -> dict[str, set[Value]]:
        """Return what ``unsaid`` does not compare, and neither the kept photo nor the sidecars say: name -> values."""
        kept, metadata = self.kept, copy.metadata
        if copy.sha256 == kept.sha256:
            return {}
        # Of what Metadata looks for, it holds one date, title and caption, and not what stands in further blocks.
        compared: dict[str, set[Value]] = {name: {metadata.taken} for name in DATES}
        compared |= {name: {" ".join(getattr(metadata, name).split())} for name in ("title", "caption")}
        compared |= {"keywords": {*_keywords(metadata)}, "rating": {(float(metadata.rating),)}}
        compared["GPS position"] = set() if metadata.latitude is None else {None}
        theirs = [_fields_of(kept.path, kept.sha256), *map(read_sidecar_fields, sidecars)]
        lost = _fields_of(copy.path, copy.sha256).lost_in(theirs)
        return {name: left for name, values in lost.items() if (left := values - compared.get(name, set()))}

    def add(self, copy: Photo) -> None:
        """Add the fields of a copy that moves to what the kept photo's sidecar will contain."""
        if copy.sha256 != self.kept.sha256:
            self._merged = merged(self._merged, copy.metadata)

    def sidecars_for(self, copy: Photo) -> tuple[SidecarToWrite, ...]:
        """Return the sidecars that must exist before the copy moves; call it after all copies are added."""
        if copy.sha256 == self.kept.sha256:
            return ()
        if unsaid(copy.metadata, self._before):
            return (sidecar_with(self._merged, self._before, beside=self.kept.path),)
        there = self._sidecars
        saves_more = there and self._fields_lost(copy, ()) != self._fields_lost(copy, there.values())
        if saves_more or unsaid(copy.metadata, self.kept.metadata):
            return tuple(SidecarToWrite(path=path, data=data, is_ours=False) for path, data in there.items())
        return ()


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


# A file is read once while its content stays: a kept photo is compared with each of its copies.


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


def _keywords(metadata: Metadata) -> set[str]:
    return set(filter(None, metadata.keywords.split("\n")))


def _is_same_place(copy: Metadata, kept: Metadata) -> bool:
    if copy.latitude is None or copy.longitude is None:
        return True
    if kept.latitude is None or kept.longitude is None:
        return False
    return max(abs(copy.latitude - kept.latitude), abs(copy.longitude - kept.longitude)) <= _SAME_PLACE_DEGREES


def _some(names: Sequence[str]) -> str:
    """Return ``"a, b, c, d and 3 more"``."""
    further = len(names) - _MOST_NAMES
    return _joined(names if further <= 0 else [*names[:_MOST_NAMES], f"{further} more"])


def _joined(names: Sequence[str]) -> str:
    """Return ``"a, b and c"``."""
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))
