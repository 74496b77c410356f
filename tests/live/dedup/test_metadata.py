"""A camera's original among its exports, from the search to the move and back; through a real server."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from PIL import Image, ImageEnhance

from clip_client.cli.main import main
from clip_client.dedup.files.metadata import read_sidecar
from tests.fixtures.albums import snapshot, without_access
from tests.fixtures.images.camera_files import exif, packet

if TYPE_CHECKING:
    from pathlib import Path

    from benchmarks.fixtures.server import Server


@pytest.fixture
def original(tmp_path: Path, photos: Path) -> Path:
    """A photo as a camera writes it."""
    path = tmp_path / "album" / "original.jpg"
    path.parent.mkdir()
    with Image.open(photos / "astronaut.jpg") as photo:
        photo.convert("RGB").save(path, quality=85, exif=exif(gps=True, size=photo.size))
    return path


def search(server: Server, original: Path, *more: str) -> list[str]:
    return [
        "dedup",
        str(original.parent),
        "--url",
        server.grpc_url,
        "--store",
        str(original.parents[1] / "store"),
        *more,
    ]


def test_apply_moves_the_exports_and_not_the_original(server: Server, original: Path) -> None:
    folder = original.parent
    with Image.open(original) as photo:
        photo.save(folder / "a.tif", exif=Image.Exif())
        photo.save(folder / "a.png", exif=Image.Exif())
        photo.resize((photo.width * 2, photo.height * 2)).save(folder / "upscaled.jpg", quality=95)
        ImageEnhance.Brightness(photo).enhance(1.1).save(folder / "brightened.jpg", quality=97)
    assert (folder / "brightened.jpg").stat().st_size > original.stat().st_size
    assert main(search(server, original, "--json", str(folder / "found.json"), "--apply")) == 0
    (group,) = json.loads((folder / "found.json").read_text())["groups"]
    assert group["keep"] == str(original)
    assert group["reason"] == "camera original: Canon EOS 5D, taken 2019-05-03"
    assert (group["members"][0]["taken"], group["members"][0]["camera"]) == ("2019-05-03T10:11:12", "Canon EOS 5D")
    assert {path.name for path in folder.glob("*.*")} - {"found.json"} == {
        ".clip-quarantine",
        "original.jpg",
        "upscaled.jpg",
        "brightened.jpg",
    }


def test_what_only_a_copy_says_is_kept_or_merged_and_comes_back(
    server: Server, original: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = original.parent
    with Image.open(original) as photo:
        photo.save(folder / "rated.webp", lossless=True, exif=exif(gps=True), xmp=packet('xmp:Rating="5">'))
    before = snapshot(folder)
    assert main(search(server, original, "--apply")) == 0
    stays = "It has metadata that the kept photo lacks, which --merge-metadata can save: rating."
    assert f"stays: {folder / 'rated.webp'}: {stays}" in capsys.readouterr().err
    assert without_access(snapshot(folder)) == without_access(before)
    assert main(search(server, original, "--apply", "--merge-metadata")) == 0
    assert not (folder / "rated.webp").exists()
    assert read_sidecar((folder / "original.jpg.xmp").read_bytes()).rating == 5
    assert main(["undo", "--store", str(original.parents[1] / "store")]) == 0
    assert without_access(snapshot(folder)) == without_access(before)
