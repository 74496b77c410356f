"""The health report names the step that broke."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from tritonclient.grpc import service_pb2

from clip_client import ClientConfig, ClipClient, DeadlineExceeded
from clip_client.cli.doctor import check_server
from clip_client.testing import PNG_1X1, FakeTriton, Reply, fake_vector
from tests.fixtures.fakes import InMemoryClient
from tests.fixtures.simulated_time import simulate

if TYPE_CHECKING:
    from numpy.typing import NDArray

STEPS = ["connect", "server live", "models ready", "handshake", "canary"]


async def broken_step(server: FakeTriton, url: str | None = None) -> tuple[str, str]:
    async with ClipClient(url or server.url, timeout_s=20) as clip:
        report = await clip.health(timeout_s=20)
    assert [step.name for step in report.steps] == STEPS
    assert not report.ok
    failed = report.failed
    assert failed is not None
    after = report.steps[STEPS.index(failed.name) + 1 :]
    assert all(step.ok is None for step in after)
    assert failed.error is not None
    assert "\n" not in failed.message
    return failed.name, failed.message


async def test_a_healthy_service(server: FakeTriton, clip: ClipClient) -> None:
    report = await clip.health()
    assert report.ok
    assert report.failed is None
    assert [step.name for step in report.steps] == STEPS
    assert report.model_id == "fake/random:0@00000000"
    assert server.requests[-1].images == (PNG_1X1,)


def _has_ipv6() -> bool:
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET6) as probe:
        probe.bind(("::1", 0))
        return True
    return False


@pytest.mark.parametrize(
    "host",
    ["localhost", "127.0.0.1", pytest.param("[::1]", marks=pytest.mark.skipif(not _has_ipv6(), reason="no IPv6 here"))],
)
async def test_a_proxy_is_not_asked_for_this_machine(host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with FakeTriton(host=host) as server:
        monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
        for name in ("no_proxy", "no_grpc_proxy"):
            monkeypatch.delenv(name, raising=False)
        async with ClipClient(server.url) as clip:
            assert (await clip.health()).ok


class OfTheFuture(FakeTriton):
    def passport(self) -> dict[str, Any]:
        return {"contract": 2}


@pytest.mark.parametrize(
    ("how", "step", "says"),
    [
        ("absent", "connect", "No server answers"),
        ("not live", "server live", "not live"),
        ("not ready", "models ready", "clip_encoder"),
        ("of the future", "handshake", "contract 2"),
    ],
)
async def test_a_server_that_fails_at_a_step(how: str, step: str, says: str) -> None:
    async with OfTheFuture() if how == "of the future" else FakeTriton() as server:
        server.live = how != "not live"
        if how == "not ready":
            server.ready_models.discard("clip_encoder")
        name, message = await broken_step(server, "localhost:1" if how == "absent" else None)
    assert name == step
    assert says in message


class Exported(FakeTriton):
    """Keeps its first passport when the model changes."""

    def __init__(self) -> None:
        super().__init__()
        self.exported = super().passport()

    def passport(self) -> dict[str, Any]:
        return self.exported


def at_right_angles(vector: NDArray[np.float32]) -> NDArray[np.float32]:
    other = fake_vector(b"other")
    rest: NDArray[np.float32] = other - np.dot(other, vector) * vector
    return rest / np.float32(np.linalg.norm(rest))


@pytest.mark.parametrize(
    "how", ["wrong vector", "too far off", "zero", "nan", "fails", "another model", "another length"]
)
async def test_a_canary_that_fails(how: str) -> None:
    async with Exported() as server:
        if how == "wrong vector":
            server.vector = lambda image: fake_vector(image + b"!")
        elif how == "too far off":  # cosine 0.998
            server.vector = lambda image: fake_vector(image) + np.float32(0.063) * at_right_angles(fake_vector(image))
        elif how == "zero":
            server.vector = lambda image: np.zeros(8, dtype=np.float32)
        elif how == "another length":
            server.dimension, server.vector = 9, lambda image: fake_vector(image, 9)
        elif how == "nan":
            server.vector = lambda image: np.full(8, np.nan, dtype=np.float32)
        elif how == "fails":
            server.script(Reply(row_errors={0: (8, "A defect.")}))
        else:
            server.script(Reply(fingerprint=(9, 9)))
        assert (await broken_step(server))[0] == "canary"


async def test_vectors_that_are_only_a_little_off_are_healthy() -> None:
    async with Exported() as server:
        exact = fake_vector(PNG_1X1)
        off = exact + np.float32(0.005) * fake_vector(b"noise")
        server.vector = lambda image: off / np.float32(np.linalg.norm(off))
        async with ClipClient(config=ClientConfig(urls=(server.url,))) as clip:
            assert (await clip.health()).ok


def test_all_steps_share_one_deadline() -> None:
    class Slow(FakeTriton):
        async def ModelInfer(self, request: Any, context: Any) -> Any:
            await asyncio.sleep(4)
            return await super().ModelInfer(request, context)

        async def ModelConfig(self, request: Any, context: Any) -> Any:
            await asyncio.sleep(4)
            return await super().ModelConfig(request, context)

    async def run() -> None:
        async with InMemoryClient({"localhost": Slow()}) as clip:
            failed = (await clip.health(timeout_s=5)).failed
            assert failed is not None
            assert (failed.name, failed.error) == ("handshake", DeadlineExceeded)
            assert asyncio.get_running_loop().time() == pytest.approx(5)

    simulate(run())


def test_a_canary_that_is_never_answered() -> None:
    async def run() -> None:
        server = FakeTriton()
        server.script(Reply(delay_s=float("inf")))
        async with InMemoryClient({"localhost": server}) as clip:
            failed = (await clip.health(timeout_s=5)).failed
        assert failed is not None
        assert (failed.name, failed.error) == ("canary", DeadlineExceeded)

    simulate(run())


async def test_doctor_shows_what_the_health_check_found() -> None:
    """With one handshake; FakeTriton does not describe itself."""
    async with FakeTriton() as server:
        checks, answered = await check_server(ClientConfig(urls=(server.url,)), origin="a test", timeout_s=20)
        assert answered
        assert server.handshakes == 1
    found = {check.name: check.value for check in checks}
    assert found["model"] == "fake/random:0@00000000"
    assert "right vector" in found["health"]


class Newer(FakeTriton):
    """A release that pip does not have."""

    async def ServerMetadata(self, request: Any, context: Any) -> Any:
        return service_pb2.ServerMetadataResponse(name="triton", version="2.75.0")


async def test_doctor_names_the_holes_of_the_release_that_answers() -> None:
    async with Newer() as server:
        checks, _ = await check_server(ClientConfig(urls=(server.url,)), origin="a test", timeout_s=20)
    found = {check.name: check.value for check in checks}
    assert found["Triton"] == "2.75.0 (triton)"
    assert found["known holes"].startswith("very large requests"), "2.51 has three more"
