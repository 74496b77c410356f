"""The types of a call: images and texts that a caller passes, the results, and the counts."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, AsyncIterable, Iterable, Mapping
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Protocol, TypeAlias, Union

import numpy as np
from numpy.typing import NDArray

from clip_client._errors import ItemError, ItemErrors, require
from clip_client._model import ModelInfo

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa
    from PIL.Image import Image

ImageSource: TypeAlias = Union[
    str, "os.PathLike[str]", bytes, bytearray, memoryview, "Image", "NDArray[np.uint8]", IO[bytes]
]
"""A path, the bytes of an image file, a PIL image, a uint8 array (H, W, 3) in RGB, or a binary file object."""
ImageSources: TypeAlias = ImageSource | Iterable[ImageSource] | AsyncIterable[ImageSource]
"""One image, or any iterable of images. An array (N, H, W, 3) counts as N images."""
TextSources: TypeAlias = str | Iterable[str] | AsyncIterable[str]


# Neither frozen nor limited to keywords: that would take a microsecond, or a fifth of one, for each item.
@dataclass(slots=True, eq=False, repr=False)
class EmbeddedItem:
    """One result of a stream: either ``vector`` or ``error`` is set."""

    index: int
    """Position in the source, from 0."""
    source: ImageSource
    """The image or text from the source; a copy if an iterator gave a ``bytearray`` or ``memoryview``."""
    vector: NDArray[np.float32] | None
    """Shape (D,), float32, length 1."""
    error: ItemError | None
    """The reason if there is no vector."""
    truncated: bool = False
    """True for a text that is longer than the model's context: only its beginning was embedded."""

    def __repr__(self) -> str:
        result = f"error={self.error!r}" if self.vector is None else f"vector={self.vector.dtype}{self.vector.shape}"
        return f"EmbeddedItem(index={self.index}, source={_short(self.source)}, {result})"


@dataclass(frozen=True, kw_only=True, slots=True, eq=False, repr=False)
class EmbeddingBatch:
    """The vectors of one call, in input order.

    ::

        for index, error in batch.errors.items():
            print(batch.sources[index], error.code)
    """

    vectors: NDArray[np.float32]
    """Shape (N, D), float32; unit rows. The row of an item that failed is NaN, so no comparison finds it similar."""
    errors: Mapping[int, ItemError]
    """Index -> the error of that image or text; empty if none failed."""
    model_id: str
    """Id of the model that made the vectors."""
    vector_id: str
    """Model, preprocessing and transfer in one text, or model and tokenizer for texts. Compare only vectors with the
    same id, or vectors of texts and images of one model."""
    sources: tuple[str | None, ...] = ()
    """Path of each image; None for a text or an image that was not given as a path. By default all are None."""
    truncated: tuple[int, ...] = ()
    """Indices of the texts that are longer than the model's context: only their beginnings were embedded."""

    def __post_init__(self) -> None:
        if not self.sources:
            object.__setattr__(self, "sources", (None,) * len(self.vectors))
        if len(self.sources) != len(self.vectors):
            raise ValueError(f"{len(self.sources)} sources for {len(self.vectors)} vectors")

    def __repr__(self) -> str:
        rows, columns = self.vectors.shape
        failed = f", {len(self.errors)} failed" if self.errors else ""
        return f"EmbeddingBatch({rows} x {columns} {self.vectors.dtype}{failed}, vector_id={self.vector_id!r})"

    def __len__(self) -> int:
        return len(self.vectors)

    def raise_for_errors(self) -> None:
        """Raise the ImageError or TextError if one item failed or ran out of time, ItemErrors if several did."""
        if len(self.errors) == 1:
            raise next(iter(self.errors.values()))
        if self.errors:
            raise ItemErrors(self.errors)

    def to_arrow(self) -> pa.Table:
        """Return a ``pyarrow.Table`` with one row per image or text.

        Columns: ``path`` (string), ``vector`` (fixed-size list of D float32; NaN if the image failed), ``error_code``
        and ``error`` (strings, null if it did not fail). The metadata holds ``model``, ``vector_id`` and
        ``dimension``. A byte of a path that is not UTF-8 becomes ``\\xNN``. Raises ImportError without ``pyarrow``.
        """
        require("pyarrow", "cli")
        import pyarrow as pa

        rows, columns = self.vectors.shape
        errors = [self.errors.get(index) for index in range(rows)]
        numbers = pa.array(np.ascontiguousarray(self.vectors, dtype=np.float32).reshape(-1))
        about = {"model": self.model_id, "vector_id": self.vector_id, "dimension": str(columns)}
        paths = [path and os.fsencode(path).decode("utf-8", "backslashreplace") for path in self.sources]
        return pa.table(
            {
                "path": pa.array(paths, pa.string()),
                "vector": pa.FixedSizeListArray.from_arrays(numbers, columns),
                "error_code": pa.array([error and error.code for error in errors], pa.string()),
                "error": pa.array([error and error.message for error in errors], pa.string()),
            }
        ).replace_schema_metadata(about)

    def to_pandas(self) -> pd.DataFrame:
        """Return the columns of :meth:`to_arrow` as a ``pandas.DataFrame``. Raises ImportError without ``pandas``."""
        require("pandas")
        return self.to_arrow().to_pandas()


class Embedder(Protocol):
    """The two methods of :class:`clip_client.ClipClient` that a search for duplicates needs."""

    async def model(self) -> ModelInfo:
        """Describe the model that makes the vectors."""

    def embed_stream(self, source: ImageSources, *, ordered: bool = True) -> AsyncGenerator[EmbeddedItem, None]:
        """Yield one item per image, in bounded memory; in the order of the source unless ``ordered=False``."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ServerStats:
    """Counts of one server in one client."""

    url: str
    """``local:...`` if the model is in this process."""
    images_in_flight: int
    """Includes cancelled images for the time in which the server probably still decodes them."""
    limit: int
    """Most images that may be in flight now."""
    latency_s: float | None
    """Running mean of the answers' latency; None before the first answer."""
    is_down: bool
    """True if the last request failed. Until a request succeeds, the server gets one request at a time."""


@dataclass(kw_only=True, slots=True)
class ClientStats:
    """A snapshot: two counts of this moment, and counts since the client was entered. Texts count like images. Items
    that fail on this side, such as unreadable files, are in no count."""

    images_waiting: int = 0
    """Images that are encoded and not in a request now."""
    images_in_flight: int = 0
    images_embedded: int = 0
    images_failed: int = 0
    """Images for which the server returned an error."""
    images_shed: int = 0
    """Images that were given up before they were sent, because their answers would have come too late."""
    requests_retried: int = 0
    """Requests that failed and whose images were sent again."""
    requests_failed: int = 0
    """Requests that failed and were not sent again."""
    bytes_sent: int = 0
    """Bytes of images, retries included."""
    servers: tuple[ServerStats, ...] = ()


def _short(source: object) -> str:
    if isinstance(source, bytes | bytearray | memoryview):
        return f"<{len(source)} bytes>"
    return f"<array {source.shape}>" if isinstance(source, np.ndarray) else repr(source)
