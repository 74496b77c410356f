"""What a worker does with images: read them, reduce them, and embed them through one client."""

from __future__ import annotations

import asyncio
import hashlib
from collections import deque
from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from clip_client._client import ClipClient
from clip_client._encoding import EncodedImage
from clip_client._errors import ImageError, VectorsError
from clip_client._pipeline.encoder import ImageEncoder
from clip_client._pipeline.images import too_large
from clip_client._vectors.vector_file import vector_row
from clip_client.dedup.features.image_features import BYTES_ONLY, extract_with_input
from clip_client.dedup.features.model_input import ModelInput
from clip_client.dedup.features.preview import raw_preview
from clip_client.dedup.files.file_types import is_raw
from preprocess_ensemble.errors import first_line

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from clip_client._config import ClientConfig
    from clip_client._model import ModelInfo
    from clip_client._vectors.file_model import FileModel
    from clip_client._vectors.file_version import FileVersion
    from clip_client.distributed.sources import SourceImage

_THREADS: Final = 16
"""Threads that read and reduce images: more than cores, because most of them wait for a disk or a bucket."""

_AHEAD: Final = 32
"""Images of one partition that are read before the client takes them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Prepared:
    """One image that was read."""

    index: int
    file: FileVersion
    sent: bytes | None = None
    """What the client sends; None if the image failed."""
    failure: ImageError | None = None
    columns: Mapping[str, Any] = field(default_factory=dict)
    """Hash and features, if they were asked for."""
    is_lost: bool = False
    """Its place could not be reached, which differs from a file that never was there."""


class ImageEmbedder:
    """Embeds images for one worker. It belongs to the event loop that first uses it."""

    def __init__(self, config: ClientConfig, expected: FileModel, *, features: bool) -> None:
        self._config = config
        self._expected = expected
        self._features = features
        self._encoder = ImageEncoder(config)
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="clip_client reader")
        self._opening = asyncio.Lock()
        self._client: ClipClient | None = None

    async def rows(
        self, images: Iterable[SourceImage], *, finished: NDArray[np.bytes_] | None = None
    ) -> AsyncGenerator[tuple[int, Mapping[str, Any]], None]:
        """Yield the index and the row of each image, in any order; those whose keys are in ``finished`` are skipped.

        A row has the columns of :func:`.partition_folder.embedded_schema`. Raises what ``embed_stream`` and ``images``
        raise, VectorsError if the servers have another model than the job, and OSError if not one image could be
        reached.
        """
        client = await self._open_client()
        model = await client.model()
        if model.vector_id != self._expected.vector_id:
            raise VectorsError(
                f"the servers now serve {model.vector_id}, and the job has vectors of {self._expected.vector_id}"
            )
        sent: list[Prepared] = []
        failed: list[Prepared] = []

        def payloads() -> Iterator[bytes]:
            for one in self._prepared(images, model, finished):
                if one.sent is None:
                    failed.append(one)
                else:
                    payload = one.sent
                    sent.append(replace(one, sent=None))
                    yield payload

        async with aclosing(client.embed_stream(payloads(), ordered=False)) as items:
            async for item in items:
                one = sent[item.index]
                yield one.index, {**vector_row(one.file, item.vector, item.error), **one.columns}
        if not sent and failed and all(one.is_lost for one in failed):
            first = str(failed[0].failure).rstrip(".")
            raise OSError(f"not one of its {len(failed):,} images could be read; the first: {first}")
        for one in failed:
            yield one.index, {**vector_row(one.file, failure=one.failure), **one.columns}

    async def _open_client(self) -> ClipClient:
        async with self._opening:
            if self._client is None:
                self._client = await ClipClient(config=self._config).__aenter__()
            return self._client

    def _prepared(
        self, images: Iterable[SourceImage], model: ModelInfo, finished: NDArray[np.bytes_] | None
    ) -> Iterator[Prepared]:
        """Read images in other threads, a few ahead. The client takes no more than it can send, so reading waits."""
        ahead: deque[Future[Prepared]] = deque()
        for index, image in enumerate(images):
            if finished is not None and _holds(finished, image.file.key):
                continue
            ahead.append(self._pool.submit(self._prepare, index, image, model))
            if len(ahead) == _AHEAD:
                yield ahead.popleft().result()
        while ahead:
            yield ahead.popleft().result()

    def _prepare(self, index: int, image: SourceImage, model: ModelInfo) -> Prepared:
        """Read one image and make of it what is sent. Raises ProtocolMismatch, as :meth:`ImageEncoder.encode` does."""
        try:
            data = self._read(image)
        except ImageError as error:
            return Prepared(index=index, file=image.file, failure=error)
        except Exception as error:  # object stores and their libraries raise all kinds
            # A file that the driver has seen and a worker does not find is on a disk that only one of them has.
            is_gone = isinstance(error, FileNotFoundError) and image.file.size_bytes is None
            is_lost = not (is_gone or isinstance(error, PermissionError | IsADirectoryError))
            reason = (isinstance(error, OSError) and error.strerror) or first_line(error)
            failure = ImageError(f"The file cannot be read: {reason}.", code="UNREADABLE", source=image.file.path)
            return Prepared(index=index, file=image.file, failure=failure, is_lost=is_lost)
        payload: bytes | None = None
        columns: dict[str, Any] = {}
        try:
            if self._features:
                payload = self._extract(image.file.path, data, model, columns)
            if payload is None:
                payload = EncodedImage.of(self._encoder.encode(data, model), data)
        except ImageError as error:
            return Prepared(index=index, file=image.file, failure=error, columns=columns)
        return Prepared(index=index, file=image.file, sent=payload, columns=columns)

    def _read(self, image: SourceImage) -> bytes:
        limit = self._config.max_image_bytes
        if image.file.size_bytes is not None and image.file.size_bytes > limit:
            raise too_large(image.file.size_bytes, limit)
        data = image.read()
        if not data:
            raise ImageError("The file is empty.", code="EMPTY")
        return data

    def _extract(self, path: str, data: bytes, model: ModelInfo, columns: dict[str, Any]) -> bytes | None:
        """Put hash and features into ``columns``; return what is sent if that falls off, None if not."""
        as_raw = is_raw(path)
        features, payload = extract_with_input(data, ModelInput.of(model), is_raw=as_raw)
        columns |= {"sha256": hashlib.sha256(data).digest(), **features.to_row()}
        if features.code == BYTES_ONLY:
            raise ImageError(features.message, code=BYTES_ONLY)
        if payload is None and as_raw and (preview := raw_preview(data)) is not None:
            return EncodedImage.of(self._encoder.encode(preview, model), preview)
        return payload


def _holds(keys: NDArray[np.bytes_], key: bytes) -> bool:
    at = int(np.searchsorted(keys, np.bytes_(key)))
    return at < len(keys) and bool(keys[at] == np.bytes_(key))
