"""Metadata that only a duplicate has, and the sidecar that saves some of it.

A duplicate stays where it is if its metadata would be lost. With ``--merge-metadata`` date, position, rating, keywords,
title and caption go into an XMP sidecar beside the kept photo, and the duplicate may move.
"""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from clip_client.dedup.actions.losses import joined, loss, loss_in_files, some, words
from clip_client.dedup.actions.quarantine import CannotMove, why_read_only
from clip_client.dedup.actions.sidecars import SidecarToWrite
from clip_client.dedup.files.apple_photos import is_inside_library
from clip_client.dedup.files.file_types import SIDECAR, suffix_of
from clip_client.dedup.files.metadata import read_sidecar
from clip_client.dedup.files.xmp import write_xmp

if TYPE_CHECKING:
    from collections.abc import Iterable

    from clip_client.dedup.photo import Photo
    from clip_client.dedup.types import Metadata

_LARGEST_SIDECAR: Final = 2**20
"""Bytes."""
_UNREADABLE: Final = "Its metadata cannot be read, so it cannot be compared with that of the kept photo."
_LACKS: Final = "It has metadata that the kept photo lacks"


class KeptMetadata:
    """The metadata of a kept photo and its sidecars, and what copies that move add to it."""

    def __init__(self, kept: Photo) -> None:
        self.kept = kept
        self._sidecars: dict[str, bytes] = {}
        """Absolute path -> content."""
        metadata = kept.metadata
        for companion in kept.companions:
            if companion.kind == SIDECAR and suffix_of(companion.path) == ".xmp":
                with suppress(OSError), open(companion.path, "rb") as file:
                    data = file.read(_LARGEST_SIDECAR + 1)
                    self._sidecars[os.path.abspath(companion.path)] = data
                    metadata = _together(metadata, read_sidecar(data))
        self._before = self._merged = metadata

    def check(self, copy: Photo, *, is_same_picture: bool, can_merge: bool) -> None:
        """Raise CannotMove if metadata of the copy would be lost with it. If ``can_merge``, a new sidecar can save it.

        If the copy is not proved to be the same picture, a person looks at it, and only the fields of
        :class:`~clip_client.dedup.types.Metadata` are compared.
        """
        kept, metadata = self.kept, copy.metadata
        if copy.sha256 != kept.sha256 and metadata.is_incomplete:
            raise CannotMove(_UNREADABLE)
        lost = loss(metadata, self._before)
        if is_same_picture or copy.sha256 == kept.sha256:
            try:
                lost = loss_in_files(copy, kept, self._before, self._sidecars.values())
            except ValueError:
                raise CannotMove(_UNREADABLE) from None
        if lost.others:
            raise CannotMove(f"{_LACKS}: {some([*lost.missing, *lost.others])}.")
        if not lost:
            return
        if differing := loss(metadata, self._merged).differing:
            raise CannotMove(f"Its {joined(differing)} differs from that of the kept photo, which can have only one.")
        if copy.in_library is not None:  # it does not move, so undo could not remove the sidecar
            raise CannotMove(f"{_LACKS}: {joined(lost.missing)}.")
        if not can_merge:
            raise CannotMove(f"{_LACKS}, which --merge-metadata can save: {joined(lost.missing)}.")
        path = sidecar_path(kept.path)
        folder = os.path.dirname(path)
        if self._sidecars or os.path.lexists(path):
            raise CannotMove("The kept photo already has a sidecar, and sidecars of other programs are never changed.")
        if kept.is_reference or kept.in_library is not None or is_inside_library(path):
            raise CannotMove(f"{_LACKS}, and nothing is written to the kept photo's folder.")
        if problem := why_read_only(folder):
            raise CannotMove(f"No sidecar can be written beside the kept photo: its {problem}: {folder}.")

    def add(self, copy: Photo) -> None:
        """Add the fields of a copy that moves to what the kept photo's sidecar will contain."""
        if copy.sha256 != self.kept.sha256:
            self._merged = _together(self._merged, copy.metadata)

    def sidecars_for(self, copy: Photo) -> tuple[SidecarToWrite, ...]:
        """Return the sidecars that must exist before the copy moves; call it after all copies are added."""
        if copy.sha256 == self.kept.sha256 or not loss(copy.metadata, self.kept.metadata):
            return ()
        if not loss(copy.metadata, self._before):
            return tuple(SidecarToWrite(path=path, data=data, is_ours=False) for path, data in self._sidecars.items())
        data = write_xmp(dict(_properties(self._merged, self._before)))
        return (SidecarToWrite(path=sidecar_path(self.kept.path), data=data, is_ours=True),)


def sidecar_path(photo: str) -> str:
    """Return the path for a sidecar of ``photo``: the whole name and ``.xmp``, as other files may share its stem."""
    return f"{os.path.abspath(photo)}.xmp"


def _together(first: Metadata, second: Metadata) -> Metadata:
    """Fill the empty fields of ``first`` from ``second``."""
    placed = second if first.latitude is None else first
    return replace(
        first,
        taken=second.taken if second.taken.startswith(first.taken) else first.taken,
        latitude=placed.latitude,
        longitude=placed.longitude,
        rating=first.rating or second.rating,
        keywords="\n".join(sorted(words(first) | words(second))),
        title=first.title or second.title,
        caption=first.caption or second.caption,
    )


def _properties(merged: Metadata, known: Metadata) -> Iterable[tuple[str, str | list[str]]]:
    """Yield the fields that ``merged`` adds to ``known``; all keywords, as a sidecar's list replaces the photo's."""
    if merged.taken != known.taken:
        yield "exif:DateTimeOriginal", merged.taken
        yield "photoshop:DateCreated", merged.taken
    if merged.latitude is not None and merged.longitude is not None and known.latitude is None:
        yield "exif:GPSLatitude", _as_xmp(merged.latitude, "NS")
        yield "exif:GPSLongitude", _as_xmp(merged.longitude, "EW")
        yield "exif:GPSVersionID", "2.3.0.0"
    if merged.rating != known.rating:
        yield "xmp:Rating", str(merged.rating)
    if merged.keywords != known.keywords:
        yield "dc:subject", merged.keywords.split("\n")
    if merged.title != known.title:
        yield "dc:title", merged.title
    if merged.caption != known.caption:
        yield "dc:description", merged.caption


def _as_xmp(degrees: float, directions: str) -> str:
    whole, rest = divmod(abs(degrees), 1)
    return f"{int(whole)},{rest * 60:.6f}{directions[degrees < 0]}"
