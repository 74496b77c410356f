"""A call that is one request is sent at once, in the caller's own task, and keeps the guarantees of all others."""

import asyncio
import contextlib
import gc
from collections import deque
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from clip_client import ClientConfig, ClipClient, ClipError, DeadlineExceeded, EmbeddingBatch, Unavailable
from clip_client._pipeline.stream import Stream
from clip_client._transports.base import Answer
from clip_client._transports.grpc import TritonTransport
from clip_client._transports.local import LocalTransport
from clip_client.testing import FakeTriton, Reply
from tests.fixtures.fakes import NEVER, InMemoryClient, images, scripted
from tests.fixtures.waiting import until


def is_right(batch: EmbeddingBatch, fake: FakeTriton, files: list[bytes]) -> bool:
    return np.array_equal(batch.vectors, [*map(fake.vector, files)])


async def test_calls_that_begin_together_share_requests_and_full_batches_do_not() -> None:
    fake = FakeTriton(max_batch_size=4)
    async with InMemoryClient({"localhost": fake}) as clip:
        await clip.model()
        await asyncio.gather(*(clip.embed(image) for image in images(4)))
        assert [len(request.images) for request in fake.requests] == [4]
        batches = await asyncio.gather(*(clip.embed(images(count)) for count in (4, 3, 4, 1)))
    assert sorted(len(request.images) for request in fake.requests) == [4, 4, 4, 4]
    assert all(is_right(batch, fake, images(len(batch))) for batch in batches)


async def test_a_call_waits_for_others_only_while_calls_come_together(fake: FakeTriton, near: InMemoryClient) -> None:
    await near.embed(b"a")
    for shared in ([1, 3], [4]):
        fake.requests.clear()
        batches = await asyncio.gather(*(near.embed(image) for image in images(4)))
        assert [len(request.images) for request in fake.requests] == shared
        assert all(is_right(batch, fake, [image]) for batch, image in zip(batches, images(4), strict=True))


async def test_a_list_may_change_during_its_call(fake: FakeTriton, near: InMemoryClient) -> None:
    fake.answer_always(Reply(delay_s=0.01))
    # The limit of images in flight is 16 at first, so the list is split.
    files = images(20)
    call = asyncio.create_task(near.embed(files))
    await until(lambda: fake.in_flight)
    files.clear()
    assert is_right(await call, fake, images(20))
    assert len(fake.requests) > 1


@pytest.mark.parametrize(("count", "timeout_s"), [(1, None), (2, None), (2, 0.2), (16, None)])
async def test_a_call_whose_time_is_over_says_so_and_halves_the_limit(count: int, timeout_s: float | None) -> None:
    fake = scripted(then=NEVER, max_batch_size=8)
    says = f"timeout_s ran out with {count} images in flight, the first of them numb"
    async with InMemoryClient({"localhost": fake}, timeout_s=0.2) as clip:
        await clip.model()
        with pytest.raises(DeadlineExceeded, match=says):
            await clip.embed((*images(count),), timeout_s=timeout_s)
        assert clip.stats().images_in_flight == clip.stats().images_waiting == 0
        await until(lambda: clip.stats().servers[0].limit == 8)
        assert clip.stats().requests_failed == 0, "the call gave up"


@pytest.mark.parametrize("cancelled", ["never", "before", "then"])
async def test_closing_the_client_ends_the_call_and_not_its_task(fake: FakeTriton, cancelled: str) -> None:
    async def embed() -> int:
        with contextlib.suppress(asyncio.CancelledError):
            await started.wait()
        with pytest.raises(Unavailable, match="closed"):
            await clip.embed(b"a")
        await asyncio.sleep(0)
        task = asyncio.current_task()
        assert task is not None
        return task.cancelling()

    started = asyncio.Event()
    fake.answer_always(NEVER)
    async with InMemoryClient({"localhost": fake}) as clip:
        call = asyncio.create_task(embed())
        await asyncio.sleep(0)
        if cancelled == "before":
            call.cancel()
        started.set()
        await until(lambda: fake.in_flight)
        if cancelled == "then":
            asyncio.get_running_loop().call_soon(call.cancel)
    if cancelled == "then":
        with pytest.raises(asyncio.CancelledError):
            await call
    else:
        assert await asyncio.wait_for(call, 20) == (cancelled == "before")


async def test_a_cancellation_that_comes_with_the_answer_of_local_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``asyncio.wait_for`` of Python 3.11 would return the answer instead."""
    loop = asyncio.get_running_loop()
    answer = loop.create_future()
    monkeypatch.setattr(loop, "run_in_executor", lambda *_: answer)
    call = asyncio.create_task(LocalTransport(tmp_path).infer([b"a"], request_id="", timeout_s=60))
    await asyncio.sleep(0)
    answer.set_result(None)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call


@pytest.mark.parametrize("moment", ["at once", "in flight", "never"])
async def test_a_call_leaves_nothing_behind(fake: FakeTriton, near: InMemoryClient, moment: str) -> None:
    await near.model()
    gc.collect()
    gc.disable()
    try:
        fake.answer_always(Reply() if moment == "never" else NEVER)
        call = asyncio.create_task(near.embed([b"a", b"b"]))
        await (asyncio.sleep(0) if moment == "at once" else until(lambda: fake.requests))
        if moment == "never":
            await call
        else:
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
        del call
        await until(lambda: not near.stats().servers[0].images_in_flight)
        await asyncio.sleep(0.01)
        assert (near.stats().images_waiting, near.stats().images_in_flight) == (0, 0)
        assert not any(type(one) is Stream for one in gc.get_objects())  # isinstance asks objects of other packages
    finally:
        gc.enable()


async def test_images_of_asynchronous_iterators_fill_batches_and_do_not_mix(fake: FakeTriton) -> None:
    async def bursts(files: list[bytes], first: int) -> AsyncIterator[bytes]:
        for number, image in enumerate(files):
            yield image
            if number >= first:
                await asyncio.sleep(0)

    async def embed(files: list[bytes], first: int) -> bool:
        found = [item async for item in clip.embed_stream(bursts(files, first))]
        vectors = [item.vector for item in found if item.vector is not None]
        return [item.source for item in found] == files and np.array_equal(vectors, [*map(fake.vector, files)])

    async with InMemoryClient({"localhost": fake}, config=ClientConfig(transfer="original")) as clip:
        await clip.model()
        one, other = images(64), images(64, first=64)
        assert all(await asyncio.gather(embed(one, 64), embed(other, 64)))
        assert max(len(request.images) for request in fake.requests) > 4
        assert all(await asyncio.gather(embed(one, 0), embed(other, 1)))


async def test_one_image_over_the_size_of_a_request_travels_alone(server: FakeTriton) -> None:
    config = ClientConfig(urls=(server.url,), transfer="original", max_request_bytes=100)
    async with ClipClient(config=config) as clip:
        batch = await clip.embed([bytes(60), bytes(60), bytes(200), bytes(10)])
    assert not batch.errors
    assert [[*map(len, request.images)] for request in server.requests] == [[60], [60], [200], [10]]


async def test_an_answer_of_another_length_is_an_internal_error(
    near: InMemoryClient, reported: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def infer(self: TritonTransport, items: Sequence[bytes], **given: Any) -> Answer:
        answer = await whole(self, items, **given)
        return answer._replace(truncated=answer.truncated[1:])

    whole = TritonTransport.infer
    monkeypatch.setattr(TritonTransport, "infer", infer)
    with pytest.raises(ClipError, match=r"internal error \(ValueError\)"):
        await near.embed([b"a", b"b"])
    assert (near.stats().servers[0].images_in_flight, [*map(type, reported)]) == (0, [ValueError])


async def test_texts_before_one_that_is_none_are_embedded(near: InMemoryClient) -> None:
    texts: Any = deque(["a", "b", 5])
    found = near.embed_text_stream(texts)
    assert [(await anext(found)).source for _ in range(2)] == ["a", "b"]
    with pytest.raises(TypeError, match="a text must be a str, got int"):
        await anext(found)
