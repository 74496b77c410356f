"""The search by words on the pages: its requests, and its results."""

from __future__ import annotations

import os
from collections import OrderedDict
from dataclasses import dataclass, field
from hashlib import sha256
from typing import TYPE_CHECKING, Final

import numpy as np
from anyio import to_thread

from clip_client._files import printable
from clip_client.dedup.types import is_random
from clip_client.search.filters import Filter
from clip_client.search.pictures import Place
from clip_client.search.query import QueryError, Term, query_vector, terms_in
from clip_client.search.store_index import store_index
from preprocess_ensemble.errors import ReportedError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from clip_client.review.state.session import Session
    from clip_client.search.photo_index import PhotoIndex
    from clip_client.search.pictures import FoundPicture, FoundPictures
    from clip_client.search.query import QueryEmbedder

TOP: Final = 60
"""Results on one page."""
MOST_UPLOADED: Final = 64 * 2**20
"""Largest size of a photo that is dropped onto the page, as of every photo (``DecodeLimits.max_bytes``)."""
_KEPT_UPLOADS: Final = 8


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """The values of a request; the names are those of the form's fields."""

    q: str = ""
    """Words, with signs and weights."""
    photo: str = ""
    """Name of an uploaded photo."""
    like: str = ""
    """SHA-256 of a photo in the store."""
    filter: Mapping[str, str] = field(default_factory=dict)
    """Arguments of :meth:`~clip_client.search.filters.Filter.of` that are not empty."""

    @property
    def is_empty(self) -> bool:
        """Whether there are neither words nor a photo to search for."""
        return not (self.q.strip() or self.photo or self.like)


@dataclass(frozen=True, kw_only=True)
class Results:
    """The values on a page of results."""

    pictures: Sequence[FoundPicture] = ()
    compared: str = ""
    """Number of photos that were compared, in words."""
    is_random: bool = False
    truncated: Sequence[str] = ()
    """Texts that the model has read only in part, because they are too long."""
    error: str = ""
    """One sentence that says why there are no results."""


class PhotoSearch:
    """Searches the photos of one review. All requests share it, in one event loop."""

    def __init__(self, session: Session, clip: QueryEmbedder) -> None:
        self._session = session
        self._roots = frozenset(map(os.path.abspath, session.roots))
        self._clip = clip
        self._uploads: OrderedDict[str, bytes] = OrderedDict()
        self._inside: tuple[object, NDArray[np.bool_]] | None = None
        """(stamp of the index, mask of its rows that are below the paths of the review)."""

    def upload(self, data: bytes) -> str:
        """Keep a photo to search for; return its name."""
        name = sha256(data).hexdigest()[:32]
        self._uploads[name] = data
        while len(self._uploads) > _KEPT_UPLOADS:
            self._uploads.popitem(last=False)
        return name

    async def find(self, wanted: Wanted) -> Results:
        """Search. Errors that a person can mend are returned in the result, not raised."""
        if wanted.is_empty:
            return Results()
        try:
            return await self._find(wanted)
        except ReportedError as error:
            return Results(error=str(error))

    async def _find(self, wanted: Wanted) -> Results:
        model = await self._clip.model()
        terms = terms_in(wanted.q) if wanted.q.strip() else []
        if wanted.photo:
            if wanted.photo not in self._uploads:
                raise QueryError("this photo is no longer known: drop it onto the page again")
            terms.append(Term(photo=self._uploads[wanted.photo]))
        query = await query_vector(self._clip, terms) if terms else None
        index = await to_thread.run_sync(self._index, model.vector_id)
        total = np.zeros(index.dimension, np.float32)
        if query is not None:
            query.check(index.vector_id)
            total += query.vector
        if wanted.like:
            vector = index.vector(wanted.like)
            if vector is None:
                raise QueryError("this photo is not in the index: it could not be embedded")
            total += vector
        found = await to_thread.run_sync(self._found, index, total, Filter.of(**wanted.filter))
        return Results(
            pictures=found.pictures,
            compared=found.compared_in_words,
            is_random=is_random(model.id),
            truncated=() if query is None else tuple(map(printable, query.truncated)),
        )

    def _index(self, vector_id: str) -> PhotoIndex:
        with self._session.lock:
            return store_index(self._session.store, vector_id)

    def _found(self, index: PhotoIndex, query: NDArray[np.float32], wanted: Filter) -> FoundPictures:
        with self._session.lock:
            store = self._session.store
            state = index.about.get("stamp")
            if self._inside is None or self._inside[0] != state:
                contents = set[str]().union(*(store.files.contents_below(root) for root in self._roots))
                self._inside = state, index.holding(contents)
            place = Place(index=index, store=store, inside=self._inside[1], roots=self._roots)
            return place.find(query, wanted, top=TOP)
