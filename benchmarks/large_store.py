"""What searches against a store of a million photos cost: ``python -m benchmarks.large_store STORE FILES [SEARCHED]``.

The store is filled with photos that do not exist: their times, hashes and vectors are random, and one vector in twenty
is a copy of another. The store knows every file, so nothing is opened or embedded, and a stand-in takes the place of
the client: this measures the store and the comparison, without any model. Each search runs in a process of its own, for
its peak of memory.
"""

from __future__ import annotations

import asyncio
import json
import resource
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from benchmarks.grouping import DIMENSION, THRESHOLD, planted
from clip_client.dedup import Scan, Store, find_duplicates
from clip_client.dedup.looks import Look
from clip_client.dedup.moments import Moment
from clip_client.dedup.scan import PhotoFile

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

_VECTOR_ID: Final = "stand-in"


@dataclass(frozen=True, kw_only=True)
class _Model:
    id: str = "stand-in/random:0@00000000"
    vector_id: str = _VECTOR_ID
    dimension: int = DIMENSION


class _StandIn:
    """A client that has nothing to do, because the store knows everything."""

    async def model(self) -> _Model:
        return _Model()

    async def embed_stream(self, images: AsyncIterator[Any], *, ordered: bool) -> AsyncIterator[Any]:
        async for image in images:
            yield AssertionError(f"{image} is in the store, and was embedded again")


def photo_file(number: int) -> PhotoFile:
    """Return one of the files that the store knows; there are none on the disk."""
    return PhotoFile(f"/photos/{number // 1000:04d}/IMG_{number:07d}.jpg", 2**21, number)


def fill(folder: Path, files: int) -> None:
    """Make a store of ``files`` photos, each a content of its own."""
    random = np.random.default_rng(0)
    vectors, _ = planted(files, "even")
    keys = [random.bytes(32) for _ in range(files)]
    hashes = random.integers(0, 2**64, files, dtype=np.uint64)
    with Store(folder) as store:
        store.files.remember(zip(map(photo_file, range(files)), (key.hex() for key in keys), strict=True))
        looks, rows = store.looks(), store.vectors(_VECTOR_ID, DIMENSION)
        for number, key in enumerate(keys):
            moment = Moment(taken_ms=number * 100_000, has_sub_second=True, camera="Canon Canon EOS R5", fields=60)
            look = Look(width=4000, height=3000, perceptual_hash=int(hashes[number]), is_scaled=True, moment=moment)
            looks.add({"sha256": key, **look.to_row()})
            rows.add({"sha256": key, "vector": vectors[number], "code": "", "message": ""})
        for shelf in (looks, rows):
            shelf.flush()
            shelf.compact()


def search(folder: Path, files: int, searched: int) -> dict[str, Any]:
    """Search ``searched`` of the files, once, in this process."""
    some = tuple(map(photo_file, range(0, files, files // searched)))[:searched]
    comparing: list[float] = []

    def note(what: str, *_: object) -> None:
        if what == "comparing":
            comparing.append(time.perf_counter())

    before_mb = _peak_mb()
    started = time.perf_counter()
    with Store(folder) as store:
        clip: Any = _StandIn()
        scan = Scan(files=some, failed=())
        report = asyncio.run(find_duplicates(clip, scan, threshold=THRESHOLD, store=store, on_progress=note))
    assert report.compared == searched
    return {
        "files": files,
        "searched": searched,
        "scan_seconds": comparing[0] - started,
        "seconds": time.perf_counter() - started,
        "peak_mb": _peak_mb(),
        "peak_mb_before": before_mb,
        "groups": len(report.groups),
    }


def search_in_own_process(folder: Path, files: int, searched: int) -> dict[str, Any]:
    """Run :func:`search` where no other search has left memory behind."""
    command = [sys.executable, "-m", "benchmarks.large_store", str(folder), str(files), str(searched)]
    answer: dict[str, Any] = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    return answer


def _peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3


if __name__ == "__main__":
    _, at, count, *part = sys.argv
    if part:
        print(json.dumps(search(Path(at), int(count), int(part[0]))))
    else:
        fill(Path(at), int(count))
