"""Queries of words and photos that are added and subtracted, as in rclip.

::

    dog on the beach              one text
    horse + stripes - 2:grass     three texts, the last with twice the weight
    ./cat.jpg + at night          a photo and a text

A number and a colon before a text or photo set its weight, which is otherwise 1. The query is the sum of the unit
vectors of all terms, each times its weight.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from clip_client._errors import VectorsError
from clip_client._files import printable
from clip_client._model import ModelInfo, may_be_compared
from clip_client._results import EmbeddingBatch
from clip_client.dedup.files.file_types import PHOTO_SUFFIXES, RAW_SUFFIXES, suffix_of
from clip_client.search.photo_index import Hit, PhotoIndex
from preprocess_ensemble.errors import ReportedError

_WEIGHTED: Final = re.compile(r"(\d+(?:\.\d+)?|\.\d+):\s*(.*)", re.DOTALL)
_MOST_WEIGHT: Final = 1000.0
_NAMED_CHARACTERS: Final = 60
_PATH: Final = re.compile(r"(~|\.{0,2})/|\.{1,2}$|~$")
_SIGNS: Final = re.compile(r"(?:^|(?<=\s))([+-])(?=\s|$)")


class QueryError(ReportedError, ValueError):
    """The query cannot be understood or embedded; the message is one sentence that says why."""


class QueryEmbedder(Protocol):
    """The methods of :class:`clip_client.ClipClient` that a query needs."""

    async def model(self) -> ModelInfo:
        """Describe the model."""

    async def embed(self, source: Sequence[str | bytes]) -> EmbeddingBatch:
        """Embed photos: paths, or image files as bytes."""

    async def embed_text(self, texts: Sequence[str]) -> EmbeddingBatch:
        """Embed texts with the text tower of the same model."""


@dataclass(frozen=True, kw_only=True)
class Term:
    weight: float = 1.0
    text: str = ""
    photo: str | bytes = ""
    vector: NDArray[np.float32] | None = field(default=None, compare=False)
    """Unit vector (D,) of a photo in the index."""

    @property
    def name(self) -> str:
        if not self.text:
            return printable(self.photo) if isinstance(self.photo, str) else "the photo"
        return self.text if len(self.text) <= _NAMED_CHARACTERS else f"{self.text[:_NAMED_CHARACTERS]}..."


@dataclass(frozen=True, kw_only=True)
class QueryVector:
    vector: NDArray[np.float32]
    model_id: str
    vector_ids: tuple[str, ...] = ()
    truncated: tuple[str, ...] = ()

    def check(self, vector_id: str) -> None:
        """Raise VectorsError if the query must not be compared with photos of this id. An empty id passes."""
        for own in self.vector_ids:
            if vector_id and not may_be_compared(own, vector_id):
                raise VectorsError(
                    f"the photos have vectors of {vector_id}, which must not be compared with those of {own}; use the "
                    "same model and transfer"
                )


def terms_of(parts: Sequence[str | os.PathLike[str]], *, photos: bool = True) -> list[Term]:
    """Read texts, signs and, with ``photos``, paths of existing files; adjacent texts are one.

    A ``Path`` is always a photo. Raises QueryError, also for a path without a file.
    """

    def kind(part: str) -> str:
        if part in ("+", "-"):
            return "sign"
        name = _weighed(part)[1]
        if photos and is_missing(name):
            raise QueryError(f"there is no file {printable(name)}: check its path, or write words instead")
        return "photo" if photos and is_photo(name) else "text"

    terms: list[Term] = []
    sign = ""  # the sign of the next term
    for of, some in groupby(filter(None, map(_name, parts)), kind):
        if of == "sign":
            sign, *others = some
            if others:
                raise QueryError(f"two signs in a row in the query: write words or a photo before {others[0]}")
            continue
        for part in some if of == "photo" else [" ".join(some)]:
            terms.append(_term(part, sign, is_photo=of == "photo"))
            sign = ""
    if sign:
        raise QueryError(f"the query ends with {sign}: write words or a photo after it")
    if not terms:
        raise QueryError("the query is empty: write what the photos should show, such as: dog on the beach")
    return terms


def _name(part: str | os.PathLike[str]) -> str:
    return part.strip() if isinstance(part, str) else os.path.abspath(os.path.expanduser(part))


def _term(part: str, sign: str, *, is_photo: bool) -> Term:
    weight, name = _weighed(part)
    if not name or weight > _MOST_WEIGHT:
        raise QueryError(f"{part[:20]} is not a term: write a weight up to {_MOST_WEIGHT:g}, a colon, and words")
    signed = -weight if sign == "-" else weight
    return Term(weight=signed, photo=os.path.expanduser(name)) if is_photo else Term(weight=signed, text=name)


def terms_in(text: str) -> list[Term]:
    return terms_of([part for part in _SIGNS.split(text) if part.strip()], photos=False)


def is_photo(name: str) -> bool:
    """Tell whether a file has this path. A name without a separator and a dot is a word, even if a file has it."""
    path = os.path.expanduser(name)
    return ("." in path or os.sep in path) and os.path.isfile(path)


def is_missing(name: str) -> bool:
    """Tell whether a text begins like a path or has the ending of a photo, and no file has this path."""
    path = os.path.expanduser(name)
    is_path = _PATH.match(path) or suffix_of(path) in PHOTO_SUFFIXES | RAW_SUFFIXES
    return bool(is_path) and not os.path.isfile(path)


def _weighed(part: str) -> tuple[float, str]:
    found = _WEIGHTED.fullmatch(part.strip())
    return (float(found[1]), found[2]) if found else (1.0, part.strip())


async def query_vector(clip: QueryEmbedder, terms: Sequence[Term]) -> QueryVector:
    """Embed the terms of a query. Raises QueryError, and the errors of the client."""
    model = await clip.model()
    texts = [term for term in terms if term.text]
    photos = [term for term in terms if term.photo]
    batches: list[tuple[list[Term], EmbeddingBatch]] = []
    if texts:
        batches.append((texts, await clip.embed_text([term.text for term in texts])))
    if photos:
        batches.append((photos, await clip.embed([term.photo for term in photos])))
    for some, batch in batches:
        for place, error in batch.errors.items():
            raise QueryError(f"{some[place].name} cannot be searched for: {error.message}")
    weighted = [np.array([term.weight for term in some], np.float32) @ batch.vectors for some, batch in batches]
    weighted += [np.float32(term.weight) * term.vector for term in terms if term.vector is not None]
    total: NDArray[np.float32] = np.sum(weighted, axis=0)
    if not np.linalg.norm(total) > 1e-3 * sum(abs(term.weight) for term in terms):
        raise QueryError("the terms of the query cancel out: nothing is left to search for")
    return QueryVector(
        vector=total,
        model_id=model.id,
        vector_ids=tuple(batch.vector_id for _, batch in batches),
        truncated=tuple(texts[place].name for place in batches[0][1].truncated) if texts else (),
    )


async def search(clip: QueryEmbedder, index: PhotoIndex, *parts: str | os.PathLike[str], k: int = 10) -> list[Hit]:
    """Return the ``k`` photos of an index that are nearest to a query, the best first.

    ``parts`` are texts, paths of photos, and the signs ``"+"`` and ``"-"``, as :func:`terms_of` reads them. Raises the
    errors of :func:`terms_of`, :func:`query_vector` and :meth:`QueryVector.check`.
    """
    query = await query_vector(clip, terms_of(parts))
    query.check(index.vector_id)
    return index.nearest(query.vector, k)
