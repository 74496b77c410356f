"""Results of a search: the pictures nearest to a query, each listed once, with its files, and a page of them."""

from __future__ import annotations

import base64
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import IO, TYPE_CHECKING, Any, Final

import numpy as np

from clip_client.dedup.files.directories import DirectorySet
from clip_client.dedup.reporting.previews import Picture, fit
from clip_client.dedup.text import counted
from clip_client.search.filters import Filter, is_below, taken_text
from preprocess_ensemble.cores import usable_cores

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from clip_client._files import FailedFile
    from clip_client.dedup.store.store import Store
    from clip_client.search.photo_index import Hit, PhotoIndex

NOTHING: Final = DirectorySet(())
_SIDE: Final = 320
"""Longest side of a 4:3 picture on the page, in pixels: about 15 kB of JPEG."""
_UNKNOWN: Final = (4, 3)
"""Shape of a photo of unknown size."""


@dataclass(frozen=True, kw_only=True)
class FoundPicture:
    """One picture, and its files."""

    path: str
    """The best copy of the picture if that fits the filter; else the nearest of its files that fit."""
    score: float
    """Cosine similarity to the query."""
    copies: tuple[str, ...] = ()
    """Other unchanged files that a search for duplicates proved to show the same."""
    content: str = ""
    """SHA-256 in hexadecimal; empty if unknown."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """The known columns of :data:`~clip_client.search.filters.FACTS`."""

    @property
    def taken(self) -> str:
        """Time of capture, ``"2019-05-03 10:11:12"``; empty if unknown."""
        return taken_text(self.facts.get("taken_ms"))

    def to_mapping(self) -> dict[str, Any]:
        """Return the picture as JSON holds it."""
        names = ("width", "height", "format", "camera", "latitude", "longitude")
        facts = {name: self.facts.get(name) or None for name in names}
        return {
            "path": self.path,
            "score": round(self.score, 6),
            "taken": self.taken.replace(" ", "T") or None,
            **facts,
            "sha256": self.content or None,
            "copies": list(self.copies),
        }


@dataclass(frozen=True, kw_only=True)
class FoundPictures:
    """The result of one search."""

    pictures: tuple[FoundPicture, ...]
    """Found pictures, the best first."""
    compared: int
    """Number of rows in the index that fit the filters; see :attr:`compared_in_words`."""
    by_content: bool = False
    """True if files with the same bytes have one row."""
    gone: int = 0
    """Number of pictures nearer than the last shown picture whose files are missing or have changed."""

    @property
    def compared_in_words(self) -> str:
        """Text such as ``"148 different photos"``: files with the same bytes count once, unlike in ``dedup``."""
        return counted(self.compared, "different photo" if self.by_content else "photo")


@dataclass(frozen=True, kw_only=True)
class Place:
    """A place to search: an index, and the data about its files."""

    index: PhotoIndex
    store: Store | None = None
    """Store whose contents are the keys of the index; None if the keys are paths."""
    paths: Mapping[str, Sequence[str]] | None = None
    """Content -> its files, if only these files are shown."""
    inside: NDArray[np.bool_] | None = None
    """Mask of the rows of the index that are searched; None for all."""
    roots: Collection[str] = ()
    """Absolute paths of folders and files that limit the listed files; empty for no limit."""
    without: DirectorySet = NOTHING
    """Files that are left out, such as the photo that is searched for."""
    failed: Sequence[FailedFile] = ()
    """Files that could not be embedded."""
    skipped: Mapping[str, int] = field(default_factory=dict)
    """Kind -> number of files whose names are not those of photos."""

    def find(self, query: NDArray[np.float32], wanted: Filter | None = None, *, top: int = 20) -> FoundPictures:
        """Return the ``top`` pictures nearest to ``query``, (D,), among those that fit the filter.

        Proven copies are one picture, shown by a file in the folder of the filter. Raises QueryError, StoreError, and
        the errors of :meth:`PhotoIndex.nearest`.
        """
        wanted = wanted or Filter()
        rows = wanted.rows(self.index, self.store)
        if self.inside is not None:
            rows = self.inside if rows is None else rows & self.inside
        compared = len(self.index) if rows is None else int(np.count_nonzero(rows))
        count = 2 * top
        while True:
            ranked = list(self._pictures(self.index.nearest(query, count, among=rows), wanted))
            found = [picture for picture in ranked if picture is not None]
            if len(found) >= top or count >= compared:
                break
            count *= 4
        shown = found[:top]
        gone = ranked[: ranked.index(shown[-1]) if shown else None].count(None)
        by_content = self.store is not None
        return FoundPictures(pictures=tuple(shown), compared=compared, by_content=by_content, gone=gone)

    def _pictures(self, hits: Sequence[Hit], wanted: Filter) -> Iterator[FoundPicture | None]:
        """Yield the pictures of ``hits``, nearest first; None for a picture whose files are gone or have changed."""
        if self.store is None:
            for hit in hits:
                if not self.without.contains(hit.key):
                    yield FoundPicture(path=hit.key, score=hit.score, facts=hit.facts)
            return
        pictures = self.pictures_of([hit.key for hit in hits])
        groups: dict[str, list[Hit]] = {}
        for hit in hits:
            groups.setdefault(pictures[hit.key], []).append(hit)
        all_files = self.files_of(groups)
        of_all = (path for files in all_files.values() for paths in files.values() for path in paths)
        if self.roots:
            of_all = (path for path in of_all if is_below(path, self.roots))
        listed = {path for path in self.store.files.unchanged(of_all) if not self.without.contains(path)}
        for picture, some in groups.items():
            files = all_files[picture]
            # Prefer the best copy if it fits, because it may have more pixels than the nearest.
            fitting = (
                (hit, path)
                for hit in sorted(some, key=lambda hit: hit.key != picture)
                for path in (files[hit.key] if self.paths is None else _shortest_first(self.paths[hit.key]))
                if wanted.has_file(path) and os.path.abspath(path) in listed
            )
            of_picture = [path for paths in files.values() for path in paths]
            for hit, path in fitting:
                copies = [one for one in of_picture if one != os.path.abspath(path) and one in listed]
                yield FoundPicture(
                    path=path, score=some[0].score, copies=tuple(copies), content=hit.key, facts=hit.facts
                )
                break
            else:
                if not any(map(self.without.contains, of_picture)):
                    yield None

    def pictures_of(self, contents: Sequence[str]) -> dict[str, str]:
        """Return content -> the content that names its picture: the best of its proven copies, or itself."""
        assert self.store is not None, "vectors alone have no copies"
        return self.store.copies.pictures_of(contents, self.store.decisions.all())

    def files_of(self, pictures: Iterable[str]) -> dict[str, dict[str, list[str]]]:
        """Return picture -> its contents, the naming content first -> the paths at which their files were last seen."""
        assert self.store is not None, "vectors alone have no copies"
        copies = self.store.copies.copies_of(list(pictures), self.store.decisions.all())
        found = {picture: [picture, *copies.get(picture, ())] for picture in pictures}
        files = self.store.files.paths_of([content for contents in found.values() for content in contents])
        return {
            picture: {content: _shortest_first(files[content]) for content in contents}
            for picture, contents in found.items()
        }


def _shortest_first(paths: Iterable[str]) -> list[str]:
    """Sort files with the same bytes by length: the mark of a copy, such as "Copy of", makes its name longer."""
    return sorted(paths, key=lambda path: len(os.path.basename(path)))


def write_page(
    about: Mapping[str, Any],
    found: FoundPictures,
    file: IO[bytes],
    *,
    thumbnail: Callable[[str, int], bytes | None],
) -> None:
    """Write a page with the found pictures to ``file``, in UTF-8. ``about`` is the value of ``search --json``.

    ``thumbnail`` is that of :func:`~clip_client.dedup.reporting.html.write_page`.
    """
    from clip_client.dedup.reporting.html import report_environment

    with ThreadPoolExecutor(usable_cores()) as pool:
        drawn = list(pool.map(lambda picture: _drawn(picture, thumbnail), found.pictures))
    template = report_environment(picture.path for picture in found.pictures).get_template("search.html.j2")
    results = list(zip(found.pictures, drawn, strict=True))
    pieces = template.generate(about=about, compared=found.compared_in_words, results=results)
    file.writelines(piece.encode() for piece in pieces)


def _drawn(picture: FoundPicture, thumbnail: Callable[[str, int], bytes | None]) -> Picture | None:
    """Return the preview of a picture; None if its file cannot be opened."""
    size = picture.facts.get("width") or _UNKNOWN[0] * _SIDE, picture.facts.get("height") or _UNKNOWN[1] * _SIDE
    width, height = fit(*size, _SIDE)
    jpeg = thumbnail(picture.path, max(width, height))
    if jpeg is None:
        return None
    source = "data:image/jpeg;base64," + base64.b64encode(jpeg).decode("ascii")
    return Picture(source, width, height, is_wide=False)
