"""Searches that share a store, through a real server; and the commands that act on what they find."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from PIL import Image

from benchmarks.fixtures.sample_photos import write_originals, write_with_copies
from clip_client import ClipClient
from clip_client.cli.main import main
from clip_client.dedup import Store, find_duplicates
from clip_client.dedup.store.journal import State
from clip_client.dedup.types import BURST, EXACT, QUARANTINE_NAME, SearchStats

if TYPE_CHECKING:
    from benchmarks.fixtures.server import Server
    from clip_client.dedup import DuplicateReport


@pytest.fixture(scope="module")
def families(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Path]]:
    """Original's stem -> all files that show the same picture."""
    return write_with_copies(tmp_path_factory.mktemp("photos with copies"))


@pytest.fixture
def album(families: dict[str, list[Path]], tmp_path: Path) -> Path:
    """Five originals, five changed copies, two copies of the same bytes, and a file that is no image."""
    album = tmp_path / "album"
    album.mkdir()
    for stem in ("astronaut", "chelsea", "coffee", "coins", "rocket"):
        for path in families[stem]:
            shutil.copy2(path, album)
    (album / "text.jpg").write_text("This is no image.")
    return album


async def find(server: Server, store: Path, *paths: Path, **options: Any) -> DuplicateReport:
    async with ClipClient(server.grpc_url) as clip:
        with Store(store) as opened:
            return await find_duplicates(clip, paths, store=opened, **options)


async def test_a_second_search_reads_decodes_and_embeds_nothing(server: Server, album: Path, tmp_path: Path) -> None:
    first = await find(server, tmp_path / "store", album)
    second = await find(server, tmp_path / "store", album)
    photos = 5 + 5  # originals and changed copies; copies of the same bytes are one
    assert (first.work.decoded, first.work.embedded) == (photos + 1, photos)  # what is no image is not sent
    assert first.work.pixels_decoded > 0
    assert second.work == SearchStats()
    assert second.to_json() == first.to_json()


async def test_moved_files_are_only_hashed(server: Server, album: Path, tmp_path: Path) -> None:
    first = await find(server, tmp_path / "store", album)
    os.rename(album, tmp_path / "moved")
    second = await find(server, tmp_path / "store", tmp_path / "moved")
    assert second.work == SearchStats(files_read=first.work.files_read)
    assert len(second.groups) == len(first.groups)


async def test_a_new_photo_touches_only_its_own_group(server: Server, album: Path, tmp_path: Path) -> None:
    before = {group.keep: group for group in (await find(server, tmp_path / "store", album)).groups}
    with Image.open(album / "coffee.jpg") as image:
        image.save(album / "new.jpg", quality=70)
    report = await find(server, tmp_path / "store", album)
    work = report.work
    more = {"pixels_decoded": work.pixels_decoded, "aligned": work.aligned}
    assert work == SearchStats(files_read=1, decoded=1, embedded=1, keypoints=1, **more)
    assert work.aligned >= 1
    after = {group.keep: group for group in report.groups}
    (grown,) = [keep for keep in after if before.get(keep) != after[keep]]
    assert grown == str(album / "coffee.jpg")
    assert str(album / "new.jpg") in {member.path for member in after[grown].members}


async def test_what_was_said_to_be_different_stays_apart_for_good(server: Server, album: Path, tmp_path: Path) -> None:
    report = await find(server, tmp_path / "store", album)
    group = next(group for group in report.groups if Path(group.keep).stem == "astronaut")
    paths = [member.path for member in group.members]
    assert main(["decide", "keep-all", *paths, "--store", str(tmp_path / "store")]) == 0
    for path in paths:  # by their content: names and places do not matter
        os.rename(path, tmp_path / "album" / f"renamed {os.path.basename(path)}")
    later = await find(server, tmp_path / "store", album)
    assert not any("astronaut" in member.path for group in later.groups for member in group.members)
    assert len(later.groups) == len(report.groups) - 1

    shutil.copyfile(album / f"renamed {os.path.basename(paths[0])}", album / "a new copy of it.jpg")
    again = await find(server, tmp_path / "store", album)
    assert len(again.groups) == len(report.groups)
    renamed = str(album / f"renamed {os.path.basename(paths[0])}")
    assert main(["decide", "forget", renamed, "--store", str(tmp_path / "store")]) == 0
    assert max(len(group.members) for group in (await find(server, tmp_path / "store", album)).groups) >= 4


async def test_two_searches_at_once_agree(server: Server, album: Path, tmp_path: Path) -> None:
    one, other = await asyncio.gather(find(server, tmp_path / "store", album), find(server, tmp_path / "store", album))
    assert one.to_json() == other.to_json()
    assert (await find(server, tmp_path / "store", album)).work == SearchStats()


def test_a_killed_search_goes_on_where_it_was(server: Server, tmp_path: Path) -> None:
    """Kill it at its third write to the store; what was written before is not done again."""
    album = tmp_path / "album"
    originals = write_originals(album)
    for number in range(5):  # about 120 files of different bytes
        for path in originals:
            (album / f"{number} {path.name}").write_bytes(path.read_bytes() + bytes(number + 1))
    script = (
        "import asyncio, os, signal, sys\n"
        "from clip_client import ClipClient\n"
        "from clip_client.dedup import Store, scan\n"
        "from clip_client.dedup.features import collect\n"
        "collect._SAVE_EVERY_S = 0.0\n"
        "writes, replace = 0, os.replace\n"
        "def counted(*paths):\n"
        "    global writes\n"
        "    replace(*paths)\n"
        "    writes += 1\n"
        "    writes < 6 or os.kill(os.getpid(), signal.SIGKILL)\n"
        "os.replace = counted\n"
        "async def main(album, url, folder):\n"
        "    async with ClipClient(url) as clip:\n"
        "        with Store(folder) as store:\n"
        "            await collect.collect_features(clip, scan(album).files, store, lambda *_: None)\n"
        "asyncio.run(main(*sys.argv[1:]))\n"
    )
    arguments = [str(album), server.grpc_url, str(tmp_path / "store")]
    killed = subprocess.run([sys.executable, "-c", script, *arguments], check=False, capture_output=True)
    assert killed.returncode == -signal.SIGKILL
    report = asyncio.run(find(server, tmp_path / "store", album))
    assert 0 < report.work.decoded < 120
    assert report.compared + len(report.failed) == 120


async def test_bursts_are_their_own_class(server: Server, album: Path, tmp_path: Path) -> None:
    with Image.open(album / "coffee.jpg") as image:
        for name, frame, fraction in (("1.png", image.rotate(-0.2), "10"), ("2.png", image.rotate(0.2), "60")):
            exif = image.getexif()
            exif[0x010F] = "Camera"
            exif.get_ifd(0x8769).update({0x9003: "2024:05:01 12:00:00", 0x9291: fraction})
            frame.save(album / name, exif=exif)
    shutil.copytree(album, album / "backup", ignore=shutil.ignore_patterns("*.jpg"))
    report = await find(server, tmp_path / "store", album)
    (group,) = [group for group in report.groups if Path(group.keep).name in ("1.png", "2.png")]
    moments = {Path(member.path).name: member.other_shot for member in group.members}
    assert {moments["1.png"], moments["2.png"]} == {"", BURST}
    assert moments["coffee, half size.jpg"] == ""
    # The other frame is another picture than the one that is kept, and its copy is a copy of it.
    frames = {member.path for member in group.members if member.other_shot}
    (copy,) = [member for member in group.members if member.copy_of and member.other_shot]
    assert {copy.path, copy.copy_of} == frames
    assert copy.copy_tier == EXACT
    assert copy.why.endswith(f"same bytes as {copy.copy_of}")


async def test_photos_of_a_reference_folder_are_kept(server: Server, album: Path, tmp_path: Path) -> None:
    reference = tmp_path / "reference"
    reference.mkdir()
    with Image.open(album / "coffee.jpg") as image:
        image.resize((image.width // 2, image.height // 2)).save(reference / "small.jpg")
    report = await find(server, tmp_path / "store", album, references=[reference])
    group = next(group for group in report.groups if "small.jpg" in group.keep)
    assert group.reason == "in a reference folder"
    assert group.members[0].photo.is_reference


def test_apply_undo_and_purge(
    server: Server, album: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = {path.name: path.read_bytes() for path in album.iterdir()}
    store = ["--store", str(tmp_path / "store")]
    search = ["dedup", str(album), "--url", server.grpc_url, *store]
    assert main([*search, "--dry-run"]) == 0
    announced = re.search(r"--apply would move (\d+) photos", capsys.readouterr().err)
    assert announced
    assert int(announced[1]) == 7  # two of the same bytes, and the five that were saved again
    assert {path.name: path.read_bytes() for path in album.iterdir()} == before

    assert main([*search, "--apply"]) == 0
    moved = set(before) - {path.name for path in album.iterdir()}
    assert len(moved) == int(announced[1])
    assert main(search) == 0  # what lies in the quarantine is not found again
    said = capsys.readouterr()
    assert QUARANTINE_NAME not in said.out + said.err.split("undo --run")[1]
    assert main(["undo", "--list", *store]) == 0
    assert main(["undo", *store]) == 0
    assert {path.name: path.read_bytes() for path in album.iterdir()} == before

    assert main([*search, "--apply"]) == 0
    assert main(["purge", *store]) == 1  # standard input is closed
    assert "use --yes" in capsys.readouterr().err
    monkeypatch.setattr("send2trash.send2trash", os.unlink)
    assert main(["purge", "--yes", *store]) == 0
    assert set(before) - {path.name for path in album.iterdir()} == moved
    with Store(tmp_path / "store") as opened:
        assert opened.journal.entries((State.MOVED,)) == []


def test_similarity_of_random_weights_moves_nothing(
    server: Server, album: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = ["--store", str(tmp_path / "store")]
    arguments = ["dedup", str(album), "--url", server.grpc_url, *store, "--apply", "--act-on", "similar"]
    assert main(arguments) == 2
    assert "are random" in capsys.readouterr().err
    assert not (album / QUARANTINE_NAME).exists()
