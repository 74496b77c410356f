"""A collection in the local mode of qdrant-client, which is NumPy behind the same calls; no server takes part here."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from clip_client import VectorsError
from clip_client.dedup import Store
from clip_client.dedup.types import EXACT, RE_ENCODED, PhotoFile
from clip_client.search.filters import Filter
from clip_client.search.pictures import Place
from clip_client.search.qdrant import QdrantCollection, QdrantError
from clip_client.search.store_index import store_index
from tests.fixtures import members
from tests.fixtures.search_store import VECTOR_ID, content_of, plant
from tests.unit.search.test_pictures import FILTERED, PHOTOS, QUERY

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytest.importorskip("qdrant_client", reason="qdrant-client is not installed")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp("place")
    with Store(folder / "store") as store:
        plant(store, folder / "photos", PHOTOS)
        (folder / "photos" / "link").symlink_to("Sea")
        # A folder whose name begins like another one has a file of the same bytes, with a shorter name.
        copy = folder / "photos" / "Sealed" / "w.jpg"
        status = os.stat(shutil.copy(folder / "photos" / "Sea" / "wave.jpg", copy))
        file = PhotoFile(str(copy), status.st_size, status.st_mtime_ns)
        store.files.remember([(file, content_of("Sea/wave.jpg"))])
        copies = (("Alps/peak.jpg", EXACT), ("Alps/small.jpg", RE_ENCODED))
        made = (members.member(folder / "photos" / one, sha256=content_of(one), tier=tier) for one, tier in copies)
        store.copies.record([members.group(*made)])
        yield Place(index=store_index(store, VECTOR_ID), store=store)


@pytest.fixture(scope="module")
def collection(place: Place, tmp_path_factory: pytest.TempPathFactory) -> Iterator[QdrantCollection]:
    with QdrantCollection(f"qdrant://{tmp_path_factory.mktemp('qdrant')}/photos") as collection:
        for _ in range(2):  # what is there already is replaced
            assert collection.fill(place, lambda what, done, total: None) == len(PHOTOS)
        yield collection


@pytest.mark.parametrize("wanted", [{}, *(wanted for wanted, _ in FILTERED)])
def test_a_collection_finds_what_the_index_finds(
    collection: QdrantCollection, place: Place, wanted: dict[str, Any]
) -> None:
    if "in_folder" in wanted:
        assert place.store is not None
        wanted = {"in_folder": str(place.store.directory.with_name("photos") / wanted["in_folder"])}
    fits = Filter.of(**wanted)
    ours = place.find(QUERY, fits)
    theirs = collection.find(QUERY, VECTOR_ID, fits, top=20)
    listed = [[(one.path, sorted(one.copies)) for one in found.pictures] for found in (theirs, ours)]
    assert listed[0] == listed[1]
    assert theirs.compared == ours.compared
    np.testing.assert_allclose([one.score for one in theirs.pictures], [one.score for one in ours.pictures], atol=1e-5)
    first = collection.find(QUERY, VECTOR_ID, fits, top=1).pictures
    assert [one.path for one in first] == [one.path for one in ours.pictures[:1]]


def test_vectors_of_another_model_are_refused(collection: QdrantCollection) -> None:
    with pytest.raises(VectorsError, match=f"holds vectors of {VECTOR_ID.replace('|', '.')}.* those of other"):
        collection.find(QUERY, "other", Filter(), top=1)


def test_what_cannot_be_reached_is_one_sentence(tmp_path: Path) -> None:
    with QdrantCollection(f"qdrant://{tmp_path}/qdrant/absent") as collection:
        with pytest.raises(QdrantError, match="absent"):
            collection.find(QUERY, VECTOR_ID, Filter(), top=1)
    with QdrantCollection("qdrant://127.0.0.1:9/photos") as collection:
        with pytest.raises(QdrantError, match="photos"):
            collection.find(QUERY, VECTOR_ID, Filter(), top=1)


@pytest.mark.parametrize("text", ["qdrant://", "qdrant://host", "http://host/photos", "qdrant:///photos"])
def test_an_incomplete_address_is_refused(text: str) -> None:
    with pytest.raises(QdrantError, match="write qdrant://HOST:6333/COLLECTION"):
        QdrantCollection(text)
