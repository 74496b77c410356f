"""The search for duplicates through a real server.

The small CLIP's weights are random. On the sample photos it keeps copies, crops by 2 % included, above 0.9987 and
different photos below 0.9975, so the default for random weights must find exactly the families.
"""

import asyncio
import random
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.fixtures.sample_photos import write_with_copies
from benchmarks.fixtures.server import Server
from clip_client import ClipClient
from clip_client.dedup import DuplicateReport, Store, find_duplicates
from clip_client.dedup.types import SearchStats


async def find(server: Server, *paths: Path, **options: Any) -> DuplicateReport:
    async with ClipClient(server.grpc_url) as clip:
        return await find_duplicates(clip, paths, **options)


async def test_a_search_finds_the_families_and_nothing_else(server: Server, tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    families = write_with_copies(tmp_path / "photos")
    files = [path for family in families.values() for path in family]
    random.Random(0).shuffle(files)
    with Store(tmp_path / "store") as store:
        found = await find(server, tmp_path / "photos", store=store)
        again = await find(server, *files, store=store)
    assert {frozenset(member.path for member in group.members) for group in found.groups} == {
        frozenset(map(str, family)) for family in families.values() if len(family) > 1
    }
    assert (found.failed, found.compared) == ((), len(files))
    tiers = {Path(group.keep).stem: group.tier for group in found.groups}
    assert [tiers[stem] for stem in ("coins", "coffee", "motorcycle_left")] == ["exact", "re-encoded", "edited"]
    for group in found.groups:
        pixels = [member.photo.width * member.photo.height for member in group.members]
        assert pixels[0] == max(pixels)
        assert group.members[0].similarity == 1.0
        assert 0.998 <= group.min_similarity <= min(member.similarity for member in group.members)
    assert again.work == SearchStats()
    assert again.to_mapping() == found.to_mapping()


async def test_a_search_can_be_cancelled(server: Server, photos: Path) -> None:
    async with ClipClient(server.grpc_url) as clip:
        searching = asyncio.create_task(find_duplicates(clip, [photos]))
        await clip.model()
        searching.cancel()
        with pytest.raises(asyncio.CancelledError):
            await searching
        assert (await clip.embed([photos / "coffee.jpg"])).errors == {}


KILLED_SEARCH = """
import asyncio, os, signal, sys
from clip_client import ClipClient
from clip_client.dedup import Store, scan
from clip_client.dedup.features import collect
collect._SAVE_EVERY_S = 0.0
writes, replace = 0, os.replace
def counted(*paths):
    global writes
    replace(*paths)
    writes += 1
    writes < 6 or os.kill(os.getpid(), signal.SIGKILL)
os.replace = counted
async def main(album, url, folder):
    async with ClipClient(url) as clip:
        with Store(folder) as store:
            await collect.collect_features(clip, scan(album).files, store, lambda *_: None)
asyncio.run(main(*sys.argv[1:]))
"""


def test_a_killed_search_goes_on_where_it_was(server: Server, photos: Path, tmp_path: Path) -> None:
    """Kill it at a write to the store; what was written before is not done again."""
    album = tmp_path / "album"
    album.mkdir()
    for number in range(5):  # 100 files of different bytes
        for path in photos.iterdir():
            (album / f"{number} {path.name}").write_bytes(path.read_bytes() + bytes(number + 1))
    arguments = [str(album), server.grpc_url, str(tmp_path / "store")]
    killed = subprocess.run([sys.executable, "-c", KILLED_SEARCH, *arguments], check=False, capture_output=True)
    assert killed.returncode == -signal.SIGKILL
    with Store(tmp_path / "store") as store:
        report = asyncio.run(find(server, album, store=store, verify=False))
    assert 0 < report.work.decoded < 100
    assert (report.compared, report.failed) == (100, ())
