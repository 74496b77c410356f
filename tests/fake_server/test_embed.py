"""``embed`` against a real gRPC server: order, packing, image failures, the handshake."""

import asyncio
import io
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from clip_client import ClipClient, ImageError, ItemErrors, ProtocolMismatch
from clip_client.testing import FakeTriton, Reply, fake_vector
from preprocess_ensemble.contract import DEFAULT_NAMES
from tests.fixtures.fakes import InMemoryClient, asynchronous, images

NOISE = np.random.default_rng(0).integers(0, 256, (300, 400, 3), dtype=np.uint8)
VECTOR_ID = "fake/random:0@00000000|shortest-bicubic-224x224|thumb-jpeg-q90-444"


async def test_vectors_come_in_input_order_whatever_the_source(server: FakeTriton, clip: ClipClient) -> None:
    files = images(100)
    expected = np.stack([server.vector(image) for image in files])
    for source in (files, tuple(files), iter(files), (image for image in files), asynchronous(files)):
        batch = await clip.embed(source)
        assert batch.vectors.dtype == np.float32
        assert (batch.vectors == expected).all()
        assert batch.errors == {}
        assert (batch.model_id, batch.vector_id, clip.vector_id) == ("fake/random:0@00000000", VECTOR_ID, VECTOR_ID)
        batch.raise_for_errors()


async def test_every_kind_of_image_alone_and_among_others(server: FakeTriton, clip: ClipClient, tmp_path: Path) -> None:
    path = tmp_path / "a.jpg"
    path.write_bytes(b"file content")
    pixels = np.arange(36, dtype=np.uint8).reshape(3, 4, 3)
    batch = await clip.embed([path, str(path), b"bytes", io.BytesIO(b"stream"), Image.fromarray(pixels), pixels])
    assert not batch.errors
    assert batch.sources == (str(path), str(path), None, None, None, None)
    sent = [image for request in server.requests for image in request.images]
    assert {b"file content", b"bytes", b"stream"} <= set(sent)
    assert (batch.vectors[0] == server.vector(b"file content")).all()
    assert (batch.vectors[4] == batch.vectors[5]).all()
    for single in (path, b"bytes", bytearray(b"bytes"), pixels, io.BytesIO(b"stream"), pixels[None]):
        vectors = (await clip.embed(single)).vectors
        assert vectors.shape == (1, 8)
        assert vectors.base is None or vectors.base.shape == (1, 8)
    assert (await clip.embed([])).vectors.shape == (0, 8)
    with pytest.raises(TypeError, match="int"):
        await clip.embed(5)  # type: ignore[arg-type]


class Recorded(io.BytesIO):
    reader: threading.Thread | None = None

    def read(self, size: int | None = -1) -> bytes:
        self.reader = threading.current_thread()
        return super().read(size)


async def test_thumbnails_are_made_off_the_loop(server: FakeTriton, clip: ClipClient) -> None:
    buffer = io.BytesIO()
    Image.fromarray(NOISE).save(buffer, "PNG")
    file = Recorded(buffer.getvalue())
    batch = await clip.embed([NOISE, Image.fromarray(NOISE), buffer.getvalue(), file])
    batch.raise_for_errors()
    (sent,) = {image for request in server.requests for image in request.images}
    assert file.reader not in (None, threading.current_thread())
    with Image.open(io.BytesIO(sent)) as thumbnail:
        assert (thumbnail.format, thumbnail.size) == ("JPEG", (224, 224))


KNOWN = FakeTriton().passport()


@pytest.mark.parametrize("preprocess", [{"size": 224}, {**KNOWN["preprocess"], "resize_mode": "seam carving"}])
async def test_unknown_preprocessing_fails_the_call_but_only_with_thumbnails(preprocess: dict[str, Any]) -> None:
    server, passport = FakeTriton(), {**KNOWN, "preprocess": preprocess}
    server.passport = lambda: passport  # type: ignore[method-assign]
    async with InMemoryClient({"localhost": server}) as clip:
        assert len(await clip.embed(b"small")) == 1
        with pytest.raises(ProtocolMismatch, match="transfer='original'"):
            await clip.embed(NOISE)
    async with InMemoryClient({"localhost": server}, transfer="original") as clip:
        assert not (await clip.embed(NOISE)).errors


async def test_a_bad_image_does_not_affect_its_batch(server: FakeTriton, clip: ClipClient, tmp_path: Path) -> None:
    server.script(Reply(row_errors={1: (4, "The file ends before the picture does."), 3: (99, "Something new.")}))
    missing = tmp_path / "missing.jpg"
    batch = await clip.embed([b"a", b"b", b"c", b"d"])
    late = await clip.embed([missing, b"", None, b"d"])  # type: ignore[list-item]
    assert {index: error.code for index, error in batch.errors.items()} == {1: "TRUNCATED", 3: "INTERNAL"}
    assert [error.code for error in late.errors.values()] == ["UNREADABLE", "EMPTY", "NOT_AN_IMAGE"]
    assert (batch.errors[1].index, batch.errors[1].source, late.errors[0].source) == (1, None, str(missing))
    assert batch.errors[1].request_id == server.requests[0].request_id
    assert np.isnan(batch.vectors[[1, 3]]).all()
    assert (batch.vectors[2] == server.vector(b"c")).all()
    assert np.isnan(late.vectors[:3]).all()
    assert (late.vectors[3] == server.vector(b"d")).all()
    assert not clip.stats().servers[0].is_down
    with pytest.raises(ItemErrors, match="3 images failed, such as "):
        late.raise_for_errors()
    with pytest.raises(ImageError, match="EMPTY"):
        (await clip.embed(b"")).raise_for_errors()


@pytest.mark.parametrize("number", [np.nan, np.inf])
async def test_a_vector_that_is_not_finite_is_an_error_of_its_image(number: float) -> None:
    def vector(image: bytes) -> NDArray[np.float32]:
        return np.append(fake_vector(image, 7), np.float32(number if image == b"b" else 0))

    async with InMemoryClient({"localhost": FakeTriton(vector=vector)}) as clip:
        batch = await clip.embed([b"a", b"b", b"c"])
        stats = clip.stats()
        assert (stats.images_embedded, stats.images_failed, stats.bytes_sent) == (2, 1, 3)
    assert {index: error.code for index, error in batch.errors.items()} == {1: "INTERNAL"}
    assert "not finite" in batch.errors[1].message
    assert np.isnan(batch.vectors).all(axis=1).tolist() == [False, True, False]


async def test_the_fake_keeps_the_last_requests_only(fake: FakeTriton, near: ClipClient) -> None:
    for image in images(150):
        await near.embed(image)
    assert [request.images for request in fake.requests] == [(image,) for image in images(150)[50:]]
    assert fake.requests_received == 150


async def test_calls_that_wait_share_one_handshake_and_their_requests(server: FakeTriton, clip: ClipClient) -> None:
    with pytest.raises(RuntimeError, match="not known yet"):
        _ = clip.vector_id
    assert server.handshakes == 0
    first, second = asyncio.create_task(clip.model()), asyncio.create_task(clip.model())
    await asyncio.sleep(0)
    first.cancel()
    assert (await second).dimension == 8, "a caller that is cancelled does not take it from the others"
    with pytest.raises(asyncio.CancelledError):
        await first
    batches = await asyncio.gather(*(clip.embed(image) for image in images(64)))
    assert server.handshakes == 1
    assert len(server.requests) < 32
    assert "model=fake/" in repr(clip)
    for image, batch in zip(images(64), batches, strict=True):
        assert (batch.vectors[0] == server.vector(image)).all()


@pytest.mark.parametrize("fingerprint", [(1, 2), (1, -7654321), (1234567, 2)])
async def test_another_model_is_noticed_and_the_next_call_uses_it(
    fake: FakeTriton, near: ClipClient, fingerprint: tuple[int, int]
) -> None:
    await near.embed(b"a")
    fake.fingerprint, fake.model = fingerprint, "other"
    with pytest.raises(ProtocolMismatch, match="serve fake/random:0"):
        await near.embed(b"a")
    batch = await near.embed(b"a")
    assert batch.model_id.startswith("other/")
    assert fake.handshakes == 2


class Garbled(FakeTriton):
    garbled: tuple[str, bytes] | None = None  # an output, and what is sent as its tensor

    async def ModelInfer(self, request: Any, context: Any) -> Any:
        response = await super().ModelInfer(request, context)
        if request.model_name == DEFAULT_NAMES.image and self.garbled is not None:
            name, tensor = self.garbled
            response.raw_output_contents[[output.name for output in response.outputs].index(name)] = tensor
        return response


@pytest.mark.parametrize("broken", ["embedding", "status", "error", "fingerprint", "length"])
async def test_an_answer_that_does_not_follow_the_contract(broken: str) -> None:
    """A tensor is missing, or vectors have the wrong length."""
    server = Garbled()
    async with InMemoryClient({"localhost": server}) as clip:
        await clip.model()
        if broken == "length":
            server.dimension, server.vector = 9, lambda image: fake_vector(image, 9)
        else:
            server.script(Reply(drop_outputs=frozenset({broken})))
        with pytest.raises(ProtocolMismatch, match="9 numbers" if broken == "length" else "contract"):
            await clip.embed(b"a")


@pytest.mark.parametrize("name", ["status", "error", "fingerprint"])
@pytest.mark.parametrize("tensor", [b"", b"\1\0", bytes(16), b"\4\0\0\0abc", b"\1\0\0\0a" * 2])
async def test_an_answer_with_a_damaged_tensor(name: str, tensor: bytes) -> None:
    server = Garbled()
    async with InMemoryClient({"localhost": server}) as clip:
        await clip.embed(b"a")
        server.garbled = name, tensor
        for _ in range(2):
            with pytest.raises(ProtocolMismatch, match="contract"):
                await clip.embed(b"a")


async def test_a_client_outside_of_async_with(fake: FakeTriton) -> None:
    clip = InMemoryClient({"localhost": fake})
    with pytest.raises(RuntimeError, match="async with"):
        await clip.embed(b"a")
    async with clip:
        assert "[open]" in repr(clip)
    assert "[closed]" in repr(clip)
    with pytest.raises(RuntimeError, match="async with"):
        await clip.embed(b"a")
    with pytest.raises(RuntimeError, match="once"):
        async with clip:
            pass


def test_a_client_belongs_to_one_event_loop() -> None:
    clip = ClipClient("localhost:1")
    asyncio.run(clip.__aenter__())
    with pytest.raises(RuntimeError, match="another event loop"):
        asyncio.run(clip.embed([]))
