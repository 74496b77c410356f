"""What a worker leaves behind, and which row of a content it believes."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from clip_client import ClientConfig
from clip_client.dedup.compare.keep_rules import DEFAULT_RULES
from clip_client.dedup.compare.thresholds import thresholds_for
from clip_client.dedup.search import OFF, GroupRules
from clip_client.dedup.store.parquet_store import table_of
from clip_client.distributed import image_files
from clip_client.distributed.component_groups import group_photos
from clip_client.distributed.partition_folder import PartitionFolder, embedded_schema
from clip_client.distributed.storage import Location
from clip_client.distributed.workers import PartitionWorker
from tests.fixtures.embedded_rows import MODEL, embedded_row

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator
    from pathlib import Path

UNIT = np.eye(1, MODEL.dimension, dtype=np.float32)[0]


def test_of_a_content_that_failed_once_the_row_with_the_vector_counts() -> None:
    """The failed row comes first: one of the workers could not read its copy."""
    nothing = np.full_like(UNIT, np.nan)
    failed = {**embedded_row("/failed.jpg", nothing, b"same"), "error_code": "INTERNAL", "error": "It failed."}
    rows = [failed, embedded_row("/same.jpg", UNIT, b"same"), embedded_row("/alike.jpg", UNIT, b"alike")]
    rules = GroupRules(
        thresholds=thresholds_for("m/trained@1", 0.9),
        hash_bits=-1,
        keep=DEFAULT_RULES,
        references=(),
        decisions=(),
        verify=OFF,
    )
    (group,) = group_photos(table_of(rows, embedded_schema(MODEL, features=True)), rules).groups
    assert {member.path for member in group.members} == {"/failed.jpg", "/same.jpg", "/alike.jpg"}


async def test_a_cancelled_worker_leaves_no_part_of_a_file(tmp_path: Path) -> None:
    folder = PartitionFolder(location=Location.of(tmp_path / "out"), model=MODEL, features=True)
    (partition,) = image_files([str(tmp_path / "a.jpg")])
    plan = folder.plan([partition])
    worker = PartitionWorker(ClientConfig(urls=("localhost:1",)), folder, plan.number, plan.finished)
    began = asyncio.Event()

    class Waiting:
        async def rows(self, *_: Any, **__: Any) -> AsyncGenerator[Any, None]:
            yield 0, embedded_row("/a.jpg", UNIT, b"a")
            began.set()
            await asyncio.Event().wait()

    worker._embedder = Waiting()  # type: ignore[assignment]  # the rows of a server that does not answer
    task = asyncio.ensure_future(worker.embed(partition))
    await began.wait()
    assert list((tmp_path / "out").glob("*.part")) or list((tmp_path / "out").glob(".*.part"))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not [path.name for path in (tmp_path / "out").iterdir() if path.name.endswith((".part", ".parquet"))]
