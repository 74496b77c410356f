"""The end of ``clip-serve``: requests in flight are answered, and a kill leaves no process behind."""

import contextlib
import signal
import struct
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

import grpc
import psutil
import pytest
from tritonclient.grpc import service_pb2, service_pb2_grpc

from benchmarks.fixtures.server import QUIET, Server, serving
from tests.fixtures.waiting import wait_until
from tests.live.processes import still_running

ROWS = 16


@pytest.fixture(scope="module")
def request_of_many(photos: Path) -> Any:
    return _request((photos / "coffee.jpg").read_bytes(), ROWS)


def _request(photo: bytes, rows: int) -> Any:
    request = service_pb2.ModelInferRequest(model_name="clip_image")
    request.inputs.add(name="image", datatype="BYTES", shape=[rows, 1])
    request.raw_input_contents.append((struct.pack("<I", len(photo)) + photo) * rows)
    return request


def _preprocessor(metrics_url: str) -> Iterator[float]:
    """Yield the requests that wait for it and those that it has answered."""
    with urllib.request.urlopen(metrics_url, timeout=60) as response:
        lines = response.read().decode().splitlines()
    for metric in ("nv_inference_pending_request_count", "nv_inference_request_success"):
        yield sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(f'{metric}{{model="clip_prep'))


@pytest.mark.long
def test_what_is_in_flight_at_sigterm_is_answered(tiny_repository: Path, request_of_many: Any) -> None:
    callers = 8
    with serving(tiny_repository, *QUIET) as server, grpc.insecure_channel(server.grpc_url) as channel:
        before = sum(_preprocessor(server.metrics_url))
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        calls = [stub.ModelInfer.future(request_of_many, timeout=240) for _ in range(callers)]
        # A batch of two requests is being computed, and is in neither number.
        wait_until(lambda: sum(_preprocessor(server.metrics_url)) >= before + callers - 2, "the requests have arrived")
        server.process.send_signal(signal.SIGTERM)
        shapes = [list(call.result().outputs[0].shape)[:1] for call in calls]
        assert shapes == [[ROWS]] * callers
        assert server.process.wait(60) == 0


_OF_THE_SERVER = [grpc.StatusCode.OK, grpc.StatusCode.NOT_FOUND]


def _codes(url: str, request: Any) -> list[grpc.StatusCode]:
    """Send until the server has gone; return what the requests before ended with."""
    codes = [grpc.StatusCode.OK]
    with grpc.insecure_channel(url) as channel:
        while codes[-1] in _OF_THE_SERVER:
            call = service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelInfer.future(request, timeout=60)
            codes.append(call.code())
    return codes[:-1]


def test_a_steady_load_is_refused_in_the_end_and_no_accepted_request_is_lost(
    tiny_repository: Path, photos: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    request = _request((photos / "coffee.jpg").read_bytes(), 1)
    with serving(tiny_repository, *QUIET) as server, ThreadPoolExecutor(4) as pool:
        sending = [pool.submit(_codes, server.grpc_url, request) for _ in range(4)]
        wait_until(partial(_has_answered, server.metrics_url), "answers are on their way")
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(60) == 0
        assert [[code for code, _ in groupby(codes.result())] for codes in sending] == [_OF_THE_SERVER] * 4
    assert "they are lost" not in capfd.readouterr().err


def _has_answered(metrics_url: str) -> bool:
    _, answered = _preprocessor(metrics_url)
    return answered > 4


def _left_by_a_kill(server: Server) -> list[psutil.Process]:
    family = psutil.Process(server.process.pid).children(recursive=True)
    server.process.kill()
    server.process.wait()
    with contextlib.suppress(TimeoutError):
        wait_until(lambda: not still_running(family), "every process is gone")
    return still_running(family)


@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_kill_leaves_no_process_whatever_the_stubs_do(tiny_repository: Path, request_of_many: Any) -> None:
    """A stub that is sending an answer waits without limit for a server that has died."""
    for number in range(10):
        with serving(tiny_repository, *QUIET) as server, ThreadPoolExecutor(4) as pool:
            sending = [pool.submit(_codes, server.grpc_url, request_of_many) for _ in range(4)]
            wait_until(partial(_has_answered, server.metrics_url), "answers are on their way")
            time.sleep(0.013 * number)  # another moment of a batch each time
            assert not _left_by_a_kill(server)
            assert all(call.result() for call in sending)


def test_a_kill_ends_a_stub_that_cannot_end_by_itself(tiny_repository: Path) -> None:
    with serving(tiny_repository, *QUIET) as server:
        server.stub("clip_preprocess").suspend()
        assert not _left_by_a_kill(server)
