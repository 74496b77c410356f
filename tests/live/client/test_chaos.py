"""A real server, and later one of its processes, is killed under long streams: all images are embedded."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Final

import pytest

from benchmarks.fixtures.sample_photos import coarse_noise
from benchmarks.fixtures.server import serving
from clip_client import ClipClient
from preprocess_ensemble.contract import DEFAULT_NAMES

IMAGES: Final = 400
"""Images in each of two streams, one ordered and one unordered."""
PICTURES: Final = 40
IN_FLIGHT: Final = 64
"""Images taken ahead: fewer than between two kills, so the server is back before it is killed again."""
SERVER_DIES_AT: Final = 120
STUB_DIES_AT: Final = 260


@pytest.mark.long
async def test_nothing_is_lost_or_doubled_while_the_server_is_killed(tiny_repository: Path) -> None:
    files = coarse_noise(PICTURES)
    options = ("--canary-interval-s", "0.5", "--frozen-after-s", "1", "--canary-timeout-s", "2")
    with serving(tiny_repository, *options) as server:
        async with ClipClient(server.grpc_url, timeout_s=60, transfer="original") as clip:
            expected = (await clip.embed(files)).vectors

            async def stream(*, ordered: bool, deaths: bool) -> list[int]:
                indices = []
                source = (files[number % PICTURES] for number in range(IMAGES))
                async for item in clip.embed_stream(source, ordered=ordered, max_in_flight=IN_FLIGHT):
                    assert item.vector is not None
                    assert int((expected @ item.vector).argmax()) == item.index % PICTURES
                    indices.append(item.index)
                    if deaths and len(indices) == SERVER_DIES_AT:
                        server.triton.kill()
                    if deaths and len(indices) == STUB_DIES_AT:
                        server.stub(DEFAULT_NAMES.preprocess).kill()
                return indices

            in_order, as_they_came = await asyncio.gather(
                stream(ordered=True, deaths=True), stream(ordered=False, deaths=False)
            )
            assert in_order == sorted(as_they_came) == list(range(IMAGES))
            assert clip.stats().requests_retried >= 2
            assert clip.stats().requests_failed == 0
