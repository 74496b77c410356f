"""A folder of photos, searched or embedded by the systems that ``first_scan`` is compared with."""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from benchmarks.harness.meters import Stopwatch
from benchmarks.load.adapters import ADAPTERS
from benchmarks.peers.in_process import Target
from benchmarks.peers.services import venv_python

if TYPE_CHECKING:
    from benchmarks.peers.services import Service

CALLERS: Final = 32
"""Requests that infinity gets at once, each with one file: as many as its largest batch."""


def embed_with_infinity(service: Service, repository: Path, photos: Path) -> dict[str, Any]:
    """Send every photo as it is to infinity, which returns vectors and knows no groups."""
    return asyncio.run(_embed_with_infinity(service, repository, sorted(photos.iterdir())))


async def _embed_with_infinity(service: Service, repository: Path, paths: Sequence[Path]) -> dict[str, Any]:
    open_infinity = ADAPTERS["infinity"]
    target = Target(url=service.url, files=[paths[0].read_bytes()], repository=repository)
    async with open_infinity(target) as embed:
        await embed([0])  # its first request is slower
    stopwatch = Stopwatch(service.process_id)
    callers = asyncio.Semaphore(CALLERS)
    async with open_infinity(replace(target, files=[path.read_bytes() for path in paths])) as embed:

        async def embed_one(row: int) -> None:
            async with callers:
                await embed([row])

        await asyncio.gather(*map(embed_one, range(len(paths))))
    return {"photos": len(paths), **stopwatch.per_photo(len(paths))}


def search_with_fastdup(work: Path, model: Sequence[str], photos: Path) -> dict[str, Any]:
    """Search with fastdup's defaults, which include statistics of each photo.

    ``work`` is a folder for its files. ``model`` is the file and the dimension of an ONNX model; without them, fastdup
    uses a small network of its own. Its pixels are its own in either case.
    """
    script = Path(__file__).with_name("fastdup_search.py")
    subprocess.run([venv_python("fastdup"), script, photos, work, *model], check=True, stdout=subprocess.DEVNULL)
    found: dict[str, Any] = json.loads((work / "result.json").read_text(encoding="utf-8"))
    return found
