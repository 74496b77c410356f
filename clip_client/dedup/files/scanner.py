"""Finds the photos below the paths that the user names. No photo is opened, because a FIFO could block."""

from __future__ import annotations

import heapq
import mimetypes
import os
import re
import stat
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

from clip_client._files import FailedFile
from clip_client.dedup.files.apple_photos import is_library, read_library
from clip_client.dedup.files.companions import FolderNames
from clip_client.dedup.files.directories import FileIdentity, identity_of
from clip_client.dedup.files.file_types import OTHER, RAW_SUFFIXES, companion_kind, suffix_of
from clip_client.dedup.files.places import named_place
from clip_client.dedup.files.reading import is_only_in_cloud, open_file
from clip_client.dedup.text import counted, why_unreadable
from clip_client.dedup.types import PREVIEW_NAME, PREVIEWS_MARK, QUARANTINE_NAME, LibraryPhoto, PhotoFile

_KINDS: Final = {"p": "a FIFO", "s": "a socket", "c": "a character device", "b": "a block device"}

_BY_ITSELF, _BY_NAMED_LINK, _BY_FOUND_LINK = range(3)
"""Ways to a folder in the order of walking, so that a file is listed under its own name rather than by a link."""
_IN_CLOUD: Final = (
    "It is only in the cloud, and a search downloads nothing: make it available on this device, and search again."
)
_ENDING: Final = re.compile(r"\.\w{1,10}")
_MOST_OPENED: Final = 10_000
"""Each takes about a millisecond on a network share."""
_QUARANTINED: Final = "It is in the quarantine; bring it back with: clip-client undo."


@dataclass(frozen=True, kw_only=True)
class Scan:
    """Outcome of :func:`scan`; lists are in the order of their paths' bytes."""

    files: tuple[PhotoFile, ...]
    failed: tuple[FailedFile, ...]
    in_libraries: Mapping[str, LibraryPhoto] = field(default_factory=dict)
    """Path -> photo, for those of ``files`` that are in a library of Apple Photos."""
    links: Mapping[FileIdentity, str] = field(default_factory=dict)
    """File -> a symbolic link to it, which a move of the file would break."""
    only_by_link: frozenset[str] = frozenset()
    """Paths of photos that only a link leads to; their files lie outside the searched folders."""
    roots: tuple[str, ...] = ()
    """The paths that were named: nothing outside them may move."""
    skipped: Mapping[str, int] = field(default_factory=dict)
    """Kind -> number of files that are neither photos nor companions by their names, the most frequent first. A kind is
    an ending, and the format of an image whose ending does not say so."""

    @property
    def photos(self) -> tuple[str, ...]:
        return tuple(file.path for file in self.files)


def scan(
    paths: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
    *,
    include_hidden: bool = False,
    follow_links: bool = False,
    one_file_system: bool = False,
    raw: bool = False,
    on_progress: Callable[[int], None] | None = None,
) -> Scan:
    """Find the photos in ``paths``, which are files and folders; failures are returned.

    - Folders are searched with everything below them, including other file systems unless ``one_file_system``.
    - Libraries of Apple Photos are read by :func:`~clip_client.dedup.files.apple_photos.read_library`.
    - With ``raw``, a RAW file is a photo if no photo with its name is beside it.
    - Names that begin with a dot are skipped unless ``include_hidden`` is set or ``paths`` contains them.
    - The quarantine, even behind a link, and the previews of a page are always skipped.
    - Places that do not last (:mod:`~clip_client.dedup.files.places`) are searched only if ``paths`` contains them.
    - Links to files are followed. Links to folders are followed with ``follow_links``, or if ``paths`` contains them,
      but never back to a folder above the link.
    - A file with several names is listed under its name in Photos, else under a name without a link, else under the
      first name in order.

    ``on_progress`` is called after each folder with the number of files. Raises TypeError for an element of another
    type than a path.
    """
    if isinstance(paths, str | os.PathLike):  # a string is an iterable of paths too, and one may be "/"
        paths = [paths]
    walk = _Walk(include_hidden=include_hidden, follow_links=follow_links, one_file_system=one_file_system, raw=raw)
    roots: list[str] = []
    for path in paths:
        if not isinstance(path, str | os.PathLike):
            raise TypeError(f"expected the path of a file or folder, got {type(path).__name__}")
        roots.append(os.fsdecode(path))
        with walk.failing(roots[-1]):
            walk.start(roots[-1])
    walk.run(on_progress or (lambda found: None))
    return Scan(
        files=tuple(sorted((file for _, file in walk.names.values()), key=_path_bytes)),
        failed=tuple(sorted((*walk.failed.values(), *walk.failed_in_libraries), key=_path_bytes)),
        in_libraries=walk.in_libraries,
        links=walk.links,
        only_by_link=frozenset(file.path for is_by_link, file in walk.names.values() if is_by_link),
        roots=tuple(sorted(roots, key=os.fsencode)),
        skipped=dict(sorted(walk.skipped.items(), key=lambda item: (-item[1], item[0]))),
    )


def _path_bytes(found: PhotoFile | FailedFile) -> bytes:
    return os.fsencode(found.path)


@dataclass(kw_only=True)
class _Walk:
    include_hidden: bool
    follow_links: bool
    one_file_system: bool
    raw: bool
    names: dict[FileIdentity, tuple[bool, PhotoFile]] = field(default_factory=dict)
    """File -> (it was reached by a link, the file), the best name so far."""
    links: dict[FileIdentity, str] = field(default_factory=dict)
    in_libraries: dict[str, LibraryPhoto] = field(default_factory=dict)
    failed: dict[str, FailedFile] = field(default_factory=dict)
    failed_in_libraries: list[FailedFile] = field(default_factory=list)
    """Two photos of a library may have the same name."""
    skipped: Counter[str] = field(default_factory=Counter)
    known_endings: frozenset[str] = field(default_factory=lambda: frozenset(mimetypes.MimeTypes().types_map[True]))
    opened: int = 0
    waiting: list[tuple[int, bytes, int, str]] = field(default_factory=list)
    """A heap of folders to walk: way there, path, device of the start, place of the folder above."""
    named: set[FileIdentity] = field(default_factory=set)
    passed: dict[str, list[str]] = field(default_factory=dict)
    walked: set[FileIdentity] = field(default_factory=set)
    """Folders that were walked; none is walked twice, so the walk ends."""

    def start(self, path: str) -> None:
        status, is_link = os.stat(path), os.path.islink(path)
        if _is_quarantined(path):
            self._fail(path, _QUARANTINED)
        elif stat.S_ISDIR(status.st_mode):
            self.named.add(identity_of(path, status))
            self._walk_later(path, device=status.st_dev, reached=_BY_NAMED_LINK if is_link else _BY_ITSELF)
        else:
            if is_link:
                self._remember_link(path, status)
            self._take(path, status, is_by_link=is_link)

    def run(self, on_progress: Callable[[int], None]) -> None:
        while self.waiting:
            reached, path, device, above = heapq.heappop(self.waiting)
            folder = os.fsdecode(path)
            try:
                self._enter(folder, device, reached, above)
            except (OSError, ValueError) as error:
                message = f"{why_unreadable(error, 'folder')} Its photos are not compared."
                self.failed[folder] = FailedFile(path=folder, code="UNREADABLE", message=message, is_folder=True)
            on_progress(len(self.names))
        # List one folder of each kind that was not searched: there may be one beside every photo.
        for what, folders in self.passed.items():
            first, *others = sorted(folders, key=os.fsencode)
            more = f"; {counted(len(others), 'more such folder')} passed over" if others else ""
            self._fail(first, f"Files in {what} are searched only if you name their folder{more}.")

    def _walk_later(self, path: str, *, device: int, reached: int, above: str = "") -> None:
        heapq.heappush(self.waiting, (reached, os.fsencode(path), device, above))

    def _enter(self, folder: str, device: int, reached: int, above: str) -> None:
        identity = identity_of(folder, os.stat(folder))
        if identity in self.walked:
            return
        # The path can hide where a folder is only below a link.
        place = named_place(folder if reached == _BY_ITSELF else os.path.realpath(folder))
        if place is not None and not place.is_lasting and place.what != above and identity not in self.named:
            self.passed.setdefault(place.what, []).append(folder)
            return
        self.walked.add(identity)
        if is_library(folder):
            self._take_library(folder)
            return
        with os.scandir(folder) as listing:
            # A file in the quarantine must not become a copy of something again.
            shown = [entry for entry in listing if entry.name != QUARANTINE_NAME]
        if any(entry.name == PREVIEWS_MARK for entry in shown):
            shown = [entry for entry in shown if not PREVIEW_NAME.fullmatch(entry.name)]
        entries = [entry for entry in shown if self.include_hidden or not entry.name.startswith(".")]
        names = FolderNames(folder, [entry.name for entry in entries])
        photos = names.photos | names.lone_raws if self.raw else names.photos
        companions = {name for photo in photos for name, _ in names.of(photo) if companion_kind(name) != OTHER}
        here = "" if place is None else place.what
        for entry in entries:
            is_photo, is_skipped = entry.name in photos, entry.name not in companions
            with self.failing(entry.path):
                self._add_entry(entry, device, reached, here, is_photo=is_photo, is_skipped=is_skipped)

    def _add_entry(
        self, entry: os.DirEntry[str], device: int, reached: int, place: str, *, is_photo: bool, is_skipped: bool
    ) -> None:
        # Not entry.stat(), which has no inode on Windows.
        path, status, is_link = entry.path, os.stat(entry.path), entry.is_symlink()
        if is_link and _is_quarantined(path):
            self._fail(path, _QUARANTINED)
        elif stat.S_ISDIR(status.st_mode):
            if is_link and not self._is_link_to_follow(path):
                return
            if self.one_file_system and status.st_dev != device:
                self._fail(path, "It is on another file system, and --one-file-system says to stay on one.")
                return
            self._walk_later(path, device=device, reached=_BY_FOUND_LINK if is_link else reached, above=place)
        else:
            if is_link:
                self._remember_link(path, status)
            if is_photo or not stat.S_ISREG(status.st_mode):
                self._take(path, status, is_by_link=is_link or reached == _BY_FOUND_LINK)
            elif is_skipped and identity_of(path, status) not in self.names:
                self._skip(path, can_open=not is_only_in_cloud(status))

    def _remember_link(self, path: str, status: os.stat_result) -> None:
        target = identity_of(path, status)
        self.links[target] = min(path, self.links.get(target, path), key=os.fsencode)

    def _is_link_to_follow(self, path: str) -> bool:
        target, place = os.path.realpath(path), os.path.realpath(os.path.dirname(path))
        if place == target or place.startswith(target.rstrip(os.sep) + os.sep):
            self._fail(path, "The link leads back to a folder above it and is not followed.")
            return False
        if not self.follow_links:
            self._fail(path, "Links to folders are not followed.")
        return self.follow_links

    def _take(self, path: str, status: os.stat_result, *, is_by_link: bool) -> None:
        if not stat.S_ISREG(status.st_mode):
            kind = _KINDS.get(stat.filemode(status.st_mode)[0], "something else")
            self._fail(path, f"This is not a regular file but {kind}.")
        elif is_only_in_cloud(status):
            self._fail(path, _IN_CLOUD)
        else:
            name, identity = (is_by_link, PhotoFile.of(path, status)), identity_of(path, status)
            known = self.names.get(identity, name)
            if known[1].path not in self.in_libraries:
                self.names[identity] = min(name, known, key=lambda item: (item[0], _path_bytes(item[1])))

    def _take_library(self, library: str) -> None:
        photos, failed = read_library(library, include_hidden=self.include_hidden)
        self.failed_in_libraries.extend(failed)
        for photo in photos:
            with self.failing(photo.path):
                status = os.stat(photo.path)
                # The walk may have found a file that the library only refers to: it keeps the name in the library.
                self.names[identity_of(photo.path, status)] = (False, PhotoFile.of(photo.path, status))
                self.in_libraries[photo.path] = photo

    def _skip(self, path: str, *, can_open: bool) -> None:
        ending = suffix_of(os.path.basename(path))
        # The last dot of "letter to Dr. Who" does not begin an ending.
        kind = "no ending" if not ending else ending if _ENDING.fullmatch(ending) else "other endings"
        if can_open and ending not in self.known_endings | RAW_SUFFIXES and self.opened < _MOST_OPENED:
            self.opened += 1
            if image_format := _image_format(path):
                kind = f"{image_format} image with {'the ending ' if kind == ending else ''}{kind}"
        self.skipped[kind] += 1

    @contextmanager
    def failing(self, path: str) -> Iterator[None]:
        try:
            yield
        except (OSError, ValueError) as error:
            self._fail(path, why_unreadable(error))

    def _fail(self, path: str, message: str) -> None:
        self.failed[path] = FailedFile(path=path, code="UNREADABLE", message=message)


def _is_quarantined(path: str) -> bool:
    return any(QUARANTINE_NAME in one.split(os.sep) for one in (os.path.abspath(path), os.path.realpath(path)))


def _image_format(path: str) -> str:
    from preprocess_ensemble.imaging.formats import identify

    try:
        with open_file(path) as file:
            known = identify(file.read(512))
    except OSError:
        return ""
    # Only some installations read HEIC and JPEG XL.
    return known.name if known is not None and (known.readable or known.name in ("HEIC", "JPEG XL")) else ""
