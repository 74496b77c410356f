"""What a search shows: the pictures nearest to a query, each once, with its files."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from clip_client.dedup.files.directories import DirectorySet
from clip_client.search.filters import Filter, taken_text
from clip_client.search.scores import MOST_RANKS, first_fall

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from clip_client.dedup.store.store import Store
    from clip_client.search.photo_index import Hit, PhotoIndex

_AT_ONCE: Final = 64
"""Pictures whose files are looked up together."""


@dataclass(frozen=True, kw_only=True)
class FoundPicture:
    """One picture, and where its files are."""

    path: str
    """The nearest of its files that fit, or the best of its copies if that fits, too."""
    score: float
    """Cosine similarity to the query."""
    copies: tuple[str, ...] = ()
    """The other files that a search for duplicates proved to show the same, and that are still there."""
    content: str = ""
    """SHA-256 in hexadecimal; empty if it is not known."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """The columns :data:`~clip_client.search.filters.FACTS`, as far as they are known."""

    @property
    def taken(self) -> str:
        """When it was taken, ``"2019-05-03 10:11:12"``; empty if it is unknown."""
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
    """The best first."""
    compared: int
    """Number of photos that fit the filters."""
    gone: int = 0
    """Pictures that are nearer than the last one shown, but whose files are no longer there."""
    fall: int | None = None
    """After how many of all results the scores fall off; None if they do so nowhere."""


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where to search: an index, and what is known of its files."""

    index: PhotoIndex
    store: Store | None = None
    """The store that the keys of the index are contents of; without one they are paths."""
    paths: Mapping[str, Sequence[str]] | None = None
    """Content -> its files, if only these count."""
    without: DirectorySet = field(default_factory=lambda: DirectorySet(()))
    """Files that are not listed, such as the photo that is searched for."""

    def rows(self, wanted: Filter) -> NDArray[np.bool_] | None:
        """Tell for each row of the index whether it counts; None if all do. Raises QueryError."""
        rows = wanted.rows(self.index, self.store)
        if self.paths is None:
            return rows
        inside = self.index.holding(self.paths)
        return inside if rows is None else rows & inside

    def find(
        self,
        query: NDArray[np.float32],
        rows: NDArray[np.bool_] | None = None,
        *,
        top: int = 20,
        strict: bool = False,
        in_folder: str = "",
    ) -> FoundPictures:
        """Return the ``top`` pictures nearest to ``query``, (D,), among the ``rows`` that count.

        Proven copies are one picture. With ``strict`` no picture is returned after the scores fall off, see
        :func:`~clip_client.search.scores.first_fall`. ``in_folder`` is that of the filter: a picture is shown by a file
        in it. Raises StoreError, and as :meth:`PhotoIndex.nearest`.
        """
        compared = len(self.index) if rows is None else int(np.count_nonzero(rows))
        wanted = max(top, MOST_RANKS + 1) if strict else top
        count = max(4 * wanted, MOST_RANKS + 1)
        while True:
            hits = self.index.nearest(query, count, among=rows)
            found: list[FoundPicture] = []
            gone = 0
            for picture in self._pictures(hits, in_folder):
                if picture is None:
                    gone += 1
                elif len(found) < wanted:
                    found.append(picture)
                if len(found) == wanted:
                    break
            if len(found) == wanted or count >= compared:
                break
            count *= 4
        fall = first_fall([picture.score for picture in found])
        shown = found[: top if fall is None or not strict else min(top, fall)]
        return FoundPictures(pictures=tuple(shown), compared=compared, gone=gone, fall=fall)

    def _pictures(self, hits: Sequence[Hit], in_folder: str) -> Iterator[FoundPicture | None]:
        """Yield the pictures of ``hits``, the nearest first; None for one whose files are gone."""
        if self.store is None:
            for hit, facts in zip(hits, self.index.facts_at([hit.row for hit in hits]), strict=True):
                if not self.without.contains(hit.key):
                    yield FoundPicture(path=hit.key, score=hit.score, facts=facts)
            return
        decisions = self.store.decisions.all()
        pictures = self.store.copies.pictures_of([hit.key for hit in hits], decisions)
        groups: dict[str, list[Hit]] = {}
        for hit in hits:
            groups.setdefault(pictures[hit.key], []).append(hit)
        waiting = iter(groups.items())
        while some := dict(islice(waiting, _AT_ONCE)):
            yield from self._with_files(self.store, some, in_folder)

    def _with_files(
        self, store: Store, groups: Mapping[str, list[Hit]], in_folder: str
    ) -> Iterator[FoundPicture | None]:
        copies = store.copies.copies_of(groups)
        contents = {
            picture: dict.fromkeys((*(hit.key for hit in hits), picture, *copies.get(picture, ())))
            for picture, hits in groups.items()
        }
        files = store.files.paths_of(list(dict.fromkeys(one for some in contents.values() for one in some)))
        below = os.path.join(os.path.abspath(os.path.expanduser(in_folder)), "") if in_folder else ""
        chosen = []
        for picture, hits in groups.items():
            # The best copy is shown, if it fits: it may have more pixels than the nearest.
            ordered = sorted(hits, key=lambda hit: hit.key != picture)
            fitting = (
                (hit, path)
                for hit in ordered
                for path in (files[hit.key] if self.paths is None else self.paths[hit.key])
                if os.path.abspath(path).startswith(below) and self._is_listed(path)
            )
            chosen.append((picture, hits, next(fitting, None)))
        rows = [found[0].row for _, _, found in chosen if found is not None]
        facts = iter(self.index.facts_at(rows))
        for picture, hits, found in chosen:
            of_picture = [one for content in contents[picture] for one in files[content]]
            if found is None:
                if not any(map(self.without.contains, of_picture)):
                    yield None
                continue
            hit, path = found
            others = filter(self._is_listed, of_picture)
            yield FoundPicture(
                path=path,
                score=hits[0].score,
                copies=tuple(one for one in others if one != os.path.abspath(path)),
                content=hit.key,
                facts=next(facts),
            )

    def _is_listed(self, path: str) -> bool:
        return os.path.isfile(path) and not self.without.contains(path)
