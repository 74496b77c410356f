"""A search in a store: how a query is read, filters, one row for each picture, files that are gone."""

import os
from collections.abc import Iterator
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest

from clip_client import VectorsError
from clip_client.dedup import Member, Store
from clip_client.dedup.files.directories import DirectorySet
from clip_client.dedup.types import EDITED, EXACT, RE_ENCODED, SIMILAR, PhotoFile
from clip_client.search import PhotoIndex, search
from clip_client.search.filters import Wanted
from clip_client.search.find import find
from clip_client.search.query import QueryError, QueryVector, Term, query_vector, terms_in, terms_of
from clip_client.search.space import SearchSpace
from clip_client.search.store_index import store_index
from tests.fixtures import members
from tests.fixtures.search_store import MODEL, TEXT_ID, VECTOR_ID, Planted, Words, content_of, plant


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        (["dog", "on the", "beach"], [(1, "dog on the beach")]),
        (["horse", "+", "stripes", "-", "2:green", "grass"], [(1, "horse"), (1, "stripes"), (-2, "green grass")]),
        (["2.5:cat"], [(2.5, "cat")]),
        ([".5: a cat"], [(0.5, "a cat")]),
        (["-", "snow", "+", "house"], [(-1, "snow"), (1, "house")]),
        (["black-and-white", "1+1"], [(1, "black-and-white 1+1")]),
        (["2:", "cat"], [(2, "cat")]),
    ],
)
def test_words_signs_and_weights_are_read_as_in_rclip(parts: list[str], expected: list[tuple[float, str]]) -> None:
    assert [(term.weight, term.text) for term in terms_of(parts)] == expected
    assert [(term.weight, term.text) for term in terms_in(" ".join(parts))] == expected


def test_files_are_photos_but_one_called_like_a_word_only_by_its_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("beach", "a cat.jpg"):
        (tmp_path / name).touch()
    photo = str(tmp_path / "a cat.jpg")
    terms = terms_of(["-", "night", photo, "city", "-", f"2:{photo}", "sea", "./beach", "a cat.jpg", "beach"])
    assert terms == [
        Term(weight=-1, text="night"), Term(photo=photo), Term(text="city"), Term(weight=-2, photo=photo),
        Term(text="sea"), Term(photo="./beach"), Term(photo="a cat.jpg"), Term(text="beach"),
    ]  # fmt: skip
    assert terms_in(f"{photo} - snow") == [Term(text=photo), Term(weight=-1, text="snow")]


@pytest.mark.parametrize(
    "parts",
    [[], ["", " "], ["+"], ["dog", "-"], ["dog", "+", "-", "cat"], ["2:"], ["dog", "+", "2:"], ["9" * 400 + ":cat"]],
)
def test_an_incomplete_query_is_refused(parts: list[str]) -> None:
    with pytest.raises(QueryError):
        terms_of(parts)


async def test_a_path_is_a_photo_and_never_a_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (photo := tmp_path / "beach").touch()
    clip = Words(2, beach=[1, 0], **{str(photo): [0, 1]})
    index = PhotoIndex(2, vector_id=VECTOR_ID)
    index.add(["text", "photo"], np.eye(2))
    for part, nearest in (("beach", "text"), (Path("beach"), "photo")):
        assert [hit.key for hit in await search(clip, index, part, k=1)] == [nearest]
    for absent in ("./absent", "absent.jpg", "2:absent.HEIC", "~/absent", ".", Path("absent"), Path(".")):
        with pytest.raises(QueryError, match=r"there is no file .*: check its path, or write words instead"):
            await search(clip, index, absent)
    assert terms_in("absent.jpg") == [Term(text="absent.jpg")], "the page has no files"


def test_messages_name_a_long_text_by_its_beginning() -> None:
    assert Term(text="a dog " * 10_000).name == "a dog " * 10 + "..."
    assert Term(text="a dog").name == "a dog"


async def test_the_query_is_the_weighted_sum_of_unit_vectors_and_must_have_a_direction() -> None:
    clip = Words(3, dog=[2, 0, 0], cat=[0, 5, 0], photo=[0, 0, 1])
    query = await query_vector(clip, [Term(text="dog"), Term(weight=-2, text="cat"), Term(photo="photo")])
    assert query.vector.tolist() == [1, -2, 1]
    with pytest.raises(QueryError, match="cancel out"):
        await query_vector(clip, terms_in("dog - dog"))


async def test_a_text_is_compared_with_photos_of_the_same_model_only() -> None:
    clip = Words(3, dog=[1, 0, 0])
    text = await query_vector(clip, terms_in("dog"))
    text.check("m/trained@00000000|other|thumb")
    for other in ("m/trained@11111111|small|original", "n/trained@00000000|small|original"):
        with pytest.raises(VectorsError, match="must not be compared") as raised:
            text.check(other)
        assert other in str(raised.value)
        assert TEXT_ID in str(raised.value)
    photos = PhotoIndex(3, vector_id=VECTOR_ID)
    photos.add(["a", "b"], np.eye(3)[:2])
    assert [hit.key for hit in await search(clip, photos, "dog", k=1)] == ["a"]
    with pytest.raises(VectorsError, match="must not be compared"):
        (await query_vector(clip, [Term(photo="dog")])).check("m/trained@00000000|other|thumb")


QUERY = QueryVector(vector=np.array([1, 0], dtype=np.float32), model_id=MODEL)


def at(degrees: float, **more: Any) -> Planted:
    return Planted(vector=(np.cos(np.radians(degrees)), np.sin(np.radians(degrees))), **more)


PHOTOS = {
    "Alps/peak.jpg": at(10, taken_ms=1_262_304_000_000, camera="Canon EOS R5", place=(46.5, 8.0)),  # 2010-01-01
    "Alps/small.jpg": at(11, width=400, height=300, camera="Canon EOS R5"),
    "Alps/edited.png": at(12, format="PNG"),
    "Sea/wave.jpg": at(20, taken="2015-06-30T23:59:59", camera="Apple iPhone 12", place=(-33.9, 179.9), files=3),
    "Sea/shore.heic": at(30, taken="2015-07-01T00:00:00", format="HEIC", place=(-33.9, -179.9)),
    "Sealed/box.jpg": at(40),
}


FILTERED: Final[tuple[tuple[dict[str, Any], list[str]], ...]] = (
    ({"since": "2015-07"}, ["shore.heic"]),
    ({"until": "2015-06"}, ["peak.jpg", "wave.jpg"]),
    ({"since": "2015-06-30", "until": "2015-07-01"}, ["wave.jpg", "shore.heic"]),
    ({"camera": "canon"}, ["peak.jpg", "small.jpg"]),
    ({"format": ".PNG"}, ["edited.png"]),
    ({"format": "heif"}, ["shore.heic"]),
    ({"min_pixels": "1M", "camera": "eos"}, ["peak.jpg"]),
    ({"near": "-33.9,-179.95,20"}, ["wave.jpg", "shore.heic"]),  # across the date line
    ({"near": "46.5,8.1,5"}, []),
    ({"in_folder": "Sea"}, ["wave.jpg", "shore.heic"]),  # and not in Sealed
    ({"in_folder": "link"}, ["wave.jpg", "shore.heic"]),
)
"""Options, with a folder relative to that of the photos -> what they leave, the nearest first."""


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store(tmp_path / "store") as store:
        plant(store, tmp_path / "photos", PHOTOS)
        yield store


@pytest.fixture(scope="module")
def unchanged(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """A store with the same content, for tests that only read."""
    folder = tmp_path_factory.mktemp("unchanged")
    with Store(folder / "store") as store:
        plant(store, folder / "photos", PHOTOS)
        (folder / "photos" / "link").symlink_to("Sea")
        yield store


def space_of(store: Store, **more: Any) -> SearchSpace:
    return SearchSpace(index=store_index(store, VECTOR_ID), store=store, **more)


def names(*paths: str) -> list[str]:
    return [os.path.basename(path) for path in paths]


def found(store: Store, *, top: int = 20, **wanted: Any) -> list[str]:
    return names(*(picture.path for picture in find(QUERY, space_of(store), Wanted.of(wanted), top=top).pictures))


def test_the_nearest_come_first_and_copies_of_the_same_bytes_are_one_picture(unchanged: Store) -> None:
    assert found(unchanged) == ["peak.jpg", "small.jpg", "edited.png", "wave.jpg", "shore.heic", "box.jpg"]
    wave = find(QUERY, space_of(unchanged)).pictures[3]
    assert names(*wave.copies) == ["copy 1 of wave.jpg", "copy 2 of wave.jpg"]
    assert wave.score == pytest.approx(np.cos(np.radians(20)), abs=1e-6)
    assert (wave.taken, wave.facts["camera"]) == ("2015-06-30 23:59:59", "Apple iPhone 12")


def test_the_photo_itself_can_be_left_out_but_not_its_copies(store: Store, tmp_path: Path) -> None:
    sea = tmp_path / "photos" / "Sea"
    (tmp_path / "link.heic").symlink_to(sea / "shore.heic")
    without = DirectorySet([str(sea / "copy 1 of wave.jpg"), str(tmp_path / "link.heic")])
    found = find(QUERY, space_of(store, without=without))
    wave, box = found.pictures[3:]
    assert names(wave.path, *wave.copies, box.path) == ["wave.jpg", "copy 2 of wave.jpg", "box.jpg"]
    assert found.gone == 0


@pytest.mark.parametrize(("wanted", "expected"), FILTERED)
def test_filters_apply_before_the_ranking(unchanged: Store, wanted: dict[str, Any], expected: list[str]) -> None:
    if "in_folder" in wanted:
        wanted = {"in_folder": str(unchanged.directory.with_name("photos") / wanted["in_folder"])}
    assert found(unchanged, **wanted) == expected
    assert found(unchanged, top=1, **wanted) == expected[:1]


def test_each_filter_says_what_it_leaves_out_and_how_much_of_that_lacks_the_fact(unchanged: Store) -> None:
    wanted = Wanted.of({"since": "2015", "camera": "canon", "near": "46.5,8.0,1"})
    assert find(QUERY, space_of(unchanged), wanted).left_out == (
        "4 different files left out by --since: 3 have no date",
        "2 different files left out by --camera: 1 has no camera",
    ), "nothing is left for the third"
    wanted = Wanted.of({"min_pixels": "1M", "near": "46.5,8.0,1"})
    assert find(QUERY, space_of(unchanged), wanted).left_out == (
        "1 different file left out by --min-pixels",
        "4 different files left out by --near: 2 have no place",
    )
    assert find(QUERY, space_of(unchanged)).left_out == ()


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        ({"since": "2015-02-30"}, "since must be a year, month or day"),
        ({"until": "today"}, "until must be a year"),
        ({"since": "2021", "until": "2019"}, "since 2021 is later than until 2019, so no photo can fit"),
        ({"near": "91,0,5"}, "near must be latitude"),
        ({"min_pixels": "many"}, "min-pixels must be a number"),
        ({"min_pixels": "nan"}, "min-pixels must be a number"),
        ({"min_pixels": "-1M"}, "min-pixels must be a number"),
        ({"format": "docx"}, "format must be one of RAW file, .*HEIC"),
    ],
)
def test_a_filter_that_cannot_be_read_is_named(wanted: dict[str, str], message: str) -> None:
    with pytest.raises(QueryError, match=message):
        Wanted.of(wanted)


def test_vectors_alone_know_paths_and_nothing_else() -> None:
    index = PhotoIndex(2)
    index.add(["/a/b.jpg", "/ab/c.jpg"], np.ones((2, 2)))
    space = SearchSpace(index=index)
    assert [one.path for one in find(QUERY, space, Wanted.of({"in_folder": "/a"})).pictures] == ["/a/b.jpg"]
    with pytest.raises(QueryError, match="files of vectors can be filtered only by --in-folder"):
        find(QUERY, space, Wanted.of({"since": "2020"}))
    assert find(QUERY, SearchSpace(index=PhotoIndex(2)), Wanted.of({"since": "2020"})).pictures == ()


def member(name: str, tier: str = RE_ENCODED, **more: Any) -> Member:
    return members.member(f"/{name}", sha256=content_of(name), tier=tier, **more)


def test_proven_copies_are_one_picture_until_a_person_says_otherwise(store: Store) -> None:
    group = members.group(
        member("Alps/peak.jpg", EXACT),
        member("Alps/small.jpg", RE_ENCODED),
        member("Alps/edited.png", EDITED),
        member("Sea/shore.heic", SIMILAR, copy_of="/Alps/edited.png", copy_tier=RE_ENCODED),
    )
    store.copies.record([group])
    assert found(store) == ["peak.jpg", "edited.png", "wave.jpg", "box.jpg"]
    # The best copy does not fit, so the nearest that does is shown, and the best one is among its copies.
    inside = store_index(store, VECTOR_ID).holding([content_of("Alps/small.jpg")])
    (small,) = find(QUERY, space_of(store, inside=inside)).pictures
    assert names(small.path, *small.copies) == ["small.jpg", "peak.jpg"]

    store.decisions.add("different", [content_of("Alps/peak.jpg"), content_of("Alps/small.jpg")])
    assert found(store)[:2] == ["peak.jpg", "small.jpg"]
    assert find(QUERY, space_of(store)).pictures[0].copies == ()
    store.copies.record([members.group(member("Alps/edited.png", EXACT), member("Sea/shore.heic", SIMILAR))])
    assert "shore.heic" in found(store)


@pytest.mark.parametrize("order", [1, -1])
def test_copies_that_two_searches_proved_are_one_picture(store: Store, order: int) -> None:
    groups = [("Alps/small.jpg", "Sea/wave.jpg"), ("Alps/peak.jpg", "Alps/small.jpg")]
    for group in groups[::order]:
        store.copies.record([members.group(*map(member, group))])
    assert found(store) == ["peak.jpg", "edited.png", "shore.heic", "box.jpg"]
    store.decisions.add("different", [content_of("Alps/peak.jpg"), content_of("Alps/small.jpg")])
    assert found(store) == ["peak.jpg", "small.jpg", "edited.png", "shore.heic", "box.jpg"]


def test_different_copies_of_one_photo_are_pictures_of_their_own(store: Store) -> None:
    store.copies.record([members.group(member("Alps/peak.jpg"), member("Alps/small.jpg"), member("Alps/edited.png"))])
    store.decisions.add("different", [content_of("Alps/small.jpg"), content_of("Alps/edited.png")])
    pictures = find(QUERY, space_of(store)).pictures[:3]
    assert names(*(one.path for one in pictures)) == ["peak.jpg", "small.jpg", "edited.png"]
    assert not any(one.copies for one in pictures)


def test_the_best_copy_is_shown_if_it_is_in_the_folder(store: Store, tmp_path: Path) -> None:
    (elsewhere := tmp_path / "photos" / "a.jpg").write_bytes(b"Alps/peak.jpg")
    store.files.remember([(PhotoFile.of(str(elsewhere), elsewhere.stat()), content_of("Alps/peak.jpg"))])
    store.copies.record([members.group(member("Alps/edited.png", EXACT), member("Alps/peak.jpg"))])
    assert found(store)[0] == "edited.png"
    (tmp_path / "photos/Alps/edited.png").unlink()
    assert found(store, top=1) == ["a.jpg"]
    assert found(store, top=1, in_folder=str(tmp_path / "photos/Alps")) == ["peak.jpg"]


def test_pictures_whose_files_are_gone_or_changed_are_counted_and_the_list_is_still_full(
    store: Store, tmp_path: Path
) -> None:
    photos = tmp_path / "photos"
    os.replace(photos / "Sea/wave.jpg", photos / "Alps/peak.jpg")  # now another picture
    for copy in (photos / "Sea").glob("copy * of wave.jpg"):
        os.utime(copy, (0, 0))
    result = find(QUERY, space_of(store), top=3)
    assert names(*(picture.path for picture in result.pictures)) == ["small.jpg", "edited.png", "shore.heic"]
    assert (result.gone, result.compared) == (2, 6)
    os.utime(photos / "Alps/small.jpg", (0, 0))
    result = find(QUERY, space_of(store), top=1)
    assert (names(result.pictures[0].path), result.gone) == (["edited.png"], 2)  # not wave.jpg, which is farther


def test_the_index_follows_the_store_and_forgets_texts_of_an_earlier_search(store: Store, tmp_path: Path) -> None:
    index = store_index(store, VECTOR_ID)
    assert index.folder is not None
    (texts := index.folder / "neutral-1a2b3c4d.npz").touch()
    assert (len(store_index(store, VECTOR_ID)), len(index), texts.exists()) == (6, 6, False)
    with Store(store.directory) as other:
        plant(other, tmp_path / "photos", {"new.jpg": at(1)})
    assert found(store)[0] == "new.jpg"
    for damaged in (store.directory / "index").glob("*/*/photos.arrow"):
        damaged.write_bytes(b"damaged")
    assert found(store)[0] == "new.jpg"


def test_an_index_of_an_earlier_version_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Store(tmp_path / "store") as store:
        with monkeypatch.context() as earlier:
            for module in ("clip_client.dedup.features.image_features", "clip_client.search.store_index"):
                earlier.setattr(import_module(module), "ALGORITHM", "look-0")
            plant(store, tmp_path / "photos", {"a.jpg": at(1)})
            assert found(store, since="2019") == []
        plant(store, tmp_path / "photos", {"a.jpg": at(1, taken="2019-05-03")})
        assert found(store, since="2019") == ["a.jpg"]


def test_a_store_without_such_vectors_says_which_it_has(unchanged: Store) -> None:
    with pytest.raises(VectorsError, match="has no vectors of x; it has vectors of m/trained"):
        store_index(unchanged, "x")
    with pytest.raises(VectorsError, match="must not be compared"):
        find(replace(QUERY, vector_ids=("x",)), space_of(unchanged))
