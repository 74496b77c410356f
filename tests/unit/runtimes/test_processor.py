"""What a processor can do, told by files that look like those of Linux."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from preprocess_ensemble.runtimes.processor import has_fast_bf16

if TYPE_CHECKING:
    from pathlib import Path


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
