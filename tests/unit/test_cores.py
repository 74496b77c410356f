"""The number of cores that a process may use, told by files that look like those of Linux."""

import os
import threading
from collections.abc import Mapping
from pathlib import Path

import anyio
import pytest

from clip_client.testing import FakeTriton
from preprocess_ensemble.cores import model_threads, performance_cores, usable_cores
from tests.fixtures.albums import then
from tests.fixtures.fakes import InMemoryClient

INTEL = {  # two performance cores with two threads each, and four efficiency cores
    "cpu_core/cpus": "0-3",
    "cpu_atom/cpus": "4-7",
    **{f"system/cpu/cpu{cpu}/topology/thread_siblings_list": f"{cpu // 2 * 2}-{cpu // 2 * 2 + 1}" for cpu in range(4)},
    **{f"system/cpu/cpu{cpu}/topology/thread_siblings_list": f"{cpu}" for cpu in range(4, 8)},
}


def clocks(*mhz: int) -> dict[str, str]:
    return {f"system/cpu/cpu{cpu}/cpufreq/cpuinfo_max_freq": f"{clock}000" for cpu, clock in enumerate(mhz)}


def write(root: Path, files: Mapping[str, str]) -> None:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(f"{text}\n")


@pytest.fixture
def eight_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 8)


@pytest.mark.skipif("sys.platform == 'darwin'", reason="a Mac has no /sys")
@pytest.mark.parametrize(
    ("files", "usable", "cores"),
    [
        (INTEL, range(8), 2),
        (INTEL, (0, 2, 4), 2),
        (INTEL, (1, 4, 5), 1),
        (INTEL, range(4), 0),
        (INTEL, range(4, 8), 0),
        (clocks(1800, 1800, 1800, 1800, 2400, 2400, 3000, 2900), range(8), 4),
        (clocks(5800, 5800, 5500, 5500), range(4), 0),
        ({}, range(4), 0),
    ],
)
def test_fast_cores_are_those_of_a_hybrid_processor(
    files: Mapping[str, str], usable: range, cores: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(usable), raising=False)
    write(tmp_path / "sys" / "devices", files)
    assert performance_cores(tmp_path) == cores


V2 = "sys/fs/cgroup"
V1 = "sys/fs/cgroup/cpu"


def v2(quota: str, path: str = "/") -> dict[str, str]:
    return {"proc/self/cgroup": f"0::{path}", f"{V2}/cpu.max": quota}


def v1(quota: str, path: str = "/") -> dict[str, str]:
    groups = f"5:memory:/x\n4:cpu,cpuacct:{path}\n0::/"
    return {"proc/self/cgroup": groups, f"{V1}/cpu.cfs_quota_us": quota, f"{V1}/cpu.cfs_period_us": "100000"}


@pytest.mark.usefixtures("eight_cores")
@pytest.mark.parametrize(
    ("files", "cores"),
    [
        ({}, 8),
        (v2("max 100000"), 8),
        (v2("200000 100000"), 2),
        (v2("150000 100000"), 2),
        (v2("1000 100000"), 1),
        (v2("6400000 100000"), 8),
        (v2(""), 8),
        (v2("300000 100000", "/a/b") | {f"{V2}/a/b/cpu.max": "max 1"}, 3),
        (v2("200000 100000", "/docker/9f"), 2),
        (v1("400000", "/docker/9f"), 4),
        (v1("-1"), 8),
        ({"proc/self/cgroup": "4:cpuset:/", f"{V2}/cpuset/cpu.cfs_quota_us": "1"}, 8),
    ],
)
def test_a_quota_of_the_control_group_limits_the_cores(files: Mapping[str, str], cores: int, tmp_path: Path) -> None:
    write(tmp_path, files)
    assert usable_cores(tmp_path) == cores


@pytest.mark.usefixtures("eight_cores")
@pytest.mark.skipif("sys.platform == 'darwin'", reason="a Mac has no /sys")
def test_a_model_has_a_thread_for_each_core_if_the_process_is_limited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert model_threads(tmp_path) == 0, "its runtime may take all cores"
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 3, 5})
    assert model_threads(tmp_path) == 3
    write(tmp_path, v2("200000 100000"))
    assert model_threads(tmp_path) == 2
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    assert model_threads(tmp_path) == 2, "a quota, without affinity"
    write(tmp_path / "sys" / "devices", INTEL)
    assert model_threads(tmp_path) == 2, "performance cores"
    write(tmp_path, {f"{V2}/cpu.max": "100000 100000"})
    assert model_threads(tmp_path) == 1, "a quota below the performance cores"


async def test_a_client_starts_few_threads_if_it_may_use_few_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two cores of 64: two pictures are decoded at once, and four more threads read files."""
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1}, raising=False)
    limits: list[float] = []
    monkeypatch.setattr(threading, "BoundedSemaphore", then(threading.BoundedSemaphore, limits.append))
    monkeypatch.setattr(anyio, "CapacityLimiter", then(anyio.CapacityLimiter, limits.append))
    async with InMemoryClient({"localhost": FakeTriton()}) as clip:
        await clip.embed(b"an image")
    assert sorted(limits) == [2, 6]
