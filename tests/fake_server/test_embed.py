"""``embed`` against a real gRPC server: order, packing, image failures, the handshake."""

from __future__ import annotations

import asyncio
import io
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from PIL import Image

from clip_client import ClientConfig, ClipClient, ImageError, ImageErrors, ProtocolMismatch
from clip_client.testing import FakeTriton, Reply, fake_vector
from preprocess_ensemble.contract import ENSEMBLE

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path


def names(count: int) -> list[bytes]:
    return [b"image %d" % number for number in range(count)]


async def test_vectors_come_in_input_order_whatever_the_source() -> None:
    images = names(100)

    def generator() -> Iterator[bytes]:
        yield from images

    async def asynchronous() -> AsyncIterator[bytes]:
        for image in images:
            yield image

    async with FakeTriton() as server, ClipClient(server.url) as clip:
        expected = np.stack([server.vector(image) for image in images])
        for source in (images, tuple(images), iter(images), generator(), asynchronous()):
            batch = await clip.embed(source)
            assert batch.vectors.dtype == np.float32
            assert (batch.vectors == expected).all()
            assert batch.errors == {}
            assert batch.model_id == "fake/random:0@00000000"
            assert (
                batch.vector_id
                == clip.vector_id
                == "fake/random:0@00000000|shortest-bicubic-224x224|thumb-jpeg-q90-444"
            )
            batch.raise_for_errors()


async def test_every_kind_of_image(tmp_path: Path) -> None:
    path = tmp_path / "a.jpg"
    path.write_bytes(b"file content")
    pixels = np.arange(36, dtype=np.uint8).reshape(3, 4, 3)
    async with FakeTriton() as server, ClipClient(server.url) as clip:
        batch = await clip.embed([path, str(path), b"bytes", io.BytesIO(b"stream"), Image.fromarray(pixels), pixels])
        assert not batch.errors
        sent = [image for request in server.requests for image in request.images]
        assert {b"file content", b"bytes", b"stream"} <= set(sent)
        assert (batch.vectors[0] == server.vector(b"file content")).all()
        assert (batch.vectors[4] == batch.vectors[5]).all()
        for single in (path, b"bytes", pixels, io.BytesIO(b"stream")):
            assert len(await clip.embed(single)) == 1
        assert len(await clip.embed(pixels[None])) == 1


async def test_nothing_to_embed() -> None:
    async with FakeTriton(dimension=5) as server, ClipClient(server.url) as clip:
        batch = await clip.embed([])
        assert batch.vectors.shape == (0, 5)
        assert server.requests == []


async def test_an_object_that_is_not_iterable_is_a_type_error() -> None:
    async with FakeTriton() as server, ClipClient(server.url) as clip:
        with pytest.raises(TypeError, match="int"):
            await clip.embed(5)  # type: ignore[arg-type]


async def test_a_bad_image_does_not_affect_its_batch(tmp_path: Path) -> None:
    async with FakeTriton() as server, ClipClient(server.url) as clip:
        server.script(Reply(row_errors={1: (4, "The file ends before the picture does.")}))
        batch = await clip.embed([b"a", b"b", b"c"])
        assert list(batch.errors) == [1]
        error = batch.errors[1]
        assert (error.code, error.index, error.source) == ("TRUNCATED", 1, None)
        assert error.request_id == server.requests[0].request_id
        assert np.isnan(batch.vectors[1]).all()
        assert (batch.vectors[2] == server.vector(b"c")).all()
        with pytest.raises(ImageError, match="TRUNCATED"):
            batch.raise_for_errors()

        missing = tmp_path / "missing.jpg"
        batch = await clip.embed([missing, b"", None, b"d"])  # type: ignore[list-item]
        assert {index: error.code for index, error in batch.errors.items()} == {
            0: "UNREADABLE",
            1: "EMPTY",
            2: "NOT_AN_IMAGE",
        }
        assert batch.errors[0].source == str(missing)
        assert np.isnan(batch.vectors[:3]).all()
        assert (batch.vectors[3] == server.vector(b"d")).all()
        with pytest.raises(ImageErrors, match="and 2 more"):
            batch.raise_for_errors()


async def test_an_unknown_status_is_an_image_error() -> None:
    async with FakeTriton() as server, ClipClient(server.url) as clip:
        server.script(Reply(row_errors={0: (99, "Something new.")}))
        assert (await clip.embed(b"a")).errors[0].code == "INTERNAL"


async def test_requests_keep_to_the_batch_size_and_the_byte_limit() -> None:
    config = ClientConfig(max_request_bytes=1000)
    async with FakeTriton(max_batch_size=7) as server, ClipClient(server.url, config=config) as clip:
        images = [b"x" * 300, b"y" * 5000, *names(60)]
        await clip.embed(images)
        sizes = [len(request.images) for request in server.requests]
        assert max(sizes) <= 7
        assert sum(sizes) == len(images)
        for request in server.requests:
            assert sum(map(len, request.images)) <= 1000 or len(request.images) == 1


async def test_the_fake_keeps_the_last_requests_only() -> None:
    async with FakeTriton() as server, ClipClient(server.url) as clip:
        for image in names(150):
            await clip.embed(image)
        assert [request.images for request in server.requests] == [(image,) for image in names(150)[50:]]
        assert server.requests_received == 150


async def test_calls_that_wait_share_requests() -> None:
    async with FakeTriton() as server, ClipClient(server.url) as clip:
        await clip.model()
        batches = await asyncio.gather(*(clip.embed(image) for image in names(64)))
        assert len(server.requests) < 32
        for image, batch in zip(names(64), batches, strict=True):
            assert (batch.vectors[0] == server.vector(image)).all()


async def test_one_handshake_for_all() -> None:
    async with FakeTriton() as server, ClipClient(server.url) as clip:
        with pytest.raises(RuntimeError, match="not known yet"):
            _ = clip.vector_id
        assert server.handshakes == 0
        await asyncio.gather(*(clip.embed(image) for image in names(20)), clip.model())
        await clip.embed(b"later")
        assert server.handshakes == 1
        assert "model=fake/" in repr(clip)


async def test_a_cancelled_caller_does_not_take_the_handshake_from_the_others() -> None:
    async with FakeTriton() as server, ClipClient(server.url) as clip:
        first, second = asyncio.create_task(clip.model()), asyncio.create_task(clip.model())
        await asyncio.sleep(0)
        first.cancel()
        assert (await second).dimension == 8
        with pytest.raises(asyncio.CancelledError):
            await first
        assert server.handshakes == 1


@pytest.mark.parametrize("fingerprint", [(1, 2), (1, -7654321), (1234567, 2)])
async def test_another_model_is_noticed_and_the_next_call_uses_it(fingerprint: tuple[int, int]) -> None:
    async with FakeTriton() as server, ClipClient(server.url) as clip:
        await clip.embed(b"a")
        server.fingerprint, server.model = fingerprint, "other"
        with pytest.raises(ProtocolMismatch, match="serve fake/random:0"):
            await clip.embed(b"a")
        batch = await clip.embed(b"a")
        assert batch.model_id.startswith("other/")
        assert server.handshakes == 2


@pytest.mark.parametrize("dropped", ["embedding", "status", "error", "fingerprint"])
async def test_an_answer_with_a_tensor_missing(dropped: str) -> None:
    async with FakeTriton() as server, ClipClient(server.url) as clip:
        server.script(Reply(drop_outputs=frozenset({dropped})))
        with pytest.raises(ProtocolMismatch, match="contract"):
            await clip.embed(b"a")


class Garbled(FakeTriton):
    texts = b""

    async def ModelInfer(self, request: Any, context: Any) -> Any:
        response = await super().ModelInfer(request, context)
        if request.model_name == ENSEMBLE:
            response.raw_output_contents[[output.name for output in response.outputs].index("error")] = self.texts
        return response


@pytest.mark.parametrize("texts", [b"", b"\1\0", b"\4\0\0\0abc", b"\1\0\0\0a" * 2])
async def test_an_answer_with_damaged_texts(texts: bytes) -> None:
    async with Garbled() as server, ClipClient(server.url) as clip:
        server.texts = texts
        with pytest.raises(ProtocolMismatch, match="contract"):
            await clip.embed(b"a")


async def test_vectors_of_the_wrong_length() -> None:
    async with FakeTriton() as server, ClipClient(server.url) as clip:
        await clip.model()
        server.dimension, server.vector = 9, lambda image: fake_vector(image, 9)
        with pytest.raises(ProtocolMismatch, match="9 numbers"):
            await clip.embed(b"a")


async def test_a_client_outside_of_async_with() -> None:
    clip = ClipClient("localhost:1")
    with pytest.raises(RuntimeError, match="async with"):
        await clip.embed(b"a")
    async with FakeTriton() as server:
        async with ClipClient(server.url) as clip:
            assert "[open]" in repr(clip)
        assert "[closed]" in repr(clip)
        with pytest.raises(RuntimeError, match="async with"):
            await clip.embed(b"a")
        with pytest.raises(RuntimeError, match="once"):
            async with clip:
                pass


async def test_the_bytes_of_one_image_count_as_one_image() -> None:
    async with FakeTriton(dimension=512) as server, ClipClient(server.url, transfer="original") as clip:
        for image in (b"x" * 100_000, bytearray(b"x" * 100_000)):
            vectors = (await clip.embed(image)).vectors
            assert vectors.shape == (1, 512)
            assert vectors.base is None or vectors.base.shape == (1, 512)
