"""What a part of this package that needs vectors asks of a client, so that it need not import one."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from clip_client._image_source import ImageSources
    from clip_client._model import ModelInfo
    from clip_client._results import EmbeddedItem


class Embedder(Protocol):
    """The two methods of :class:`clip_client.ClipClient` that a search for duplicates needs."""

    async def model(self) -> ModelInfo:
        """Describe the model that makes the vectors."""

    def embed_stream(self, source: ImageSources, *, ordered: bool = True) -> AsyncGenerator[EmbeddedItem, None]:
        """Yield one item per image, in bounded memory; in the order of the source unless ``ordered=False``."""
