"""The rows of embedded images: reads each image, sends it to the servers, and says what became of it."""

from __future__ import annotations

import asyncio
import hashlib
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from clip_client._client import ClipClient
from clip_client._config import ClientConfig
from clip_client._errors import ImageError, VectorsError
from clip_client._pipeline.images import too_large
from clip_client._storage.vector_file import FileModel, FileVersion, vector_row
from clip_client.dedup.features.image_features import BYTES_ONLY, ModelInput, extract_features
from clip_client.dedup.features.preview import picture_file
from clip_client.dedup.files.file_types import is_raw
from clip_client.distributed.cluster import DistributedError
from clip_client.distributed.sources import SourceImage
from preprocess_ensemble.errors import first_line

_THREADS: Final = 16
"""Threads that read and extract features: more than cores, because most wait for a disk or a bucket."""
_AHEAD: Final = 32  # images of one partition that are read before the client takes them
_NOTHING: Final = np.empty(0, "S16")


@dataclass(frozen=True, kw_only=True, slots=True)
class _Read:
    index: int
    file: FileVersion
    payload: bytes = b""
    failure: ImageError | None = None
    features: Mapping[str, Any] = field(default_factory=dict)
    is_lost: bool = False
    """Whether the place of the file could not be reached; a missing or forbidden file is not lost."""


async def embed_images(
    images: Iterable[SourceImage],
    clip: ClipClient,
    config: ClientConfig,
    model: FileModel,
    features: bool,
    finished: NDArray[np.bytes_] = _NOTHING,
) -> AsyncGenerator[tuple[int, Mapping[str, Any]], None]:
    """Yield the index and the row (:func:`.embedded_schema`) of each image, in any order.

    Images whose keys are in ``finished`` are skipped. Raises the errors of ``embed_stream`` and ``images``,
    VectorsError if the servers have another ``model``, and DistributedError if all images are unreachable.
    """
    served = await clip.model()
    if served.vector_id != model.vector_id:
        raise VectorsError(f"the servers now serve {served.vector_id}, and the job has vectors of {model.vector_id}")
    read = partial(_read, most_bytes=config.max_image_bytes, features=features, model=ModelInput.of(served))
    sent, failed = list[_Read](), list[_Read]()

    async def payloads() -> AsyncGenerator[bytes, None]:
        async with aclosing(_read_ahead(read, images, finished)) as ahead:
            async for image in ahead:
                if image.failure is None:
                    sent.append(replace(image, payload=b""))
                    yield image.payload
                else:
                    failed.append(image)

    async with aclosing(clip.embed_stream(payloads(), ordered=False)) as items:
        async for item in items:
            image = sent[item.index]
            yield image.index, {**vector_row(image.file, item.vector, item.error), **image.features}
    if not sent and failed and all(image.is_lost for image in failed):
        first = str(failed[0].failure).rstrip(".")
        raise DistributedError(f"not one of its {len(failed):,} images could be read; the first: {first}")
    for image in failed:
        yield image.index, {**vector_row(image.file, failure=image.failure), **image.features}


async def _read_ahead(
    read: Callable[[int, SourceImage], _Read], images: Iterable[SourceImage], finished: NDArray[np.bytes_]
) -> AsyncGenerator[_Read, None]:
    pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="clip_client reader")
    in_thread = partial(asyncio.get_running_loop().run_in_executor, pool)
    ahead: deque[asyncio.Future[_Read]] = deque()
    numbered = enumerate(images)
    try:
        # Taking an image also reads, if it is in a tar or a Parquet file.
        while (following := await in_thread(next, numbered, None)) is not None:
            key = np.array(following[1].file.key, finished.dtype)  # NumPy leaves out zeros at the end, in both alike
            at = int(np.searchsorted(finished, key))
            if at == len(finished) or finished[at] != key:
                ahead.append(in_thread(read, *following))
            if len(ahead) == _AHEAD:
                yield await ahead.popleft()
        while ahead:
            yield await ahead.popleft()
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def _read(index: int, image: SourceImage, *, most_bytes: int, features: bool, model: ModelInput | None) -> _Read:
    file, own = image.file, partial(_Read, index=index)
    try:
        if file.size_bytes is not None and file.size_bytes > most_bytes:
            raise too_large(file.size_bytes, most_bytes)
        data, mtime_ns = image.read()
        if file.size_bytes is not None:
            # This machine may have another file under the path that the driver has examined.
            file = replace(file, size_bytes=len(data), mtime_ns=mtime_ns or file.mtime_ns)
        if not data:
            raise ImageError("The file is empty.", code="EMPTY")
    except ImageError as error:
        return own(file=file, failure=error)
    except Exception as error:  # object stores and their libraries raise many kinds of errors
        # If the driver has seen a file and a worker does not find it, the file is on a disk that the worker lacks.
        is_gone = isinstance(error, FileNotFoundError) and file.size_bytes is None
        is_lost = not (is_gone or isinstance(error, PermissionError | IsADirectoryError))
        reason = (isinstance(error, OSError) and error.strerror) or first_line(error)
        failure = ImageError(f"The file cannot be read: {reason}.", code="UNREADABLE", source=file.path)
        return own(file=file, failure=failure, is_lost=is_lost)
    if not features:
        return own(file=file, payload=data)
    found, payload = extract_features(data, model, is_raw=is_raw(file.path))
    columns = {"sha256": hashlib.sha256(data).digest(), **found.to_row()}
    if found.code == BYTES_ONLY:
        return own(file=file, failure=ImageError(found.message, code=BYTES_ONLY), features=columns)
    return own(file=file, payload=payload or picture_file(file.path, data), features=columns)
