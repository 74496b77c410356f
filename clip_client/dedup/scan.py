"""From the paths that a person names to the photo files among them, and what could not be looked at.

Nothing is opened here, only looked at: a FIFO or a device would block whoever opens it.
"""

from __future__ import annotations

import heapq
import os
import stat
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

from clip_client.dedup.quarantine import PHOTOS_LIBRARY, QUARANTINE_NAME
from clip_client.dedup.report import FailedFile, why_unreadable

if TYPE_CHECKING:
    from collections.abc import Iterable

PHOTO_SUFFIXES: Final = frozenset(
    ".avif .bmp .gif .heic .heif .jfif .jp2 .jpe .jpeg .jpg .png .tif .tiff .webp".split(),
)
"""A file in a folder is taken for a photo by these endings, in any case; a file that is named itself always is.

HEIC is among them although not every server reads it: a photo that cannot be read shall be listed, not overlooked.
"""

_ORIGINALS: Final = frozenset({"originals", "Masters"})
"""Where a library of Apple Photos has the photos; the other folders hold smaller versions of them."""

_KINDS: Final = (
    (stat.S_ISFIFO, "a FIFO"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a character device"),
    (stat.S_ISBLK, "a block device"),
)


class PhotoFile(NamedTuple):
    """A file as it was when it was found."""

    path: str
    """Names that are not UTF-8 are kept with ``surrogateescape``, as :func:`os.fsdecode` does."""
    size_bytes: int
    mtime_ns: int


@dataclass(frozen=True, kw_only=True)
class Scan:
    """What :func:`scan` found."""

    files: tuple[PhotoFile, ...]
    """Regular files, each once however many names it has, in the order of their paths' bytes."""
    failed: tuple[FailedFile, ...]
    """What could not be looked at or is no regular file, in the same order."""

    @property
    def photos(self) -> tuple[str, ...]:
        """The paths of ``files``."""
        return tuple(file.path for file in self.files)


def scan(
    paths: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
    *,
    include_hidden: bool = False,
    follow_links: bool = False,
) -> Scan:
    """Walk ``paths``, files and folders, and collect the photos.

    Folders are walked with all below them. Names that begin with a dot are passed over unless ``include_hidden`` or
    they are named in ``paths``; the quarantine always is. Links to files are followed; links to folders only with
    ``follow_links`` or where they are named in ``paths``, and a link that leads back to a folder above it never is. Of
    several names of one file (hard links, links, overlapping ``paths``) one is kept: rather a name of its own than a
    link, then the first in order. Each thing that fails is listed with its reason; only what is no path at all raises
    TypeError.
    """
    if isinstance(paths, str | os.PathLike):  # its letters are paths, too, and one of them may be "/"
        paths = [paths]
    walk = _Walk(include_hidden=include_hidden, follow_links=follow_links)
    for path in paths:
        if not isinstance(path, str | os.PathLike):
            raise TypeError(f"expected the path of a file or folder, got {type(path).__name__}")
        walk.start(os.fsdecode(path))
    walk.run()
    return Scan(
        files=tuple(sorted((file for _, file in walk.names.values()), key=lambda file: os.fsencode(file.path))),
        failed=tuple(sorted(walk.failed.values(), key=lambda failure: os.fsencode(failure.path))),
    )


@dataclass(kw_only=True)
class _Walk:
    include_hidden: bool
    follow_links: bool
    names: dict[tuple[int, int], tuple[bool, PhotoFile]] = field(default_factory=dict)
    """(device, inode) of a file -> (is a link, the file), the best name so far."""
    failed: dict[str, FailedFile] = field(default_factory=dict)
    waiting: list[tuple[bool, bytes, str]] = field(default_factory=list)
    """A heap of folders to walk, links last: what has a name of its own is known by that."""
    walked: set[tuple[int, int]] = field(default_factory=set)
    """(device, inode) of each folder that was entered: none is entered twice, so the walk ends."""

    def start(self, path: str) -> None:
        """Take a path that a person named: a file whatever its name, a folder to be walked."""
        try:
            status = os.stat(path)
            is_link = os.path.islink(path)
        except (OSError, ValueError) as error:
            self._fail(path, why_unreadable(error))
            return
        if QUARANTINE_NAME in os.path.abspath(path).split(os.sep):
            self._fail(path, "It lies in the quarantine; bring it back with: clip-client undo.")
        elif stat.S_ISDIR(status.st_mode):
            self._walk_later(path, is_link=is_link)
        else:
            self._take(path, status, is_link=is_link)

    def run(self) -> None:
        """Walk the folders, and the folders in them."""
        while self.waiting:
            _is_link, _name, folder = heapq.heappop(self.waiting)
            self._enter(folder)

    def _walk_later(self, path: str, *, is_link: bool) -> None:
        heapq.heappush(self.waiting, (is_link, os.fsencode(path), path))

    def _enter(self, folder: str) -> None:
        """Look at each entry of one folder."""
        try:
            status = os.stat(folder)
            identity = (status.st_dev, status.st_ino)
            if identity in self.walked:
                return
            self.walked.add(identity)
            with os.scandir(folder) as listing:
                entries = [entry for entry in listing if self._is_shown(entry.name)]
            if folder.lower().rstrip(os.sep).endswith(PHOTOS_LIBRARY):
                entries = [entry for entry in entries if entry.name in _ORIGINALS]
        except OSError as error:
            self._fail(folder, why_unreadable(error))
            return
        for entry in entries:
            self._look_at(entry)

    def _is_shown(self, name: str) -> bool:
        # What was moved away as a copy must not come back as the copy of something.
        return name != QUARANTINE_NAME and (self.include_hidden or not name.startswith("."))

    def _look_at(self, entry: os.DirEntry[str]) -> None:
        try:
            # Not entry.stat(): on Windows it does not carry the inode.
            status = os.stat(entry.path)
            is_link = entry.is_symlink()
        except OSError as error:
            self._fail(entry.path, why_unreadable(error))
            return
        if stat.S_ISDIR(status.st_mode):
            if not is_link or self._is_link_to_follow(entry.path):
                self._walk_later(entry.path, is_link=is_link)
            return
        is_photo = os.path.splitext(entry.name)[1].lower() in PHOTO_SUFFIXES
        if is_photo or not stat.S_ISREG(status.st_mode):
            self._take(entry.path, status, is_link=is_link)

    def _is_link_to_follow(self, path: str) -> bool:
        target, place = os.path.realpath(path), os.path.realpath(os.path.dirname(path))
        if place == target or place.startswith(target.rstrip(os.sep) + os.sep):
            self._fail(path, "The link leads back to a folder above it and is not followed.")
            return False
        if not self.follow_links:
            self._fail(path, "Links to folders are not followed.")
        return self.follow_links

    def _take(self, path: str, status: os.stat_result, *, is_link: bool) -> None:
        if not stat.S_ISREG(status.st_mode):
            kind = next((name for matches, name in _KINDS if matches(status.st_mode)), "something else")
            self._fail(path, f"This is not a regular file but {kind}.")
            return
        name = (is_link, PhotoFile(path, status.st_size, status.st_mtime_ns))
        identity = (status.st_dev, status.st_ino)
        known = self.names.get(identity, name)
        self.names[identity] = min(name, known, key=lambda item: (item[0], os.fsencode(item[1].path)))

    def _fail(self, path: str, message: str) -> None:
        self.failed[path] = FailedFile(path=path, code="UNREADABLE", message=message)
