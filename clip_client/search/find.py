"""Finds photos for a query. ``search``, ``similar`` and the pages of ``review`` all call :func:`find`."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np

from clip_client.dedup.text import counted
from clip_client.search.filters import Wanted
from clip_client.search.photo_index import Hit
from clip_client.search.pictures import FoundPicture, FoundPictures
from clip_client.search.query import QueryVector
from clip_client.search.space import SearchSpace, is_below

_EVERYTHING: Final = Wanted()


def find(query: QueryVector, space: SearchSpace, wanted: Wanted = _EVERYTHING, *, top: int = 20) -> FoundPictures:
    """Return the ``top`` pictures that fit the filters and are nearest to a query; proven copies are one picture.

    Raises QueryError, StoreError, and the errors of :meth:`QueryVector.check` and :meth:`PhotoIndex.nearest`.
    """
    query.check(space.index.vector_id)
    rows, left_out = wanted.select(space)
    compared = len(space.index) if rows is None else int(np.count_nonzero(rows))
    noun = "photo" if space.store is None else "different file"
    count = 2 * top
    while True:
        ranked = _pictures(space.index.nearest(query.vector, count, among=rows), space, wanted)
        shown = [picture for picture in ranked if picture is not None][:top]
        if len(shown) == top or count >= compared:
            break
        count *= 4
    return FoundPictures(
        pictures=tuple(shown),
        compared=compared,
        compared_in_words=counted(compared, noun),
        left_out=tuple(one.in_words(noun) for one in left_out),
        gone=ranked[: ranked.index(shown[-1]) if shown else None].count(None),
        model_id=query.model_id,
        truncated=query.truncated,
    )


def _pictures(hits: Sequence[Hit], space: SearchSpace, wanted: Wanted) -> list[FoundPicture | None]:
    """Return the pictures of ``hits``, nearest first; None for a picture whose files are gone or have changed."""
    if space.store is None:
        seen = [hit for hit in hits if not space.without.contains(hit.key)]
        return [FoundPicture(path=hit.key, score=hit.score, facts=hit.facts) for hit in seen]
    copies, decisions = space.store.copies, space.store.decisions.all()
    picture_of = copies.pictures_of([hit.key for hit in hits], decisions)
    hits_of: dict[str, list[Hit]] = {}
    for hit in hits:
        hits_of.setdefault(picture_of[hit.key], []).append(hit)
    others_of = copies.copies_of(list(hits_of), decisions)
    contents_of = {picture: [picture, *others_of.get(picture, ())] for picture in hits_of}
    paths_of = space.store.files.paths_of([content for contents in contents_of.values() for content in contents])
    all_paths = (path for paths in paths_of.values() for path in paths if is_below(path, space.roots))
    listed = {path for path in space.store.files.unchanged(all_paths) if not space.without.contains(path)}
    found: list[FoundPicture | None] = []
    for picture, of_picture in hits_of.items():
        paths = [path for content in contents_of[picture] for path in _shortest_first(paths_of[content])]
        # Prefer the best copy if it fits, because it may have more pixels than the nearest.
        best_first = sorted(of_picture, key=lambda hit: hit.key != picture)
        fitting = [
            (hit, path)
            for hit in best_first
            for path in _shortest_first((space.paths or paths_of)[hit.key])
            if is_below(path, wanted.folders) and os.path.abspath(path) in listed
        ]
        if fitting:
            hit, path = fitting[0]
            others = [one for one in paths if one != os.path.abspath(path) and one in listed]
            found.append(
                FoundPicture(
                    path=path, score=of_picture[0].score, copies=tuple(others), content=hit.key, facts=hit.facts
                )
            )
        elif not any(map(space.without.contains, paths)):
            found.append(None)
    return found


def _shortest_first(paths: Iterable[str]) -> list[str]:
    """Sort files with the same bytes by length: the mark of a copy, such as "Copy of", makes its name longer."""
    return sorted(paths, key=lambda path: len(os.path.basename(path)))
