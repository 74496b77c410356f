"""A collection of Qdrant, for photos that are too many for one machine: filling it, and searching in it.

A photo is a point. Its payload has the facts that filters ask for, its files, the picture that it is a copy of, and the
id of its vector, so that vectors of different models never meet.
"""

from __future__ import annotations

import os
import re
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from clip_client._errors import VectorsError, require
from clip_client.search.filters import FACTS, Filter
from clip_client.search.pictures import FoundPicture, FoundPictures
from preprocess_ensemble.errors import ReportedError, first_line

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray

    from clip_client.search.pictures import Place

KEY_VARIABLE: Final = "QDRANT_API_KEY"
_ADDRESS: Final = re.compile(r"qdrant(s?)://(?:([^/:]+|\[[^]]+\])(?::(\d+))?)?(/.*)?/([\w.-]+)")
_AT_ONCE: Final = 500
"""Points of one request: 1 MB with 512 numbers each."""
_NAMESPACE: Final = uuid.UUID("6fb1b1a0-5a35-5a9c-8e5f-2a6f3a3c9d11")


class QdrantError(ReportedError):
    """Qdrant cannot be used; the message is one sentence that says why."""


@dataclass(frozen=True, kw_only=True)
class QdrantAddress:
    """``qdrant://HOST:PORT/COLLECTION``, ``qdrants://`` with TLS, or ``qdrant:///FOLDER/COLLECTION`` without a server.

    The last is the local mode of qdrant-client, in NumPy: for trying it out.
    """

    host: str
    port: int
    is_tls: bool
    folder: str
    collection: str

    @classmethod
    def of(cls, text: str) -> QdrantAddress:
        """Read an address. Raises QdrantError."""
        found = _ADDRESS.fullmatch(text)
        if found is None or bool(found[2]) == bool(found[4]):
            raise QdrantError(f"{text} is no address of a collection: write qdrant://HOST:6333/COLLECTION")
        return cls(
            host=found[2] or "",
            port=int(found[3] or 6333),
            is_tls=bool(found[1]),
            folder=found[4] or "",
            collection=found[5],
        )


class QdrantCollection:
    """An open collection; a context manager."""

    def __init__(self, address: QdrantAddress) -> None:
        """Connect. Raises ImportError without ``qdrant-client``; a server is first asked by the other methods."""
        require("qdrant_client", "clip-triton[qdrant]")
        import qdrant_client

        self._name = address.collection
        self._is_local = bool(address.folder)
        self._client = (
            qdrant_client.QdrantClient(path=address.folder)
            if address.folder
            else qdrant_client.QdrantClient(
                host=address.host,
                port=address.port,
                https=address.is_tls,
                api_key=os.environ.get(KEY_VARIABLE),
                check_compatibility=False,  # its thread would print a warning
            )
        )

    def __enter__(self) -> QdrantCollection:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def fill(self, place: Place, on_progress: Callable[[str, int, int | None], None]) -> int:
        """Write all photos of ``place`` into the collection, which is made if it does not exist; return their number.

        A photo that is there already is replaced. Raises VectorsError if the collection has vectors of another model,
        and QdrantError.
        """
        from qdrant_client import models

        index = place.index
        with _errors(self._name):
            if not self._client.collection_exists(self._name):
                size = models.VectorParams(size=index.dimension, distance=models.Distance.COSINE)
                self._client.create_collection(self._name, vectors_config=size)
            self._check(index.vector_id)
            done = 0
            for points in _points(place):
                self._client.upsert(self._name, points=points)
                done += len(points)
                on_progress("sending", done, len(index))
        return done

    def find(self, query: NDArray[np.float32], vector_id: str, wanted: Filter, *, top: int) -> FoundPictures:
        """Return the ``top`` pictures nearest to ``query``, (D,), that fit the filter; ``vector_id`` is the photos'.

        The search is exact. Raises QueryError, VectorsError if the vectors are of another model, and QdrantError.
        """
        from qdrant_client import models

        fits = _conditions(wanted)
        with _errors(self._name):
            self._check(vector_id)
            compared = self._client.count(self._name, count_filter=fits, exact=True).count
            count = 4 * top
            while True:
                found = self._client.query_points(
                    self._name,
                    query=(query / np.linalg.norm(query)).tolist(),
                    query_filter=fits,
                    limit=count,
                    search_params=None if self._is_local else models.SearchParams(exact=True),
                ).points
                pictures: dict[str, FoundPicture] = {}
                for point in found:
                    payload = point.payload or {}
                    pictures.setdefault(payload["picture"], _picture(payload, point.score, wanted.demands().folder))
                if len(pictures) >= top or len(found) < count:
                    return FoundPictures(pictures=tuple(pictures.values())[:top], compared=compared)
                count *= 4

    def _check(self, vector_id: str) -> None:
        points, _ = self._client.scroll(self._name, limit=1, with_payload=["vector_id"])
        held = (points[0].payload or {}).get("vector_id") if points else vector_id
        if held != vector_id:
            raise VectorsError(
                f"{self._name} holds vectors of {held}, which must not be compared with those of {vector_id}; use the "
                "same model and transfer, or another collection"
            )


class _errors:
    """Turns what qdrant-client raises into one sentence."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __enter__(self) -> None:
        return None

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        from httpx import HTTPError
        from qdrant_client.http.exceptions import ApiException

        if isinstance(error, ApiException | HTTPError | ValueError | KeyError) and not isinstance(error, ReportedError):
            raise QdrantError(f"Qdrant cannot do it for the collection {self._name}: {first_line(error)}") from error


def _points(place: Place) -> Iterator[Sequence[Any]]:
    """Yield the points of all photos, some at a time."""
    from qdrant_client import models

    index, store = place.index, place.store
    inside = None if place.paths is None else set(place.paths)
    for rows, keys, vectors in index.batches(_AT_ONCE):
        files = {key: [key] for key in keys} if store is None else store.files.paths_of(keys)
        pictures = dict(zip(keys, keys, strict=True)) if store is None else store.copies.pictures_of(keys)
        yield [
            models.PointStruct(
                id=str(uuid.uuid5(_NAMESPACE, os.fsencode(key).hex())),
                vector=vector.tolist(),
                payload=_payload(files[key], facts)
                | {"picture": pictures[key], "content": key if store else "", "vector_id": index.vector_id},
            )
            for key, vector, facts in zip(keys, vectors, index.facts_at(rows), strict=True)
            if files[key] and (inside is None or key in inside)
        ]


def _payload(files: Sequence[str], facts: dict[str, Any]) -> dict[str, Any]:
    folders = set()
    for path in files:
        folder = os.path.dirname(os.path.abspath(path))
        while folder not in folders:
            folders.add(folder)
            folder = os.path.dirname(folder)
    made: dict[str, Any] = {"files": list(files), "folders": sorted(folders), **facts}
    if facts.get("width"):
        made["pixels"] = facts["width"] * facts["height"]
    if facts.get("camera"):
        made["camera_name"] = facts["camera"].casefold()
    if facts.get("latitude") is not None:
        made["location"] = {"lat": facts["latitude"], "lon": facts["longitude"]}
    return made


def _conditions(wanted: Filter) -> Any:
    """Return the filter as Qdrant has it; None for one that demands nothing. Raises QueryError."""
    from qdrant_client import models

    known = wanted.demands()
    must: list[Any] = []
    if known.first_ms is not None or known.end_ms is not None:
        must.append(models.FieldCondition(key="taken_ms", range=models.Range(gte=known.first_ms, lt=known.end_ms)))
    if known.pixels is not None:
        must.append(models.FieldCondition(key="pixels", range=models.Range(gte=known.pixels)))
    if known.near is not None:
        centre = models.GeoPoint(lat=known.near.latitude, lon=known.near.longitude)
        circle = models.GeoRadius(center=centre, radius=1000 * known.near.km)
        must.append(models.FieldCondition(key="location", geo_radius=circle))
    if known.folder:
        must.append(models.FieldCondition(key="folders", match=models.MatchValue(value=known.folder)))
    if known.format:
        must.append(models.FieldCondition(key="format", match=models.MatchValue(value=known.format)))
    if known.camera:
        must.append(models.FieldCondition(key="camera_name", match=models.MatchText(text=known.camera)))
    return models.Filter(must=must) if must else None


def _picture(payload: dict[str, Any], score: float, folder: str) -> FoundPicture:
    first, *others = sorted(payload["files"], key=lambda path: not path.startswith(folder))
    facts = {name: payload.get(name) for name in FACTS}
    return FoundPicture(path=first, score=score, copies=tuple(others), content=payload["content"], facts=facts)
