"""Folders that belong to another program or to the system: recycle bins, snapshots, libraries and caches.

Nothing in them moves. The originals in a library last: they are searched and kept like other photos. All else vanishes
by itself or can be made again. So it is searched only if a person names it, and never kept in place of another file.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from clip_client.dedup.files.directories import DirectorySet, why_read_only


class Place(NamedTuple):
    """A kind of folder."""

    what: str
    is_lasting: bool = False
    """Its files stay until a person deletes them."""


READ_ONLY: Final = "a folder that you cannot write to"
"""Name of a folder that is not a :class:`Place`, but may be in a snapshot of an unknown name."""


def _is_immich(folder: str) -> bool:
    """Tell whether Immich made a folder: by its marker file, or, before version 1.114, by the folders beside it."""
    above = os.path.dirname(folder)
    if any(os.path.lexists(os.path.join(one, ".immich")) for one in (folder, above)):
        return True
    beside = {name for name in _IMMICH if os.path.isdir(os.path.join(above, name))}
    return {"thumbs", "encoded-video", "profile"} <= beside and not beside.isdisjoint({"library", "upload"})


_IMMICH: Final = ("thumbs", "encoded-video", "profile", "library", "upload")

_TABLE: Final[tuple[tuple[str, Place, Callable[[str], bool] | None], ...]] = (
    # Names of folders as a regular expression, in upper or lower case; what they are; what else must be true of them.
    (r"#recycle|@recycle|\$recycle\.bin|recycler|\.recycle|\.trash[^/]*|\.local/share/trash|files_trashbin",
     Place("a recycle bin"), None),
    (r"#snapshot|\.snapshots?|~snapshot|@recently-snapshot|\.zfs/snapshot", Place("a snapshot"), None),
    (r"files_versions|\.stversions", Place("a folder of old versions"), None),
    (r"lost\+found", Place("lost+found"), None),
    (r"system volume information", Place("Windows' System Volume Information"), None),
    (r"@eadir", Place("Synology's thumbnails"), None),
    (r"\.@__thumb", Place("QNAP's thumbnails"), None),
    (r"\.thumbnails", Place("thumbnails"), None),
    (r"appdata_[^/]*", Place("Nextcloud's previews"), None),
    (r"[^/]*\.lrdata", Place("Lightroom's previews"), None),
    (r"thumbs|encoded-video|profile", Place("Immich's previews"), _is_immich),
    # Libraries: what is not among their originals was made from them.
    (r"[^/]*\.photoslibrary/(?!originals/|masters/)[^/]+", Place("the previews of Apple Photos"), None),
    (r"[^/]*\.(?:migrated)?photolibrary/(?!masters/|originals/|modified/)[^/]+", Place("iPhoto's previews"), None),
    (r"[^/]*\.(?:migrated)?aplibrary/(?!masters/)[^/]+", Place("Aperture's previews"), None),
    (r"[^/]*\.lrlibrary/(?!originals/)[^/]+/(?!originals/)[^/]+", Place("Lightroom's previews"), None),
    (r"[^/]*\.photoslibrary", Place("an Apple Photos library", is_lasting=True), None),
    (r"[^/]*\.(?:migrated)?photolibrary", Place("an iPhoto library", is_lasting=True), None),
    (r"[^/]*\.(?:migrated)?aplibrary", Place("an Aperture library", is_lasting=True), None),
    (r"[^/]*\.lrlibrary", Place("a Lightroom library", is_lasting=True), None),
    (r"library|upload", Place("Immich's library", is_lasting=True), _is_immich),
)  # fmt: skip
"""The first row that fits a folder, or one above it, counts."""
_ROWS: Final = tuple(
    (re.compile(f"(?<=/)(?:{names})(?=/)", re.IGNORECASE), place, is_one) for names, place, is_one in _TABLE
)


def place_of(folder: str) -> Place | None:
    """Return the place that a folder is or lies in; None for a folder of the user's own. Links do not hide a place."""
    return named_place(folder) or named_place(os.path.realpath(folder))


def named_place(folder: str) -> Place | None:
    """Return the same by the folder's path alone, which may lead through links."""
    path = os.path.abspath(folder)
    text = f"{path.replace(os.sep, '/')}/"
    for names, place, is_one in _ROWS:
        for found in names.finditer(text):
            if is_one is None or is_one(path[: found.end()]):
                return place
    return None


def why_not_kept(paths: Iterable[str], references: Iterable[str] = ()) -> dict[str, str]:
    """Return path -> where a photo is, for those in whose favour no other photo may move.

    They are in a place that does not last, or in a folder that cannot be written to, as in a snapshot. A person may
    name a read-only folder in ``references``: it lasts.
    """
    lasting = DirectorySet(references)

    @functools.cache
    def place_name(folder: str) -> str:
        place = place_of(folder)
        return place.what if place is not None and not place.is_lasting else ""

    is_read_only = functools.cache(why_read_only)
    found = {}
    for path in paths:
        folder = os.path.dirname(os.path.abspath(path))
        if what := place_name(folder):
            found[path] = what
        elif is_read_only(folder) and not lasting.contains(path):
            found[path] = READ_ONLY
    return found
