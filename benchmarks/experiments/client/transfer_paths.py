"""The ways in which a photo can travel to a model: what the client does to it, and how it is asked."""

from __future__ import annotations

import asyncio
import itertools
import time
from contextlib import aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, cast

import numpy as np

from clip_client import ClientConfig, ClipClient
from clip_client._encoding import IMAGE_ENCODINGS
from clip_client._pipeline.encoder import ImageEncoder
from preprocess_ensemble.imaging.decode import decode
from preprocess_ensemble.imaging.transform import PreprocessConfig, preprocess

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Sequence

    from clip_client import ModelInfo
    from clip_client._encoding import TransferName

NULL_FLOAT: Final = "null_fp32"
"""The model that takes float tensors; see ``benchmarks.experiments.client.transfer``."""

_UNDER_WAY: Final = {"uint8 tensor": 16, "FP32 tensor": 8, "JSON": 2}
"""Requests of one image that are kept under way: enough to fill the line, few enough to end in time."""
_WARM_UP_S: Final = 2.0
"""Nothing is counted so long: connections open up, and the client learns how much the line takes."""


@dataclass(frozen=True, kw_only=True)
class Sent:
    """What one run achieved."""

    images: int
    seconds: float

    @property
    def rate(self) -> float:
        """Images a second."""
        return self.images / self.seconds


def prepare(way: str, photo: bytes, model: ModelInfo) -> bytes:
    """What the client does to one photo before it is sent; returns what then travels."""
    if way in IMAGE_ENCODINGS:
        encoder = ImageEncoder(ClientConfig(transfer=cast("TransferName", way)))
        return encoder.unchanged(photo) or encoder.encode(photo, model)
    config = PreprocessConfig.from_mapping(model.preprocess)
    pixels = preprocess(decode(photo, at_least=config.decode_at_least), config)  # uint8 (H, W, 3)
    if way == "uint8 tensor":
        return pixels.tobytes()
    tensor = normalised(pixels, config)
    return tensor.tobytes() if way == "FP32 tensor" else json_body(tensor)


def normalised(pixels: np.ndarray[Any, np.dtype[np.uint8]], config: PreprocessConfig) -> Any:
    """As clients of the tensor ways do it: FP32 (1, 3, H, W)."""
    unit = pixels.astype(np.float32) / np.float32(255)
    scaled = (unit - np.array(config.mean, np.float32)) / np.array(config.std, np.float32)
    return np.ascontiguousarray(scaled.transpose(2, 0, 1))[None]


def json_body(tensor: Any) -> bytes:
    """The body of a request in JSON, by tritonclient itself."""
    from tritonclient.http import InferenceServerClient, InferInput

    image = InferInput("images", list(tensor.shape), "FP32")
    image.set_data_from_numpy(tensor, binary_data=False)
    body, _ = InferenceServerClient.generate_request_body([image])
    return bytes(body)


async def send(way: str, address: str, photos: Sequence[bytes], model: ModelInfo, seconds: float) -> Sent:
    """Send photos over and over by one way, and count those that were answered."""
    if way in IMAGE_ENCODINGS:
        return await _send_by_client(way, address, photos, seconds)
    if way == "JSON":
        return await _send_json(address, photos, model, seconds)
    return await _send_tensors(way, address, photos, model, seconds)


async def _send_by_client(way: str, address: str, photos: Sequence[bytes], seconds: float) -> Sent:
    async with ClipClient(address, transfer=cast("TransferName", way), timeout_s=300.0) as clip:
        tally = _Tally(seconds)
        async with aclosing(clip.embed_stream(itertools.cycle(photos), ordered=False, max_in_flight=128)) as items:
            async for item in items:
                if item.error is not None:
                    raise item.error
                if tally.add():
                    break
        return tally.sent()


async def _send_tensors(way: str, address: str, photos: Sequence[bytes], model: ModelInfo, seconds: float) -> Sent:
    from tritonclient.grpc.aio import InferenceServerClient, InferInput, InferRequestedOutput

    config = PreprocessConfig.from_mapping(model.preprocess)
    height, width = config.size
    wanted = [InferRequestedOutput("embedding")]
    status = InferInput("status", [1, 1], "INT32")
    status.set_data_from_numpy(np.zeros((1, 1), np.int32))

    async with InferenceServerClient(address) as client:

        async def ask(photo: bytes) -> None:
            raw = await asyncio.to_thread(prepare, way, photo, model)
            if way == "uint8 tensor":
                pixels = InferInput("pixels", [1, height, width, 3], "UINT8")
                pixels.set_data_from_numpy(np.frombuffer(raw, np.uint8).reshape(1, height, width, 3))
                await client.infer("clip_encoder", [pixels, status], outputs=wanted)
            else:
                images = InferInput("images", [1, 3, height, width], "FP32")
                images.set_data_from_numpy(np.frombuffer(raw, np.float32).reshape(1, 3, height, width))
                await client.infer(NULL_FLOAT, [images], outputs=wanted)

        return await _keep_under_way(ask, photos, _UNDER_WAY[way], seconds)


async def _send_json(address: str, photos: Sequence[bytes], model: ModelInfo, seconds: float) -> Sent:
    import aiohttp

    url = f"http://{address}/v2/models/{NULL_FLOAT}/infer"
    async with aiohttp.ClientSession() as session:

        async def ask(photo: bytes) -> None:
            body = await asyncio.to_thread(prepare, "JSON", photo, model)
            async with session.post(url, data=body) as response:
                response.raise_for_status()
                await response.read()

        return await _keep_under_way(ask, photos, _UNDER_WAY["JSON"], seconds)


async def _keep_under_way(
    ask: Callable[[bytes], Awaitable[None]], photos: Sequence[bytes], requests: int, seconds: float
) -> Sent:
    source: Iterator[bytes] = itertools.cycle(photos)
    tally = _Tally(seconds)

    async def one_after_the_other() -> None:
        while not tally.is_over:
            await ask(next(source))
            tally.add()

    await asyncio.gather(*(one_after_the_other() for _ in range(requests)))
    return tally.sent()


class _Tally:
    """Counts answers from the first after the warm-up to the first after the end."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._warm_at = time.perf_counter() + _WARM_UP_S
        self._first_at: float | None = None
        self._last_at = 0.0
        self._images = 0
        self.is_over = False

    def add(self) -> bool:
        """Count one answer; True where it was the last that counts."""
        now = time.perf_counter()
        if self._first_at is None:
            # The answer from which time is counted is not counted itself.
            self._first_at = now if now >= self._warm_at else None
        elif not self.is_over:
            self._images += 1
            self._last_at = now
            self.is_over = now - self._first_at >= self._seconds
        return self.is_over

    def sent(self) -> Sent:
        """What was counted."""
        assert self._first_at is not None
        return Sent(images=self._images, seconds=self._last_at - self._first_at)
