"""``dedup --without-model``: bytes, pixels, perceptual hashes and alignment need no model, no server and no network."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest
from PIL import Image

from clip_client.cli.commands import dedup
from clip_client.cli.main import main
from clip_client.dedup import find_duplicates
from clip_client.dedup.types import NO_MODEL
from tests.fixtures.images.scenes import scene

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """A photo, a copy of its bytes, one in half the size, and another photo."""
    folder = tmp_path / "photos"
    folder.mkdir()
    picture = scene(1, (640, 480))
    picture.save(folder / "a.jpg", quality=95)
    (folder / "b.jpg").write_bytes((folder / "a.jpg").read_bytes())
    with Image.open(folder / "a.jpg") as saved:
        saved.resize((320, 240), Image.Resampling.LANCZOS).save(folder / "half.jpg", quality=90)
    scene(2, (640, 480)).save(folder / "other.jpg")
    return folder


def test_copies_are_found_and_moved_and_the_output_names_no_model(
    photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLIP_URL", "127.0.0.1:1")  # no server is asked
    words = ["dedup", str(photos), "--without-model", "--store", str(tmp_path / "store")]
    assert main([*words, "--json", str(tmp_path / "found.json"), "--report", str(tmp_path / "page.html")]) == 0
    assert "Searched without a model: strong crops and edits may be missing." in capsys.readouterr().err
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["model"] == NO_MODEL
    (group,) = found["groups"]
    assert {(member["tier"], member["verdict"]["moves"]) for member in group["members"][1:]} == {
        ("exact", "by default"),
        ("re-encoded", "by default"),
    }
    page = (tmp_path / "page.html").read_text()
    assert "without a model" in page
    assert "<code>none</code>" not in page
    assert main([*words, "--apply"]) == 0
    assert len(list(photos.glob("*.jpg"))) == 2


def test_a_machine_without_a_model_is_told_of_it(
    photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLIP_MODEL", str(tmp_path / "none"))
    assert main(["dedup", str(photos), "--url", "auto:127.0.0.1:1", "--store", str(tmp_path / "store")]) == 1
    assert "without any model: --without-model" in capsys.readouterr().err


class OneImage:
    """A client that counts what it is sent."""

    def __init__(self) -> None:
        self.sent = 0

    async def model(self) -> Any:
        return type("Model", (), {"id": "m/t@1", "vector_id": "m", "dimension": 4, "transfer": "original"})()

    async def embed_stream(self, images: AsyncIterator[Any], *, ordered: bool) -> AsyncIterator[Any]:
        async for index, _ in _numbered(images):
            self.sent += 1
            yield type("Item", (), {"index": index, "error": None, "vector": _unit()})()


async def _numbered(images: AsyncIterator[Any]) -> AsyncIterator[tuple[int, Any]]:
    index = 0
    async for image in images:
        yield index, image
        index += 1


def _unit() -> Any:
    import numpy as np

    return np.array([1, 0, 0, 0], dtype=np.float32)


def test_what_cannot_be_decoded_is_never_sent(tmp_path: Path) -> None:
    for number in range(5):
        (tmp_path / f"{number}.jpg").write_bytes(b"\xff\xd8\xff damaged %d" % number)
    scene(1, (64, 48)).save(tmp_path / "good.jpg")
    clip: Any = OneImage()
    report = asyncio.run(find_duplicates(clip, [tmp_path]))
    assert clip.sent == 1
    assert len(report.failed) == 5


def test_work_that_is_kept_is_said_on_an_interruption(
    photos: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(dedup, "_scan", interrupt)
    assert main(["dedup", str(photos), "--without-model"]) == 130
    assert capsys.readouterr().err == (
        "clip-client: interrupted; the work that is done is kept, and the same command continues it\n"
    )
