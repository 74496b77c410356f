from pathlib import Path

import numpy as np
import pytest

from clip_client import VectorsError
from clip_client.search import PhotoIndex, search
from clip_client.search.query import QueryError, Term, query_vector, terms_in, terms_of
from tests.fixtures.search_store import TEXT_ID, VECTOR_ID, Words


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
