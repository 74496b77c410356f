"""The health report names the step that broke."""

import asyncio
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from tritonclient.grpc import service_pb2

from clip_client import ClientConfig, ClipClient, ClipError, DeadlineExceeded, HealthStep
from clip_client.cli.commands.doctor_checks import check_server
from clip_client.testing import PNG_1X1, FakeTriton, Reply, fake_vector
from tests.fixtures.fakes import NEVER, InMemoryClient, OfTheFuture, now, scripted
from tests.fixtures.simulated_time import simulated

STEPS = ["connect", "server live", "models ready", "handshake", "canary"]


async def broken_step(clip: ClipClient, timeout_s: float = 20) -> HealthStep:
    async with clip:
        report = await clip.health(timeout_s=timeout_s)
    assert [step.name for step in report.steps] == STEPS
    assert not report.ok
    failed = report.failed
    assert failed is not None
    assert all(step.ok is None for step in report.steps[STEPS.index(failed.name) + 1 :])
    assert failed.error is not None
    assert issubclass(failed.error, ClipError)
    assert "\n" not in failed.message
    return failed


async def test_a_healthy_service(server: FakeTriton, clip: ClipClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """A proxy is not asked for this machine."""
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    for name in ("no_proxy", "no_grpc_proxy"):
        monkeypatch.delenv(name, raising=False)
    report = await clip.health()
    assert report.ok
    assert report.failed is None
    assert [step.name for step in report.steps] == STEPS
    assert report.model_id == "fake/random:0@00000000"
    assert server.requests[-1].images == (PNG_1X1,)


@pytest.mark.parametrize(
    ("server", "step", "says"),
    [
        (FakeTriton(), "server live", "not live"),
        (FakeTriton(), "models ready", "clip_encoder"),
        (OfTheFuture(), "handshake", "contract 2"),
    ],
)
async def test_a_server_that_fails_at_a_step(server: FakeTriton, step: str, says: str) -> None:
    server.live = step != "server live"
    if step == "models ready":
        server.ready_models.discard("clip_encoder")
    failed = await broken_step(InMemoryClient({"localhost": server}))
    assert (failed.name, says in failed.message) == (step, True)


EXACT = fake_vector(PNG_1X1)
OFF = fake_vector(b"other") - np.dot(fake_vector(b"other"), EXACT) * EXACT
OFF /= np.linalg.norm(OFF)  # a vector at right angles to the canary's


@pytest.mark.parametrize(
    ("vector", "is_healthy"),
    [
        (lambda image: fake_vector(image + b"!"), False),
        (lambda _: EXACT + np.float32(0.063) * OFF, False),  # cosine 0.998
        (lambda _: EXACT + np.float32(0.03) * OFF, True),  # cosine 0.9996
        (lambda _: np.zeros(8, dtype=np.float32), False),
        (lambda _: np.full(8, np.nan, dtype=np.float32), False),
        (lambda image: fake_vector(image, 9), False),
    ],
    ids=["another", "too far off", "a little off", "zero", "nan", "another length"],
)
async def test_the_vector_of_the_canary(vector: Callable[[bytes], NDArray[np.float32]], is_healthy: bool) -> None:
    server = FakeTriton()
    exported = server.passport()
    server.passport = lambda: exported  # type: ignore[method-assign]
    server.vector, server.dimension = vector, len(vector(PNG_1X1))
    clip = InMemoryClient({"localhost": server})
    if is_healthy:
        async with clip:
            assert (await clip.health()).ok
    else:
        assert (await broken_step(clip)).name == "canary"


@pytest.mark.parametrize("reply", [Reply(row_errors={0: (8, "A defect.")}), Reply(fingerprint=(9, 9)), NEVER])
@simulated
async def test_a_canary_that_fails(reply: Reply) -> None:
    failed = await broken_step(InMemoryClient({"localhost": scripted(reply)}), timeout_s=5)
    assert (failed.name, failed.error is DeadlineExceeded) == ("canary", reply is NEVER)


class Slow(FakeTriton):
    async def ServerLive(self, request: Any, context: Any) -> Any:
        await asyncio.sleep(1)
        return await super().ServerLive(request, context)

    async def ModelInfer(self, request: Any, context: Any) -> Any:
        await asyncio.sleep(2)
        return await super().ModelInfer(request, context)

    async def ModelConfig(self, request: Any, context: Any) -> Any:
        await asyncio.Event().wait()


@simulated
async def test_all_steps_share_one_deadline() -> None:
    failed = await broken_step(InMemoryClient({"localhost": Slow()}), timeout_s=5)
    assert (failed.name, failed.error) == ("handshake", DeadlineExceeded)
    assert now() == pytest.approx(5)


@simulated
async def test_the_time_includes_that_of_looking_the_name_up() -> None:
    async def getaddrinfo(*_: object, **__: object) -> None:
        await asyncio.Event().wait()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(asyncio.get_running_loop(), "getaddrinfo", getaddrinfo)
        failed = await broken_step(InMemoryClient({}, "silent.example.org"), timeout_s=5)
    assert (failed.server, failed.name, failed.error) == ("grpc://silent.example.org:8001", "connect", DeadlineExceeded)
    assert now() == pytest.approx(5)


class Newer(FakeTriton):
    """A release that pip does not have."""

    async def ServerMetadata(self, request: Any, context: Any) -> Any:
        return service_pb2.ServerMetadataResponse(name="triton", version="2.75.0")


async def test_doctor_shows_what_the_health_check_found_and_the_vulnerabilities_of_the_release() -> None:
    async with Newer() as server:
        checks, answered = await check_server(ClientConfig(urls=(server.url,)), origin="a test", timeout_s=20)
        assert answered
        assert server.handshakes == 1
    found = {check.name: check.value for check in checks}
    assert found["model"] == "fake/random:0@00000000"
    assert "right vector" in found["health"]
    assert found["Triton"] == "2.75.0 (triton)"
    assert found["known holes"].startswith("very large requests"), "2.51 has three more"
