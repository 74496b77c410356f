"""A collection of Qdrant, for photos that are too many for one machine: filling it, and searching in it.

A photo is a point. Its payload has the facts that filters ask for, its files, the picture that it is a copy of, and the
id of its vector, so that vectors of different models never meet.
"""

from __future__ import annotations

import os
import re
import uuid
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from clip_client._errors import VectorsError, require
from clip_client.search.filters import FACTS, Filter
from clip_client.search.pictures import NOTHING, FoundPicture, FoundPictures, Place
from preprocess_ensemble.errors import ReportedError, first_line

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from clip_client.dedup.files.directories import DirectorySet

KEY_VARIABLE: Final = "QDRANT_API_KEY"
_ADDRESS: Final = re.compile(
    r"qdrant(?P<tls>s?)://(?:(?P<host>[^/:]+|\[[^]]+\])(?::(?P<port>\d+))?)?(?P<folder>/.*)?/(?P<name>[\w.-]+)"
)
_AT_ONCE: Final = 500
"""Points of one request: 1 MB with 512 numbers each."""
_NAMESPACE: Final = uuid.UUID("6fb1b1a0-5a35-5a9c-8e5f-2a6f3a3c9d11")


class QdrantError(ReportedError):
    """Qdrant cannot be used; the message is one sentence that says why."""


class QdrantCollection:
    """An open collection; a context manager.

    Its address is ``qdrant://HOST:PORT/COLLECTION``, ``qdrants://`` with TLS, or ``qdrant:///FOLDER/COLLECTION``
    without a server: the local mode of qdrant-client, in NumPy, for trying it out.
    """

    def __init__(self, address: str) -> None:
        """Connect. Raises ImportError without ``qdrant-client``, and QdrantError if the address is none."""
        require("qdrant_client", "clip-triton[qdrant]")
        import qdrant_client

        found = _ADDRESS.fullmatch(address)
        if found is None or bool(found["host"]) == bool(found["folder"]):
            raise QdrantError(f"{address} is no address of a collection: write qdrant://HOST:6333/COLLECTION")
        self._name = found["name"]
        self._is_local = bool(found["folder"])
        with _errors(self._name):
            self._client = (
                qdrant_client.QdrantClient(path=found["folder"])
                if self._is_local
                else qdrant_client.QdrantClient(
                    host=found["host"],
                    port=int(found["port"] or 6333),
                    https=bool(found["tls"]),
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

    def find(
        self,
        query: NDArray[np.float32],
        vector_id: str,
        wanted: Filter | None = None,
        *,
        top: int = 20,
        without: DirectorySet = NOTHING,
    ) -> FoundPictures:
        """Return the ``top`` pictures nearest to ``query``, (D,), that fit the filter, as :meth:`Place.find` does.

        ``vector_id`` is that of the photos. The search is exact. Raises VectorsError if the collection has vectors of
        another model, and QdrantError.
        """
        from qdrant_client import models

        wanted = wanted or Filter()
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
                groups: dict[str, list[Any]] = {}
                for point in found:
                    groups.setdefault((point.payload or {})["picture"], []).append(point)
                pictures = [one for group in groups.values() if (one := _picture(group, wanted, without))]
                if len(pictures) >= top or len(found) < count:
                    return FoundPictures(pictures=tuple(pictures[:top]), compared=compared)
                count *= 4

    def _check(self, vector_id: str) -> None:
        points, _ = self._client.scroll(self._name, limit=1, with_payload=["vector_id"])
        held = (points[0].payload or {}).get("vector_id") if points else vector_id
        if held != vector_id:
            raise VectorsError(
                f"{self._name} holds vectors of {held}, which must not be compared with those of {vector_id}; use the "
                "same model and transfer, or another collection"
            )


@contextmanager
def _errors(name: str) -> Iterator[None]:
    """Turn what qdrant-client raises into one sentence."""
    from httpx import HTTPError
    from qdrant_client.http.exceptions import ApiException

    try:
        yield
    except ReportedError:
        raise
    except (ApiException, HTTPError, ValueError, KeyError, RuntimeError) as error:
        raise QdrantError(f"Qdrant cannot do it for the collection {name}: {first_line(error)}") from error


def _points(place: Place) -> Iterator[Sequence[Any]]:
    """Yield the points of all photos, some at a time."""
    from qdrant_client import models

    inside = None if place.paths is None else set(place.paths)
    for keys, vectors, facts in place.index.batches(_AT_ONCE):
        pictures = dict(zip(keys, keys, strict=True)) if place.store is None else place.pictures_of(keys)
        files = {key: {key: [key]} for key in keys} if place.store is None else place.files_of(set(pictures.values()))
        yield [
            models.PointStruct(
                id=str(uuid.uuid5(_NAMESPACE, os.fsencode(key).hex())),
                vector=vector.tolist(),
                payload=_payload(key, files[pictures[key]], about)
                | {"picture": pictures[key], "content": key if place.store else "", "vector_id": place.index.vector_id},
            )
            for key, vector, about in zip(keys, vectors, facts, strict=True)
            if files[pictures[key]][key] and (inside is None or key in inside)
        ]


def _payload(key: str, files: Mapping[str, Sequence[str]], facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is known of a photo; ``files`` are those of each content of its picture."""
    copies = [path for content, paths in files.items() if content != key for path in paths]
    folders = set()
    for path in files[key]:
        folder = os.path.dirname(os.path.abspath(path))
        while folder not in folders:
            folders.add(folder)
            folder = os.path.dirname(folder)
    made: dict[str, Any] = {"files": files[key], "copies": copies, "folders": sorted(folders), **facts}
    if facts.get("width"):
        made["pixels"] = facts["width"] * facts["height"]
    if facts.get("camera"):
        made["camera_name"] = facts["camera"].casefold()
    if facts.get("latitude") is not None:
        made["location"] = {"lat": facts["latitude"], "lon": facts["longitude"]}
    return made


def _conditions(wanted: Filter) -> Any:
    """Return the filter as Qdrant has it; None for one that demands nothing."""
    from qdrant_client import models

    must: list[Any] = []
    if wanted.first_ms is not None or wanted.end_ms is not None:
        must.append(models.FieldCondition(key="taken_ms", range=models.Range(gte=wanted.first_ms, lt=wanted.end_ms)))
    if wanted.pixels is not None:
        must.append(models.FieldCondition(key="pixels", range=models.Range(gte=wanted.pixels)))
    if wanted.near is not None:
        latitude, longitude, km = wanted.near
        circle = models.GeoRadius(center=models.GeoPoint(lat=latitude, lon=longitude), radius=1000 * km)
        must.append(models.FieldCondition(key="location", geo_radius=circle))
    if wanted.camera:
        must.append(models.FieldCondition(key="camera_name", match=models.MatchText(text=wanted.camera)))
    if wanted.folders:
        must.append(models.FieldCondition(key="folders", match=models.MatchAny(any=list(wanted.folders))))
    if wanted.format:
        must.append(models.FieldCondition(key="format", match=models.MatchValue(value=wanted.format)))
    return models.Filter(must=must) if must else None


def _picture(points: Sequence[Any], wanted: Filter, without: DirectorySet) -> FoundPicture | None:
    """Return the picture that all points show; None if none of its files is listed."""
    # As in a store, the best copy is shown if it fits.
    for point in sorted(points, key=lambda point: point.payload["content"] != point.payload["picture"]):
        own = sorted(point.payload["files"], key=lambda path: not wanted.has_file(path))
        first, *others = [path for path in own if not without.contains(path)] or [""]
        if first:
            others += [path for path in point.payload["copies"] if not without.contains(path)]
            facts = {name: point.payload.get(name) for name in FACTS}
            content = point.payload["content"]
            return FoundPicture(path=first, score=points[0].score, copies=tuple(others), content=content, facts=facts)
    return None
