"""What a processor can do, told by files that look like those of Linux."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from preprocess_ensemble.runtimes.processor import has_bf16, processor_id

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("text", "has_it"),
    [
        ("processor\t: 0\nflags\t\t: fpu avx512_bf16 sse\n", True),
        ("processor\t: 0\nflags\t\t: fpu amx_bf16\n", True),
        ("flags\t\t: fpu avx512f avx2\nbugs\t: amx_bf16\n", False),
        ("Features\t: bf16\n", False),
        ("", False),
    ],
)
def test_flags_say_whether_there_are_instructions_for_bf16(text: str, has_it: bool, tmp_path: Path) -> None:
    file = tmp_path / "cpuinfo"
    file.write_text(text)
    assert has_bf16(file) is has_it
    assert not has_bf16(tmp_path / "missing")


def test_processors_of_one_name_are_told_apart_by_their_flags(tmp_path: Path) -> None:
    files = []
    for number, flags in enumerate(("avx2 amx_bf16", "avx2", "avx2")):
        files.append(tmp_path / str(number))
        files[-1].write_text(f"processor\t: 0\nmodel name\t: AMD EPYC\nflags\t\t: {flags}\n\nprocessor\t: 1\n")
    with_amx, first, second = map(processor_id, files)
    assert first == second != with_amx
    assert first.startswith("AMD EPYC ")
    assert processor_id(tmp_path / "missing")
