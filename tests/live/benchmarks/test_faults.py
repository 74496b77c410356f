"""A short run, as in the benchmark, of the faults that no other test provokes."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from benchmarks.experiments.serving.faults import FAULTS, run_fault

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("fault", "remark"),
    [
        ("disk full, export", "exit code 1"),
        ("disk full, embedding store", "exit code 1: clip-client: "),
        ("disk full, journal", "all photos are there, undo brought back what was moved"),
        ("/dev/shm of 16 MB", "Failed to increase the shared memory pool"),
        ("models swapped", "told to serve"),
    ],
)
async def test_nothing_is_wrong_or_lost(tiny_repository: Path, fault: str, remark: str) -> None:
    assert fault in FAULTS
    if fault.startswith("/dev/shm") and os.geteuid() != 0:
        pytest.skip("only root can give a process a /dev/shm of its own")
    outcome = await run_fault(tiny_repository, fault, seconds=3, rate=8)
    assert (outcome["right"], outcome["wrong"], outcome["lost"]) == (outcome["offered"], 0, 0)
    assert remark in outcome["remark"]
    assert "Traceback" not in outcome["remark"]
