"""What a processor can do, told by files that look like those of Linux."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from preprocess_ensemble.runtimes.processor import has_fast_bf16, performance_cores

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

INTEL = {
    "cpu_core/cpus": "0-3",
    "cpu_atom/cpus": "4-7",
    **{f"system/cpu/cpu{cpu}/topology/thread_siblings_list": f"{cpu // 2 * 2}-{cpu // 2 * 2 + 1}" for cpu in range(4)},
    **{f"system/cpu/cpu{cpu}/topology/thread_siblings_list": f"{cpu}" for cpu in range(4, 8)},
}
"""Two performance cores with two threads each, and four efficiency cores."""


def clocks(*mhz: int) -> dict[str, str]:
    return {f"system/cpu/cpu{cpu}/cpufreq/cpuinfo_max_freq": f"{clock}000" for cpu, clock in enumerate(mhz)}


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
def test_threads_are_those_of_the_performance_cores(
    files: Mapping[str, str], usable: range, cores: int, tmp_path: Path
) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(f"{text}\n")
    assert performance_cores(tmp_path, set(usable)) == cores


@pytest.mark.parametrize(
    ("text", "is_fast"),
    [
        ("processor\t: 0\nflags\t\t: fpu avx512_bf16 sse\n", True),
        ("processor\t: 0\nflags\t\t: fpu amx_bf16\n", True),
        ("flags\t\t: fpu avx512f avx2\nbugs\t: amx_bf16\n", False),
        ("Features\t: bf16\n", False),
        ("", False),
    ],
)
def test_bf16_is_fast_if_the_processor_says_so(text: str, is_fast: bool, tmp_path: Path) -> None:
    file = tmp_path / "cpuinfo"
    file.write_text(text)
    assert has_fast_bf16(file) is is_fast
    assert not has_fast_bf16(tmp_path / "missing")
