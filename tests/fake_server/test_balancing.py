"""Several servers: shared work, failing over, one model."""

from __future__ import annotations

from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

from clip_client import ClipClient, ProtocolMismatch, Unauthorized, Unavailable
from clip_client.testing import FakeTriton, Reply

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


class OfTheFuture(FakeTriton):
    def passport(self) -> dict[str, Any]:
        return {"contract": 2}


@asynccontextmanager
async def servers(count: int) -> AsyncIterator[list[FakeTriton]]:
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(FakeTriton()) for _ in range(count)]


async def test_all_servers_work() -> None:
    async with servers(3) as fakes:
        for fake in fakes:
            fake.answer_always(Reply(delay_s=0.01))
        async with ClipClient([fake.url for fake in fakes]) as clip:
            batch = await clip.embed(b"%d" % number for number in range(600))
            assert batch.errors == {}
            counts = [fake.images_embedded for fake in fakes]
            assert sum(counts) == 600
            assert min(counts) > 60
            assert len(clip.stats().servers) == 3
            assert (await clip.health()).ok
            assert {step.server for step in (await clip.health()).steps} == {fake.url for fake in fakes}


async def test_a_server_that_stops_is_avoided_and_used_again_after_its_restart() -> None:
    async with servers(2) as (good, fickle), ClipClient([good.url, fickle.url]) as clip:
        await clip.embed(b"%d" % number for number in range(100))
        assert fickle.images_embedded
        await fickle.stop()
        batch = await clip.embed(b"%d" % number for number in range(300))
        assert batch.errors == {}
        assert any(server.is_down for server in clip.stats().servers)
        sent_while_down = clip.stats().requests_retried
        assert sent_while_down < 20
        await fickle.start()
        before = fickle.images_embedded
        while fickle.images_embedded == before:
            await clip.embed([b"%d" % number for number in range(64)])
        assert not any(server.is_down for server in clip.stats().servers)


async def test_a_server_that_is_down_from_the_start_does_not_count() -> None:
    async with FakeTriton() as server, ClipClient(["localhost:1", server.url]) as clip:
        assert (await clip.embed([b"a"] * 50)).errors == {}
    async with ClipClient(["localhost:1", "localhost:2"]) as clip:
        with pytest.raises(Unavailable, match="No server answers at grpc://localhost:1"):
            await clip.embed(b"a")


async def test_bad_images_do_not_mark_a_server_as_down() -> None:
    async with servers(2) as fakes, ClipClient([fake.url for fake in fakes]) as clip:
        batch = await clip.embed([b""] * 200)
        assert len(batch.errors) == 200
        assert not any(server.is_down for server in clip.stats().servers)
        assert clip.stats().images_failed == 200
        assert sum(fake.requests_received for fake in fakes) == clip.stats().requests_sent
        assert clip.stats().requests_retried == 0


async def test_servers_with_two_models_are_refused() -> None:
    async with servers(2) as (first, second):
        second.model, second.fingerprint = "other", (5, 6)
        async with ClipClient([first.url, second.url]) as clip:
            with pytest.raises(ProtocolMismatch, match=r"fake/.*other/|other/.*fake/"):
                await clip.embed(b"a")


async def test_a_server_that_changes_its_model_later_is_noticed() -> None:
    async with servers(2) as (first, second), ClipClient([first.url, second.url]) as clip:
        await clip.embed(b"a")
        second.model, second.fingerprint = "other", (5, 6)
        with pytest.raises(ProtocolMismatch):
            await clip.embed([b"x"] * 64)
        with pytest.raises(ProtocolMismatch, match="must serve one model"):
            await clip.embed(b"a")


async def test_a_server_with_another_contract_is_refused() -> None:
    async with FakeTriton() as first, OfTheFuture() as second, ClipClient([first.url, second.url]) as clip:
        with pytest.raises(ProtocolMismatch, match="contract 2"):
            await clip.embed(b"a")


async def test_a_token_that_one_server_refuses() -> None:
    async with FakeTriton(token="right") as strict, FakeTriton() as lax:
        async with ClipClient([lax.url, strict.url], token="wrong") as clip:
            with pytest.raises(Unauthorized):
                await clip.embed(b"a")
