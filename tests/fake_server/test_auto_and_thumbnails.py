"""How ``auto:`` chooses, and thumbnails that are sent to a server."""

from __future__ import annotations

import asyncio
import io
import threading
from typing import Any, ClassVar

import numpy as np
import pytest
from PIL import Image

from clip_client import ClipClient, ModelNotReady, ProtocolMismatch, Unauthorized
from clip_client.testing import FakeTriton
from tests.fixtures.networks import InMemoryClient, Relay
from tests.fixtures.simulated_time import simulate

NOISE = np.random.default_rng(0).integers(0, 256, (300, 400, 3), dtype=np.uint8)


async def test_auto_uses_a_server_that_responds_even_an_unhealthy_one(caplog: pytest.LogCaptureFixture) -> None:
    async with FakeTriton(token="secret") as server:
        async with ClipClient(f"auto:localhost:{server.port}", token="wrong") as clip:
            with pytest.raises(Unauthorized):
                await clip.embed(b"x")
        server.token = None
        server.ready_models.clear()
        async with ClipClient(f"auto:localhost:{server.port}") as clip:
            with pytest.raises((ModelNotReady, ProtocolMismatch)):
                await clip.embed(b"x")
            assert not clip.is_local
    # Only this package's records: gRPC may log something about a call of an earlier test.
    assert not [record for record in caplog.records if record.name.startswith("clip_client")]


async def test_concurrent_calls_resolve_auto_once() -> None:
    async with FakeTriton() as server, Relay(server.port) as relay:
        url = f"auto:{relay.url}"
        async with ClipClient(url) as clip:
            assert repr(clip) == f"<ClipClient {url} [open]>"
            await asyncio.gather(clip.health(), *(clip.embed(b"%d" % number) for number in range(5)))
            assert repr(clip).startswith(f"<ClipClient {relay.url} [open] model=fake")
        assert relay.connections == 2  # one to see who is there, and the one that stays


async def test_auto_does_not_hide_another_service() -> None:
    async def greet(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    listener = await asyncio.start_server(greet, "127.0.0.1", 0)
    async with listener, ClipClient(f"auto:127.0.0.1:{listener.sockets[0].getsockname()[1]}", timeout_s=20) as clip:
        with pytest.raises(ProtocolMismatch, match="--grpc-port"):
            await clip.model()
        assert not clip.is_local


class Silent(FakeTriton):
    async def ServerLive(self, request: Any, context: Any) -> Any:
        await asyncio.Event().wait()


def test_auto_ignores_a_server_that_does_not_respond() -> None:
    async def run() -> None:
        here = FakeTriton()
        async with InMemoryClient({"localhost": Silent(), "": here}, "auto:") as clip:
            await clip.embed(b"a")
            assert asyncio.get_running_loop().time() == pytest.approx(5)
            assert clip.is_local
            assert here.images_embedded == 1
            assert [channel.closed for channel in clip.transports.channels["localhost"]] == [True]

    simulate(run())


class Recorded(io.BytesIO):
    """Notes which thread reads it."""

    readers: ClassVar[set[threading.Thread]] = set()

    def read(self, size: int | None = -1) -> bytes:
        self.readers.add(threading.current_thread())
        return super().read(size)


async def test_thumbnails_are_made_off_the_loop() -> None:
    buffer = io.BytesIO()
    Image.fromarray(NOISE).save(buffer, "PNG")
    async with FakeTriton() as server, ClipClient(server.url) as clip:
        batch = await clip.embed([NOISE, Image.fromarray(NOISE), buffer.getvalue(), Recorded(buffer.getvalue())])
        batch.raise_for_errors()
        images = [image for request in server.requests for image in request.images]
    assert Recorded.readers
    assert threading.current_thread() not in Recorded.readers
    assert len(set(images)) == 1
    with Image.open(io.BytesIO(images[0])) as thumbnail:
        assert (thumbnail.format, thumbnail.size) == ("JPEG", (224, 224))


class OddlyPreprocessed(FakeTriton):
    def passport(self) -> dict[str, Any]:
        return {**super().passport(), "preprocess": {"size": 224}}


async def test_unknown_preprocessing_fails_the_call_but_only_with_thumbnails() -> None:
    async with OddlyPreprocessed() as server:
        async with ClipClient(server.url) as clip:
            assert len(await clip.embed(b"small")) == 1
            with pytest.raises(ProtocolMismatch, match="transfer='original'"):
                await clip.embed(NOISE)
        async with ClipClient(server.url, transfer="original") as clip:
            assert not (await clip.embed(NOISE)).errors
