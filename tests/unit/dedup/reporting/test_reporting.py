from __future__ import annotations

import hashlib
import io
import json
import os
from html.parser import HTMLParser
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from PIL import Image
from rich.console import Console

from clip_client.dedup import FailedFile
from clip_client.dedup.features.image_features import extract_features
from clip_client.dedup.features.preview import thumbnail
from clip_client.dedup.reporting.html import write_page
from clip_client.dedup.reporting.terminal import print_groups, print_notes
from clip_client.dedup.text import at_least, human_bytes, printable
from clip_client.dedup.types import EXACT, SAME_PIXELS, SIMILAR, CaptureTime, Metadata
from tests.fixtures import members
from tests.fixtures.members import group, report

if TYPE_CHECKING:
    from pathlib import Path

    from clip_client.dedup import DuplicateReport, Member

RANDOM, TRAINED = "ViT-B-32/random:0@1a2b3c4d", "ViT-B-32/openai@1a2b3c4d"
HOSTILE = "<img src=x><script>&\"'.jpg"
NOT_UTF8 = os.fsdecode(b"caf\xe9.jpg")


def member(path: Path | str, similarity: float = 1.0, **more: Any) -> Member:
    given = {"width": 640, "height": 480, "size_bytes": 1_400_000, "tier": SAME_PIXELS, **more}
    return members.member(path, similarity=similarity, sha256=hashlib.sha256(os.fsencode(path)).hexdigest(), **given)


def photo(path: Path, size: tuple[int, int] = (80, 60), orientation: int = 1) -> Path:
    levels = np.random.default_rng(0).integers(0, 255, (size[1], size[0], 3), dtype=np.uint8)
    exif = Image.Exif()
    exif[0x0112] = orientation
    Image.fromarray(levels).save(path, exif=exif)
    return path


def page(of: DuplicateReport) -> str:
    file = io.BytesIO()
    write_page(of, file, thumbnail=thumbnail)
    return file.getvalue().decode()


class Tags(HTMLParser):
    """Collects the tags and their attributes; fails on tags that do not close."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.seen: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))
        if tag not in {"meta", "img", "input"}:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def printed(of: DuplicateReport, *, verbose: bool = False) -> list[str]:
    """What a terminal of 80 columns shows."""
    file = io.StringIO()
    console = Console(file=file, width=80)
    print_groups(of, console, verbose=verbose)
    print_notes(of, console, verbose=verbose)
    return file.getvalue().splitlines()


def from_camera(path: str, **more: Any) -> Member:
    said = Metadata(taken="2019-05-03T10:11:12", lens="EF50mm", latitude=48.2, longitude=16.4)
    return member(path, metadata=said, capture_time=CaptureTime(camera="Canon EOS 5D"), **more)


def test_date_and_camera_are_in_every_form(tmp_path: Path) -> None:
    of = report(group(member("a.png"), from_camera("b.jpg")))
    (found,) = json.loads(of.to_json())["groups"]
    said = [(one["taken"], one["camera"]) for one in found["members"]]
    assert said == [(None, None), ("2019-05-03T10:11:12", "Canon EOS 5D")]
    assert page(of).count('<p class="origin soft">2019-05-03 10:11:12, Canon EOS 5D</p>') == 1
    assert "2019-05-03 10:11:12, Canon EOS 5D" in map(str.strip, printed(of, verbose=True))


def test_json_is_ascii_and_brings_any_name_back() -> None:
    text = report(group(member(NOT_UTF8), member("\U0001f600.jpg"), tier=EXACT)).to_json()
    assert text.isascii()
    paths = [entry["path"] for entry in json.loads(text)["groups"][0]["members"]]
    assert [os.fsencode(path) for path in paths] == [b"caf\xe9.jpg", "\U0001f600.jpg".encode()]


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        (b"two words \xf0\x9f\x98\x80.jpg", "two words \U0001f600.jpg"),
        ("\U0001f468\u200d\U0001f469.jpg".encode(), "\U0001f468\u200d\U0001f469.jpg"),
        (b"caf\xe9.jpg", "caf\\xe9.jpg"),
        (b"a\nb\x1b[2J.jpg", "a\\nb\\x1b[2J.jpg"),
        ("gpj\u202e.exe".encode(), "gpj\\u202e.exe"),
    ],
)
def test_a_name_cannot_forge_what_is_shown(name: bytes, shown: str) -> None:
    assert printable(os.fsdecode(name)) == shown


@pytest.mark.parametrize(
    ("size", "text"), [(0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (241_300, "241 kB"), (999_600, "1.0 MB")]
)
def test_sizes(size: int, text: str) -> None:
    assert human_bytes(size) == text


def test_a_lower_bound_is_never_rounded_up() -> None:
    assert [at_least(value) for value in (0.99999, 0.9987, 1.0, 0.123456)] == ["0.9999", "0.9987", "1.0000", "0.1234"]


def test_page_shows_each_photo_and_needs_nothing_else(tmp_path: Path) -> None:
    first, second = photo(tmp_path / "a.jpg"), photo(tmp_path / HOSTILE)
    failure = FailedFile(path=str(tmp_path / NOT_UTF8), code="NOT_AN_IMAGE", message="It is <b>no</b> image.")
    text = page(report(group(member(first), member(second, 0.993, tier=SIMILAR)), failed=(failure,)))
    tags = Tags(text)
    sources = [attributes["src"] or "" for tag, attributes in tags.seen if tag == "img"]
    assert len(sources) == 2
    assert all(source.startswith("data:image/jpeg;base64,") for source in sources)
    assert {tag for tag, _ in tags.seen}.isdisjoint({"link", "iframe"})
    links = {attributes["href"] or "" for tag, attributes in tags.seen if tag == "a"}
    assert links == {first.as_uri(), second.as_uri(), f"{tmp_path.as_uri()}/", "#not-compared"}
    assert "url(" not in text
    assert "@import" not in text
    assert text.count('<span class="keep">Keep</span>') == 1
    assert "0.9930 alike" in text
    assert "640 × 480" in text
    assert "1.4 MB" in text
    assert "caf\\xe9.jpg" in text
    assert TRAINED in text
    assert "random" not in text


def test_page_warns_where_the_weights_are_random() -> None:
    text = page(report(model=RANDOM))
    assert "The weights of this model are random." in text
    assert RANDOM in text
    assert "No duplicates were found" in text


def test_page_lives_with_photos_that_went_away(tmp_path: Path) -> None:
    text = page(report(group(member(photo(tmp_path / "a.jpg")), member(tmp_path / "gone.jpg", 0.992))))
    assert text.count("<img") == 1
    assert "can no longer be opened" in text


def test_a_thumbnail_is_upright_and_small(tmp_path: Path) -> None:
    for path in (photo(tmp_path / "a.jpg", (400, 200), orientation=6), photo(tmp_path / "a.png", (400, 200), 6)):
        small = thumbnail(str(path), 50)
        assert small is not None
        with Image.open(io.BytesIO(small)) as seen:
            assert (seen.size, seen.mode) == ((25, 50), "RGB")


def test_what_is_no_picture_has_no_thumbnail(tmp_path: Path) -> None:
    text = tmp_path / "text.jpg"
    text.write_text("no picture")
    damaged = tmp_path / "damaged.jpg"
    damaged.write_bytes(photo(tmp_path / "whole.jpg").read_bytes()[:120])
    assert [thumbnail(str(path), 50) for path in (text, damaged, tmp_path / "gone.jpg")] == [None] * 3
    assert [extract_features(path.read_bytes())[0].code for path in (text, damaged)] == ["NOT_AN_IMAGE", "TRUNCATED"]


def test_flat_pictures_are_told_from_photos(tmp_path: Path, photos: Path) -> None:
    for path in photos.iterdir():
        assert not extract_features(path.read_bytes())[0].is_flat, path.name
    noise = np.random.default_rng(0).normal(20, 2, (300, 400, 3)).clip(0, 255).astype(np.uint8)
    transparent = Image.new("RGBA", (200, 200), (255, 0, 0, 0))
    transparent.paste((0, 0, 255, 0), (0, 0, 100, 200))  # invisible colours
    flat = {"black.jpg": Image.new("L", (300, 200)), "night.jpg": Image.fromarray(noise), "clear.png": transparent}
    for name, image in flat.items():
        image.save(tmp_path / name)
        assert extract_features((tmp_path / name).read_bytes())[0].is_flat, name
