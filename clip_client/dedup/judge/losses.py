"""Losses that a move would cause: metadata, and kinds of picture data, that a duplicate has and the kept photo lacks.

A duplicate stays where it is if its metadata would be lost. With ``--merge-metadata`` its date and the fields that
people write go into an XMP sidecar beside the kept photo, and the duplicate may move.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final

from clip_client._files import FailedFile
from clip_client.dedup.files.directories import why_read_only
from clip_client.dedup.files.file_types import SIDECAR, suffix_of
from clip_client.dedup.files.places import place_of
from clip_client.dedup.files.reading import open_file, read_file, sha256_of
from clip_client.dedup.formats.encoding import Encoding, read_encoding
from clip_client.dedup.judge.movable import CannotMove, is_name_too_long
from clip_client.dedup.metadata.facts import Facts, Position, Value, read_attributes, read_facts, read_sidecar_facts
from clip_client.dedup.metadata.merging import merged, sidecar_text
from clip_client.dedup.metadata.names import BY_PEOPLE, SAVED, rank
from clip_client.dedup.photo import Photo
from clip_client.dedup.store.journal import LONGEST_RUN
from clip_client.dedup.types import EDITED, EXACT, RAW, SAME_PIXELS, SIMILAR, Companion

_MOST_NAMES: Final = 4
"""Number of facts that a sentence names; the sentence only counts the others."""
_LARGEST_SIDECAR: Final = 2**20
"""Bytes."""
_FACTS_KEPT: Final = 4096
"""Photos whose facts stay in memory, 3 to 10 kB each: any frame of a cluster may be a copy of any other one."""
_LACKS: Final = "It has metadata that the kept photo lacks"


@dataclass(frozen=True, kw_only=True)
class SidecarToWrite:
    """A sidecar that must be beside the kept photo before a duplicate moves, and its content."""

    path: str
    """Absolute."""
    data: bytes
    is_ours: bool
    """True for a new sidecar; False for a sidecar that another program wrote earlier."""


class KeptMetadata:
    """The metadata of a kept photo and its sidecars, and the fields that copies add to it when they move."""

    def __init__(self, kept: Photo) -> None:
        self.kept = kept
        self._sidecars: dict[str, bytes] = {}
        """Absolute path -> content."""
        for companion in kept.companions:
            if companion.kind == SIDECAR and suffix_of(companion.path) == ".xmp":
                with suppress(OSError), open_file(companion.path) as file:
                    self._sidecars[os.path.abspath(companion.path)] = file.read(_LARGEST_SIDECAR + 1)
        self._beside = list(map(read_sidecar_facts, self._sidecars.values()))
        self._new = Facts()
        """Content of the new sidecar."""

    def check(self, copy: Photo, *, is_same_shot: bool, can_merge: bool) -> None:
        """Raise CannotMove if metadata of the copy would be lost with it. If ``can_merge``, a new sidecar can save it.

        If the copy is not proved to be the same shot, only the date and the fields that people write are compared. If
        the files have the same bytes, only their extended attributes are compared.
        """
        lost, attributes = self.lost(copy, is_same_shot=is_same_shot)
        if not (lost or attributes):
            return
        kept, new = self.kept, merged(self._new, _facts_of(copy), self._said)
        unsaved = _facts_of(copy).lost_in([*self._said, read_sidecar_facts(sidecar_text(new))]) if lost else {}
        known = {name for one in (*self._said, self._new) for name in one.said} if unsaved else set()
        differing = [name for name in lost if name in unsaved and name in SAVED and name in known]
        missing = [name for name in lost if name not in differing]
        if attributes or not unsaved.keys().isdisjoint(missing):
            raise CannotMove(f"{_LACKS}: {_some(sorted({*missing, *attributes}, key=rank))}.")
        if differing:
            raise CannotMove(f"Its {_joined(differing)} differs from that of the kept photo, which can have only one.")
        if copy.in_library is not None:  # it does not move, so undo could not remove the sidecar
            raise CannotMove(f"{_LACKS}: {_joined(missing)}.")
        if not can_merge:
            raise CannotMove(f"{_LACKS}, which --merge-metadata can save: {_some(missing)}.")
        path = sidecar_path(kept.path)
        folder = os.path.dirname(path)
        if self._sidecars or os.path.lexists(path):
            raise CannotMove("The kept photo already has a sidecar, and sidecars of other programs are never changed.")
        if kept.is_reference or kept.in_library is not None or place_of(folder):
            raise CannotMove(f"{_LACKS}, and nothing is written to the kept photo's folder.")
        if is_name_too_long(draft_of(path, LONGEST_RUN)):  # the draft has a longer name than the sidecar
            raise CannotMove("No sidecar can be written beside the kept photo, whose name is too long for one.")
        if problem := why_read_only(folder):
            where = f"its {problem}: {folder}; make it writable"
            raise CannotMove(f"No sidecar can be written beside the kept photo: {where}.")

    def lost(self, copy: Photo, *, is_same_shot: bool) -> tuple[list[str], list[str]]:
        """Name the fields and attributes of ``copy`` that the kept photo and its sidecars lack, the main ones first.

        Housekeeping does not count. Raises CannotMove if the metadata of the copy cannot be read.
        """
        fields: Iterable[str] = ()
        if copy.sha256 != self.kept.sha256:
            if _facts_of(copy).is_unreadable:
                raise CannotMove("Its metadata cannot be read, so it cannot be compared with that of the kept photo.")
            fields = _facts_of(copy).lost_in(self._said)
        attributes: Iterable[str] = read_attributes(copy.path).lost_in([read_attributes(self.kept.path)])
        wanted = [[name for name in names if is_same_shot or name in BY_PEOPLE] for names in (fields, attributes)]
        return sorted(wanted[0], key=rank), sorted(wanted[1], key=rank)

    @property
    def _said(self) -> list[Facts]:
        """The facts of the photo and of its sidecars; the photo is read only for a copy with other bytes."""
        return [_facts_of(self.kept), *self._beside]

    def add(self, copy: Photo) -> None:
        """Add the fields that only the copy has to the new sidecar, because the copy moves."""
        if copy.sha256 != self.kept.sha256:
            self._new = merged(self._new, _facts_of(copy), self._said)

    def sidecars_for(self, copy: Photo) -> tuple[SidecarToWrite, ...]:
        """Return the sidecars that must exist before the copy moves; call it after all copies are added."""
        if copy.sha256 == self.kept.sha256:
            return ()
        facts, (photo, *_) = _facts_of(copy), self._said
        lost = facts.lost_in(self._said)
        if not self._new.said.keys().isdisjoint(lost):
            return (SidecarToWrite(path=sidecar_path(self.kept.path), data=sidecar_text(self._new), is_ours=True),)
        if lost == facts.lost_in([photo]):
            return ()
        return tuple(SidecarToWrite(path=path, data=data, is_ours=False) for path, data in self._sidecars.items())


def sidecar_path(photo: str) -> str:
    """Return the path for a sidecar of ``photo``: the whole name and ``.xmp``; other files may share the stem."""
    return f"{os.path.abspath(photo)}.xmp"


def draft_of(path: str, run: str) -> str:
    """Return the path at which a run writes a sidecar before it renames it to ``path``."""
    return f"{path}.{run}.part"


def lost_since(moved: str, kept: str, sidecars: Iterable[str], *, is_same_shot: bool) -> str:
    """Name the metadata of a moved photo that ``kept`` and ``sidecars`` now lack; empty if none. Raises CannotMove."""
    beside = tuple(Companion(path=path, kind=SIDECAR) for path in sidecars)
    before, now = (Photo(path=path, sha256=sha256_of(path), size_bytes=0) for path in (moved, kept))
    lost, attributes = KeptMetadata(replace(now, companions=beside)).lost(before, is_same_shot=is_same_shot)
    return _some(sorted({*lost, *attributes}, key=rank)) if lost or attributes else ""


def picture_loss(photo: Photo, kept: Photo, tier: str) -> tuple[str, str]:
    """Return (the kinds of picture data that ``kept`` lacks, such as a colour profile; why ``photo`` therefore stays).

    Both are empty if nothing is lost. Copies of the same bytes or pixels lose nothing: equal pixels have one colour
    space, 8 bits and no more frames. A reason without kinds means that the files do not tell whether ``kept`` is as
    good.
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
        return lost, f"It has what the kept photo is not known to have: {lost}."
    if tier == SIMILAR or (is_raw and tier == EDITED):  # edited: from the sensor data, which shows more than a preview
        return "", ""
    if is_raw:
        return "", "It was compared with the preview in the RAW file that is kept, which may be smaller."
    is_unknown = ours is None or theirs is None
    return "", "How its file or the kept one stores the picture cannot be read." if is_unknown else ""


# Cached by content, because a kept photo is compared with each of its copies.


def _facts_of(photo: Photo) -> Facts:
    facts, shown = _facts_in(photo.path, photo.sha256), photo.metadata
    if photo.features.format != RAW:
        return facts
    # If a RAW file is not a TIFF file, only its preview says when and where it was taken.
    said: dict[str, set[Value]] = dict(facts.said)
    if shown.taken:
        said["date"] = {*said.get("date", ()), shown.taken}
    if shown.latitude is not None and shown.longitude is not None:
        said["GPS position"] = {Position(shown.latitude, shown.longitude)}
    return replace(facts, said=said)


@lru_cache(maxsize=_FACTS_KEPT)
def _facts_in(path: str, sha256: str) -> Facts:
    data = _data_of(path, sha256)
    return read_facts(data) if data else Facts(is_unreadable=True)


@lru_cache(maxsize=256)
def _encoding_of(path: str, sha256: str) -> Encoding | None:
    return read_encoding(_data_of(path, sha256))


@lru_cache(maxsize=2)
def _data_of(path: str, sha256: str) -> bytes:
    """Return the bytes of a photo, read once for its fields and its encoding; empty if it cannot be read."""
    found = read_file(path)
    return b"" if isinstance(found, FailedFile) else found[1]


def _some(names: Sequence[str]) -> str:
    """Return ``"a, b, c, d and 3 more"``."""
    further = len(names) - _MOST_NAMES
    return _joined(names if further <= 0 else [*names[:_MOST_NAMES], f"{further} more"])


def _joined(names: Sequence[str]) -> str:
    """Return ``"a, b and c"``."""
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))
