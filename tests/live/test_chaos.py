"""A real server, killed several times under long streams: every image arrives once, and no caller sees an error."""

from __future__ import annotations

import asyncio
import json
import urllib.request
from typing import TYPE_CHECKING, Any, Final

import psutil

from clip_client import ClipClient
from preprocess_ensemble.testing.sample_photos import coarse_noise
from preprocess_ensemble.testing.server import free_port, serving

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from preprocess_ensemble.testing.server import Server

IMAGES: Final = 1_000
"""In each of two streams, one ordered and one unordered."""
PICTURES: Final = 40
IN_FLIGHT: Final = 64
"""Images taken ahead: fewer than between two kills, so the server is back before it is killed again."""
SERVER_DIES_AT: Final = (200, 400, 600)
STUB_DIES_AT: Final = 800


def _triton(server: Server) -> psutil.Process:
    (triton,) = psutil.Process(server.process.pid).children()
    return triton


def _stub(server: Server) -> psutil.Process:
    return next(child for child in _triton(server).children() if "/clip_preprocess/" in " ".join(child.cmdline()))


def _report(port: int) -> dict[str, Any]:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz", timeout=10) as response:
        report: dict[str, Any] = json.load(response)
        return report


async def test_nothing_is_lost_or_doubled_while_the_server_is_killed(tiny_repository: Path) -> None:
    files = coarse_noise(PICTURES)
    port = free_port()
    options = ("--health-port", str(port), "--canary-interval-s", "0.5")
    with serving(tiny_repository, *options) as server:
        async with ClipClient(server.grpc_url, timeout_s=60, transfer="original") as clip:
            expected = (await clip.embed(files)).vectors
            processes_to_kill: dict[int, Callable[[Server], psutil.Process]] = dict.fromkeys(SERVER_DIES_AT, _triton)
            processes_to_kill[STUB_DIES_AT] = _stub

            async def stream(*, ordered: bool, deaths: bool) -> list[int]:
                indices = []
                source = (files[number % PICTURES] for number in range(IMAGES))
                async for item in clip.embed_stream(source, ordered=ordered, max_in_flight=IN_FLIGHT):
                    assert item.error is None
                    assert item.vector is not None
                    assert int((expected @ item.vector).argmax()) == item.index % PICTURES
                    indices.append(item.index)
                    if deaths and len(indices) in processes_to_kill:
                        processes_to_kill[len(indices)](server).kill()
                return indices

            in_order, as_they_came = await asyncio.gather(
                stream(ordered=True, deaths=True), stream(ordered=False, deaths=False)
            )
            assert in_order == list(range(IMAGES))
            assert sorted(as_they_came) == list(range(IMAGES))
            assert clip.stats().requests_retried >= len(processes_to_kill)
            assert clip.stats().requests_failed == 0
        report = await asyncio.to_thread(_report, port)
        assert report["restarts"] >= len(processes_to_kill)
