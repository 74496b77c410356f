"""A load generator that costs almost no processor time: it serialises its requests once and parses no answer.

Client and server share the cores, so a cheap generator leaves more to the server. tritonclient builds and parses a
message for every call, and needs a Python thread for each call in flight; here one thread keeps all in flight.
"""

from __future__ import annotations

import itertools
import struct
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Final

import grpc
from tritonclient.grpc import service_pb2

_METHOD: Final = "/inference.GRPCInferenceService/ModelInfer"


def request(model: str, output: str, files: list[bytes]) -> bytes:
    """Serialise a request for one output, with an encoded image in each row."""
    message: Any = service_pb2.ModelInferRequest(model_name=model)
    message.inputs.add(name="image", datatype="BYTES", shape=[len(files), 1])
    message.outputs.add(name=output)
    message.raw_input_contents.append(b"".join(struct.pack("<I", len(file)) + file for file in files))
    serialised: bytes = message.SerializeToString()
    return serialised


def raw_grpc_load(
    url: str, model: str, output: str, files: list[bytes], batch: int, window: int
) -> Callable[[float], float]:
    """Return a function that keeps ``window`` requests of ``batch`` images in flight for a number of seconds.

    It returns images per second, and raises ``grpc.RpcError`` if an answer is an error.
    """
    call = grpc.insecure_channel(url, [("grpc.max_receive_message_length", -1)]).unary_unary(_METHOD)
    source = itertools.cycle(files)
    made = [request(model, output, list(itertools.islice(source, batch))) for _ in files]
    requests: Iterator[bytes] = itertools.cycle(made)

    def run(seconds: float) -> float:
        images = 0
        start = time.perf_counter()
        in_flight = deque(call.future(next(requests)) for _ in range(window))
        while in_flight:
            in_flight.popleft().result()
            images += batch
            if time.perf_counter() - start < seconds:
                in_flight.append(call.future(next(requests)))
        return images / (time.perf_counter() - start)

    return run
