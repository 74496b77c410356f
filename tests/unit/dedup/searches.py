"""Searches whose vectors are as alike as a test wants them."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import numpy as np

from clip_client.dedup import DuplicateReport, Member, find_duplicates
from tests.fixtures.albums import NoPictures

WORTH_ALIGNING: Final = 0.9
DUPLICATES: Final = 1.0
UNLIKE: Final = 0.0
"""Similarities."""


class Vectors(NoPictures):
    """A client of a server for which every two images have the cosine ``alike``."""

    def __init__(self, alike: float) -> None:
        self._alike = alike

    async def model(self) -> Any:
        return SimpleNamespace(id="m/trained@00000000", vector_id="m", dimension=64, transfer="original")

    async def embed_stream(self, images: AsyncIterator[Any], *, ordered: bool) -> AsyncIterator[Any]:
        index = 0
        async for _ in images:
            own, common = np.eye(64, dtype=np.float32)[[index + 1, 0]]
            vector = np.sqrt(1 - self._alike) * own + np.sqrt(self._alike) * common
            yield SimpleNamespace(index=index, error=None, vector=vector.astype(np.float32))
            index += 1


def search(paths: Path | Iterable[Path], *, alike: float = WORTH_ALIGNING, **more: Any) -> DuplicateReport:
    clip: Any = Vectors(alike)
    return asyncio.run(find_duplicates(clip, paths, **more))


def by_name(report: DuplicateReport) -> dict[str, Member]:
    return {member.path.rpartition("/")[2]: member for group in report.groups for member in group.members}
