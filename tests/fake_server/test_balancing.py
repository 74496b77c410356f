"""Several servers: shared work, failing over, one model."""

from __future__ import annotations

from typing import Any

import pytest

from clip_client import ClientConfig, ClipClient, ClipError, ProtocolMismatch, Unauthorized, Unavailable
from clip_client.testing import FakeTriton, Reply
from tests.fixtures.fakes import InMemoryClient, images


class OfTheFuture(FakeTriton):
    def passport(self) -> dict[str, Any]:
        return {"contract": 2}


def client_of(*servers: FakeTriton) -> InMemoryClient:
    hosts = {f"server{number}": server for number, server in enumerate(servers)}
    return InMemoryClient(hosts, config=ClientConfig(urls=tuple(hosts)))


async def test_all_servers_work() -> None:
    servers = [FakeTriton() for _ in range(3)]
    for server in servers:
        server.answer_always(Reply(delay_s=0.01))
    async with client_of(*servers) as clip:
        assert (await clip.embed(images(600))).errors == {}
        counts = [server.images_embedded for server in servers]
        assert sum(counts) == 600
        assert min(counts) > 60
        assert len(clip.stats().servers) == 3
        report = await clip.health()
        assert report.ok
        assert {step.server for step in report.steps} == {f"grpc://server{number}:8001" for number in range(3)}


async def test_a_server_that_stops_is_avoided_and_used_again_after_its_restart() -> None:
    async with FakeTriton() as good, FakeTriton() as fickle, ClipClient([good.url, fickle.url]) as clip:
        await clip.embed(images(100))
        assert fickle.images_embedded
        await fickle.stop()
        assert (await clip.embed(images(300))).errors == {}
        assert any(server.is_down for server in clip.stats().servers)
        assert clip.stats().requests_retried < 20
        await fickle.start()
        before = fickle.images_embedded
        while fickle.images_embedded == before:
            await clip.embed(images(64))
        assert not any(server.is_down for server in clip.stats().servers)


async def test_a_server_that_is_down_from_the_start_does_not_count() -> None:
    async with FakeTriton() as server, ClipClient(["localhost:1", server.url]) as clip:
        assert (await clip.embed([b"a"] * 50)).errors == {}
    async with ClipClient(["localhost:1", "localhost:2"]) as clip:
        with pytest.raises(Unavailable, match="No server answers at grpc://localhost:1"):
            await clip.embed(b"a")


async def test_bad_images_do_not_mark_a_server_as_down() -> None:
    servers = [FakeTriton(), FakeTriton()]
    async with client_of(*servers) as clip:
        assert len((await clip.embed([b""] * 200)).errors) == 200
        assert not any(server.is_down for server in clip.stats().servers)
        assert clip.stats().images_failed == 200
        assert sum(server.requests_received for server in servers) == clip.stats().requests_sent
        assert clip.stats().requests_retried == 0


@pytest.mark.parametrize(
    ("second", "kind", "says"),
    [
        (FakeTriton(model="other", fingerprint=(5, 6)), ProtocolMismatch, "serves fake/.* serves other/"),
        (OfTheFuture(), ProtocolMismatch, "contract 2"),
        (FakeTriton(token="another"), Unauthorized, "refused"),
    ],
    ids=["another model", "another contract", "another token"],
)
async def test_a_server_that_does_not_fit_is_no_reserve(second: FakeTriton, kind: type[ClipError], says: str) -> None:
    async with client_of(FakeTriton(), second) as clip:
        with pytest.raises(kind, match=says):
            await clip.embed(b"a")


async def test_a_server_that_changes_its_model_later_is_noticed() -> None:
    second = FakeTriton()
    async with client_of(FakeTriton(), second) as clip:
        await clip.embed(b"a")
        second.model, second.fingerprint = "other", (5, 6)
        with pytest.raises(ProtocolMismatch):
            await clip.embed([b"x"] * 64)
        with pytest.raises(ProtocolMismatch, match="must serve one model"):
            await clip.embed(b"a")
