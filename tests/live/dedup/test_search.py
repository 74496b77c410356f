"""The search for duplicates through a real server.

The small CLIP's weights are random. On the sample photos it keeps copies, crops by 2 % included, above 0.9987 and
different photos below 0.9975, so the default for random weights must find exactly the families.
"""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import struct
import threading
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from PIL import Image

from benchmarks.fixtures.sample_photos import write_with_copies
from clip_client import ClipClient, SyncClipClient
from clip_client.dedup import find_duplicates
from tests.fixtures.images.raw_files import dng

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator

    from benchmarks.fixtures.server import Server
    from clip_client import EmbeddedItem
    from clip_client.dedup import DuplicateReport


@pytest.fixture(scope="module")
def families(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Path]]:
    """Original's stem -> all files that show the same picture."""
    return write_with_copies(tmp_path_factory.mktemp("photos with copies"))


@pytest.fixture(scope="module")
def found(server: Server, families: dict[str, list[Path]]) -> DuplicateReport:
    """The report of a search in the folder of all families."""
    with SyncClipClient(server.grpc_url) as clip:
        return clip.find_duplicates([families["coffee"][0].parent])


async def find(server: Server, *paths: Path, threshold: float | None = None) -> DuplicateReport:
    async with ClipClient(server.grpc_url) as clip:
        return await find_duplicates(clip, paths, threshold=threshold)


def as_sets(report: DuplicateReport) -> set[frozenset[str]]:
    return {frozenset(member.path for member in group.members) for group in report.groups}


def expected(families: dict[str, list[Path]]) -> set[frozenset[str]]:
    return {frozenset(map(str, files)) for files in families.values() if len(files) > 1}


def png_that_says(width: int, height: int) -> bytes:
    """A PNG of a few bytes whose header announces a picture that fits no memory."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", zlib.compress(b"\0" * 1000)) + chunk(b"IEND", b"")


def test_finds_the_families_and_nothing_else(found: DuplicateReport, families: dict[str, list[Path]]) -> None:
    assert as_sets(found) == expected(families)
    assert found.failed == ()
    assert found.compared == sum(map(len, families.values()))
    by_keeper = {Path(group.keep).stem: group for group in found.groups}
    assert by_keeper["coins"].tier == "exact"
    assert by_keeper["coffee"].tier == "re-encoded"
    assert by_keeper["motorcycle_left"].tier == "edited"
    for group in found.groups:
        kept = group.members[0]
        pixels = [member.photo.width * member.photo.height for member in group.members]
        assert pixels[0] == max(pixels)
        assert kept.similarity == 1.0
        assert 0.998 <= group.min_similarity <= min(member.similarity for member in group.members)


async def test_groups_do_not_depend_on_the_order_of_paths(
    found: DuplicateReport, server: Server, families: dict[str, list[Path]]
) -> None:
    files = [path for family in families.values() for path in family]
    random.Random(0).shuffle(files)
    assert (await find(server, *files)).to_json() == found.to_json()


async def test_bad_files_are_listed_and_hurt_no_other(
    server: Server, families: dict[str, list[Path]], tmp_path: Path
) -> None:
    folder = tmp_path / "album"
    folder.mkdir()
    families = {stem: families[stem] for stem in ("chelsea", "coffee", "coins", "retina", "rocket")}
    for path in (path for family in families.values() for path in family):
        shutil.copyfile(path, folder / path.name)
    (folder / "text.jpg").write_text("This is no image.")
    (folder / "text again.jpg").write_text("This is no image.")
    (folder / "truncated.jpg").write_bytes(families["rocket"][0].read_bytes()[:20_000])
    (folder / "empty.jpg").touch()
    (folder / "bomb.png").write_bytes(png_that_says(30_000, 30_000))
    (folder / "dangling.jpg").symlink_to("nowhere.jpg")
    (folder / "loop").symlink_to(folder)
    os.mkfifo(folder / "pipe.jpg")
    odd_names = ("two words.jpg", "\U0001f431.jpg", os.fsdecode(b"caf\xe9.jpg"))
    for name in odd_names:
        shutil.copyfile(families["coffee"][0], folder / name)

    report = await find(server, folder)

    assert {os.path.basename(failure.path): failure.code for failure in report.failed} == {
        "text.jpg": "NOT_AN_IMAGE",
        "text again.jpg": "NOT_AN_IMAGE",
        "truncated.jpg": "TRUNCATED",
        "empty.jpg": "EMPTY",
        "bomb.png": "TOO_LARGE",
        "dangling.jpg": "UNREADABLE",
        "loop": "UNREADABLE",
        "pipe.jpg": "UNREADABLE",
    }
    assert all(failure.message for failure in report.failed)
    copied = {
        stem: [folder / path.name for path in family] + [folder / name for name in odd_names if stem == "coffee"]
        for stem, family in families.items()
    }
    assert as_sets(report) == expected(copied)


async def test_flat_pictures_are_grouped_by_their_bytes_only(server: Server, tmp_path: Path) -> None:
    for name, level in (("black.png", 0), ("copy of black.png", 0), ("nearly black.png", 3), ("lens cap.png", 6)):
        Image.new("RGB", (320, 240), (level, level, level)).save(tmp_path / name)
    report = await find(server, tmp_path, threshold=0.5)
    assert report.thresholds.similar == 0.5
    (group,) = report.groups
    assert group.tier == "exact"
    assert {os.path.basename(member.path) for member in group.members} == {"black.png", "copy of black.png"}


async def test_raw_files_alone_are_compared_by_their_previews_or_their_bytes(
    server: Server, photos: Path, tmp_path: Path
) -> None:
    coffee = Image.open(photos / "coffee.jpg")
    with_preview, without = dng(coffee), dng(None)
    for name, data in (("1.dng", with_preview), ("2.dng", with_preview), ("3.nef", without), ("4.nef", without)):
        (tmp_path / name).write_bytes(data)
    shutil.copyfile(photos / "coffee.jpg", tmp_path / "5.jpg")
    shutil.copyfile(photos / "rocket.jpg", tmp_path / "6.jpg")
    (tmp_path / "6.dng").write_bytes(with_preview)  # belongs to the photo of its name
    report = await find(server, tmp_path)
    assert as_sets(report) == {
        frozenset(str(tmp_path / name) for name in ("1.dng", "2.dng", "5.jpg")),
        frozenset(str(tmp_path / name) for name in ("3.nef", "4.nef")),
    }
    assert {group.tier for group in report.groups} == {"re-encoded", "exact"}
    assert [os.path.basename(path) for path in report.bytes_only] == ["3.nef", "4.nef"]
    assert (report.compared, report.failed) == (6, ())


async def test_a_file_that_goes_away_does_not_take_its_copies_along(
    server: Server, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = [Path(shutil.copyfile(photos / "coffee.jpg", tmp_path / name)) for name in ("1.jpg", "2.jpg", "3.jpg")]
    last_is_read, os_open = threading.Event(), os.open

    def read_the_first_last(path: str, *args: Any, **named: Any) -> int:
        # Which of the copies is embedded must not depend on which thread was quicker.
        if path == str(paths[-1]):
            last_is_read.set()
        elif path == str(paths[0]):
            last_is_read.wait(1)
        return os_open(path, *args, **named)

    monkeypatch.setattr(os, "open", read_the_first_last)
    async with ClipClient(server.grpc_url) as clip:

        class RemovesTheFirst:
            """The client, in a world where the first file goes away before it is embedded."""

            model = clip.model

            def embed_stream(self, source: Any, *, ordered: bool = True) -> AsyncGenerator[EmbeddedItem, None]:
                async def removing() -> AsyncIterator[str]:
                    async for path in source:
                        paths[0].unlink(missing_ok=True)
                        yield path

                return clip.embed_stream(removing(), ordered=ordered)

        report = await find_duplicates(RemovesTheFirst(), [tmp_path])
    assert [(failure.path, failure.code) for failure in report.failed] == [(str(paths[0]), "UNREADABLE")]
    assert as_sets(report) == {frozenset(map(str, paths[1:]))}
    assert report.compared == 2


async def test_reports_progress_to_the_end(server: Server, families: dict[str, list[Path]]) -> None:
    calls: list[tuple[str, int, int | None]] = []
    async with ClipClient(server.grpc_url) as clip:
        await find_duplicates(clip, families["astronaut"], on_progress=lambda *call: calls.append(call))
    assert ("embedding", 3, 3) in calls


async def test_an_empty_folder_is_an_empty_report(server: Server, tmp_path: Path) -> None:
    report = await find(server, tmp_path)
    assert (report.compared, report.groups, report.failed) == (0, (), ())


async def test_a_search_can_be_cancelled(server: Server, photos: Path) -> None:
    async with ClipClient(server.grpc_url) as clip:
        searching = asyncio.create_task(find_duplicates(clip, [photos]))
        await clip.model()
        searching.cancel()
        with pytest.raises(asyncio.CancelledError):
            await searching
        assert (await clip.embed([photos / "coffee.jpg"])).errors == {}
