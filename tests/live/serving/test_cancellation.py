"""What becomes of requests that their caller gives up: Triton 2.51 decodes them, and does not embed them.

Inside an ensemble a Python model is not told: ``is_cancelled`` of the request and of its response sender is false
there (for a request to ``clip_preprocess`` itself both are true). So the client must not send more than it would want.
"""

from __future__ import annotations

import re
import urllib.request
from typing import TYPE_CHECKING

import grpc
from tritonclient.grpc import service_pb2, service_pb2_grpc

from preprocess_ensemble.contract import ENCODER, PREPROCESSOR
from tests.fixtures.images import image_files
from tests.fixtures.waiting import until

if TYPE_CHECKING:
    from benchmarks.fixtures.server import Server

IMAGE = image_files.jpeg(size=(300, 200))


def counted(server: Server, metric: str) -> dict[str, int]:
    """Model -> what this metric of Triton says now."""
    with urllib.request.urlopen(server.metrics_url) as response:
        text = response.read().decode()
    counts = re.findall(rf'^{metric}\{{model="(\w+)",version="1"\}} (\d+)', text, re.MULTILINE)
    return {model: int(count) for model, count in counts}


def request(images: int) -> service_pb2.ModelInferRequest:
    message = service_pb2.ModelInferRequest(model_name="clip_image")
    message.inputs.add(name="image", datatype="BYTES", shape=[images, 1])
    message.raw_input_contents.append(images * (len(IMAGE).to_bytes(4, "little") + IMAGE))
    return message


async def test_triton_decodes_what_was_cancelled(server: Server) -> None:
    before = counted(server, "nv_inference_count")
    preprocessor = server.stub(PREPROCESSOR)
    async with grpc.aio.insecure_channel(server.grpc_url) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        preprocessor.suspend()
        try:
            calls = [stub.ModelInfer(request(32)) for _ in range(20)]
            # The others are in the process that is suspended, or on their way.
            await until(lambda: counted(server, "nv_inference_pending_request_count")[PREPROCESSOR] >= 15)
            for call in calls:
                call.cancel()
        finally:
            preprocessor.resume()
        await stub.ModelInfer(request(1))  # it stands behind all of them
    after = counted(server, "nv_inference_count")
    decoded, embedded = (after[model] - before[model] for model in (PREPROCESSOR, ENCODER))
    assert decoded > 320, "of 640; with a Triton that drops cancelled requests, the client need not hold back"
    assert embedded < decoded
