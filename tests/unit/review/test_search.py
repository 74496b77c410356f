"""The search by words on the pages: the real server, and requests as a browser sends them."""

import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlencode

import pytest

from clip_client.review.state.photo_search import MOST_UPLOADED
from tests.fixtures.images.scenes import scene
from tests.fixtures.reviews import Review, review_of, save_scenes


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("search")
    save_scenes(folder / "Pictures")
    return folder


@pytest.fixture(scope="module")
def review(folder: Path) -> Iterator[Review]:
    with review_of(folder / "Pictures", store=folder / "store") as running:
        yield running


def found(page: str) -> list[str]:
    return re.findall(r'<p class="name"><bdi>(.*?)</bdi>', page)


def search(review: Review, **wanted: str) -> str:
    answer = review.get(f"/search?{urlencode(wanted)}")
    assert answer.status == 200
    return answer.text


def test_a_photo_that_is_uploaded_is_searched_for(review: Review, folder: Path) -> None:
    name = review.post("/search/photo", (folder / "Pictures" / "scene 2.png").read_bytes()).json["photo"]
    assert found(search(review, photo=name))[0] == "scene 2.png"
    assert "no longer known" in search(review, photo="0" * 32)
    huge = review.request(
        "POST", f"{review.secret}/search/photo", Origin=f"http://127.0.0.1:{review.port}",
        Content_Length=str(MOST_UPLOADED + 1),
    )  # fmt: skip
    assert huge.status == 413


def test_a_result_is_the_start_of_the_next_search(review: Review) -> None:
    like = re.findall(r'href="search\?like=([0-9a-f]{64})"', search(review, q="any"))[0]
    page = search(review, like=like)
    assert review.get(f"/photos/{like}/small").status == 200
    assert "1.000" in page
    assert "not in the index" in search(review, like="0" * 64)


@pytest.mark.parametrize(
    ("wanted", "said"),
    [
        ({"q": "dog -"}, "The query ends with -"),
        ({"q": "dog", "since": "soon"}, "Since must be a year"),
        ({"q": "dog", "format": "jpeg"}, "No photo fits"),
        ({"q": "9" * 50 + ":cat"}, "is not a term: write a weight up to 1000"),
        ({"q": "word " * 80}, "The model has read only the beginning of: word word"),
    ],
)
def test_what_cannot_be_searched_is_said_on_the_page(review: Review, wanted: dict[str, str], said: str) -> None:
    assert said in search(review, **wanted)


def test_filters_keep_what_was_typed(review: Review) -> None:
    page = search(review, q='a "dog"', format="png", in_folder="/nowhere")
    assert 'value="a &#34;dog&#34;"' in page
    assert 'value="/nowhere"' in page
    assert "No photo fits" in page
    assert "cancel out" not in search(review, format="png")


def test_photos_outside_the_paths_of_the_review_are_not_found(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    scene(7, (480, 360)).save(tmp_path / "other" / "seven.png")
    # A copy elsewhere has a shorter name, so a search of all photos shows that copy.
    (tmp_path / "other" / "one more of scene 1.png").write_bytes((folder / "Pictures" / "scene 1.png").read_bytes())
    for root in (tmp_path / "other", tmp_path / "other" / "seven.png"):
        with review_of(root, store=folder / "store") as review:
            page = search(review, q="any")
            assert sorted(found(page)) == (["one more of scene 1.png", "seven.png"] if root.is_dir() else ["seven.png"])
            assert "+1 copy" not in page
