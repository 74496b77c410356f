"""A load generator that costs next to nothing: requests are serialised once, and nobody reads the answers.

On shared cores what the load generator takes is missing from what it measures. tritonclient builds and parses messages
for every call, and 64 calls at one time are 64 threads of Python; here one thread keeps them under way.
"""

from __future__ import annotations

import itertools
import struct
import time
from collections import deque
from typing import TYPE_CHECKING, Any, Final

import grpc
from tritonclient.grpc import service_pb2

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_METHOD: Final = "/inference.GRPCInferenceService/ModelInfer"


def request(model: str, output: str, files: list[bytes]) -> bytes:
    """Serialise one request with an encoded image in every row, which asks for one output."""
    message: Any = service_pb2.ModelInferRequest(model_name=model)
    message.inputs.add(name="image", datatype="BYTES", shape=[len(files), 1])
    message.outputs.add(name=output)
    message.raw_input_contents.append(b"".join(struct.pack("<I", len(file)) + file for file in files))
    serialised: bytes = message.SerializeToString()
    return serialised


def flood(url: str, model: str, output: str, files: list[bytes], batch: int, window: int) -> Callable[[float], float]:
    """Keep ``window`` requests of ``batch`` images under way; returns a function from seconds to images a second.

    An answer that is an error raises ``grpc.RpcError``.
    """
    call = grpc.insecure_channel(url, [("grpc.max_receive_message_length", -1)]).unary_unary(_METHOD)
    source = itertools.cycle(files)
    made = [request(model, output, list(itertools.islice(source, batch))) for _ in files]
    requests: Iterator[bytes] = itertools.cycle(made)

    def run(seconds: float) -> float:
        images = 0
        start = time.perf_counter()
        under_way = deque(call.future(next(requests)) for _ in range(window))
        while under_way:
            under_way.popleft().result()
            images += batch
            if time.perf_counter() - start < seconds:
                under_way.append(call.future(next(requests)))
        return images / (time.perf_counter() - start)

    return run
