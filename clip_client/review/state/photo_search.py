"""The search by words on the pages."""

from __future__ import annotations

import os
from collections.abc import Mapping
from hashlib import sha256
from typing import Final

import numpy as np
from anyio import to_thread
from numpy.typing import NDArray

from clip_client.review.state.session import Session
from clip_client.search.filters import FILTERS, Wanted
from clip_client.search.find import find
from clip_client.search.pictures import FoundPictures
from clip_client.search.query import QueryEmbedder, QueryError, QueryVector, Term, query_vector, terms_in
from clip_client.search.space import SearchSpace
from clip_client.search.store_index import store_index

TOP: Final = 60
MOST_UPLOADED: Final = 64 * 2**20
"""Largest size of a photo that is dropped onto the page, as of every photo (``DecodeLimits.max_bytes``)."""
_KEPT_UPLOADS: Final = 8
FIELDS: Final = ("q", "photo", "like", *FILTERS)
"""Words with signs and weights, the name of an uploaded photo, the SHA-256 of a photo in the store, and the filters."""


class PhotoSearch:
    def __init__(self, session: Session, clip: QueryEmbedder) -> None:
        self._session = session
        self._roots = frozenset(map(os.path.abspath, session.roots))
        self._clip = clip
        self._uploads: dict[str, bytes] = {}
        self._inside: tuple[object, NDArray[np.bool_]] | None = None
        """(stamp of the index, mask of its rows that are below the paths of the review)."""

    def upload(self, data: bytes) -> str:
        name = sha256(data).hexdigest()[:32]
        self._uploads[name] = data
        if len(self._uploads) > _KEPT_UPLOADS:
            self._uploads.pop(next(iter(self._uploads)))
        return name

    async def find(self, form: Mapping[str, str]) -> FoundPictures | None:
        terms = terms_in(form["q"]) if form["q"] else []
        if form["photo"]:
            if form["photo"] not in self._uploads:
                raise QueryError("this photo is no longer known: drop it onto the page again")
            terms.append(Term(photo=self._uploads[form["photo"]]))
        if not (terms or form["like"]):
            return None
        wanted = Wanted.of({name: form[name] for name in FILTERS if form[name]})
        model = await self._clip.model()
        space = await to_thread.run_sync(self._space, model.vector_id)
        if form["like"]:
            vector = space.index.vector(form["like"])
            if vector is None:
                raise QueryError("this photo is not in the index: it could not be embedded")
            terms.append(Term(vector=vector))
        return await to_thread.run_sync(self._find, await query_vector(self._clip, terms), space, wanted)

    def _space(self, vector_id: str) -> SearchSpace:
        with self._session.lock:
            store = self._session.store
            index = store_index(store, vector_id)
            state = index.about.get("stamp")
            if self._inside is None or self._inside[0] != state:
                contents = set[str]().union(*(store.files.contents_below(root) for root in self._roots))
                self._inside = state, index.holding(contents)
            return SearchSpace(index=index, store=store, inside=self._inside[1], roots=self._roots)

    def _find(self, query: QueryVector, space: SearchSpace, wanted: Wanted) -> FoundPictures:
        with self._session.lock:
            return find(query, space, wanted, top=TOP)
