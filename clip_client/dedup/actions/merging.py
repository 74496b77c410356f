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
from clip_client.dedup.actions.quarantine import why_read_only
from clip_client.dedup.actions.sidecars import SidecarToWrite
from clip_client.dedup.files.apple_photos import is_inside_library
from clip_client.dedup.files.file_types import SIDECAR, suffix_of
from clip_client.dedup.files.metadata import read_sidecar
from clip_client.dedup.files.xmp import write_xmp

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from clip_client.dedup.photo import Photo
    from clip_client.dedup.types import Companion, Metadata

_LARGEST_SIDECAR: Final = 2**20
"""Bytes."""
_UNREADABLE: Final = "Its metadata cannot be read, so it cannot be compared with that of the kept photo."


class MetadataMerge:
    """Decides which duplicates must stay because of their metadata, and what the sidecars for the others contain."""

    def __init__(self, *, is_asked_for: bool) -> None:
        self._is_asked_for = is_asked_for
        self._kept: dict[str, _KeptPhoto] = {}
        """By path."""

    def why_it_stays(self, copy: Photo, kept: Photo, *, is_same_picture: bool = True) -> str:
        """Say why the copy must stay because of its metadata; empty if nothing is lost or a sidecar can save it.

        Of what is not proved to be the same picture, only the fields of Metadata are compared: a person looks at it.
        """
        if copy.sha256 == kept.sha256:
            others = loss_in_files(copy, kept, kept.metadata).others
            return f"It has metadata that the kept photo lacks: {some(others)}." if others else ""
        if copy.metadata.is_incomplete:
            return _UNREADABLE
        known = self._known(kept)
        lost = loss(copy.metadata, known.before)
        if is_same_picture:
            lost = loss_in_files(copy, kept, known.before, known.sidecars.values())
        if lost.is_unreadable:
            return _UNREADABLE
        if lost.others:
            return f"It has metadata that the kept photo lacks: {some([*lost.missing, *lost.others])}."
        if not lost:
            return ""
        if differing := loss(copy.metadata, known.merged).differing:
            return f"Its {joined(differing)} differs from that of the kept photo, which can have only one."
        if copy.in_library is not None:  # it does not move, so undo could not remove the sidecar
            return f"It has metadata that the kept photo lacks: {joined(lost.missing)}."
        if not self._is_asked_for:
            return (
                f"It has metadata that the kept photo lacks, which --merge-metadata can save: {joined(lost.missing)}."
            )
        return _why_no_sidecar(kept, known)

    def merge(self, copy: Photo, kept: Photo) -> None:
        """Add the fields of a copy that moves to what the kept photo's sidecar will contain."""
        if copy.sha256 != kept.sha256:
            known = self._known(kept)
            known.merged = _together(known.merged, copy.metadata)

    def _known(self, kept: Photo) -> _KeptPhoto:
        if kept.path not in self._kept:
            self._kept[kept.path] = _KeptPhoto(kept.metadata, kept.companions)
        return self._kept[kept.path]

    def sidecars_for(self, copy: Photo, kept: Photo) -> tuple[SidecarToWrite, ...]:
        """Return the sidecars that must exist before the copy moves; call it after all copies are merged."""
        known = self._kept.get(kept.path)
        if known is None or copy.sha256 == kept.sha256 or not loss(copy.metadata, kept.metadata):
            return ()
        if not loss(copy.metadata, known.before):
            return tuple(SidecarToWrite(path=path, data=data, is_ours=False) for path, data in known.sidecars.items())
        data = write_xmp(dict(_properties(known.merged, known.before)))
        return (SidecarToWrite(path=sidecar_path(kept.path), data=data, is_ours=True),)


class _KeptPhoto:
    """The metadata of a kept photo and its sidecars, before and after a merge."""

    def __init__(self, metadata: Metadata, companions: Sequence[Companion]) -> None:
        self.sidecars: dict[str, bytes] = {}
        """Absolute path -> content."""
        for companion in companions:
            if companion.kind == SIDECAR and suffix_of(companion.path) == ".xmp":
                with suppress(OSError), open(companion.path, "rb") as file:
                    data = file.read(_LARGEST_SIDECAR + 1)
                    self.sidecars[os.path.abspath(companion.path)] = data
                    metadata = _together(metadata, read_sidecar(data))
        self.before = metadata
        self.merged = metadata


def sidecar_path(photo: str) -> str:
    """Return the path for a sidecar of ``photo``: the whole name and ``.xmp``, as other files may share its stem."""
    return f"{os.path.abspath(photo)}.xmp"


def _why_no_sidecar(kept: Photo, known: _KeptPhoto) -> str:
    path = sidecar_path(kept.path)
    folder = os.path.dirname(path)
    if known.sidecars or os.path.lexists(path):
        return "The kept photo already has a sidecar, and sidecars of other programs are never changed."
    if kept.is_reference or kept.in_library is not None or is_inside_library(path):
        return "It has metadata that the kept photo lacks, and nothing is written to the kept photo's folder."
    problem = why_read_only(folder)
    return f"No sidecar can be written beside the kept photo: its {problem}: {folder}." if problem else ""


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
