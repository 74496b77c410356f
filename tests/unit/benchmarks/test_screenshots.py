from __future__ import annotations

from benchmarks.screenshots import as_svg


def test_the_picture_of_the_terminal_needs_no_network() -> None:
    svg = as_svg("\x1b[1m1. 9 kB in 1 copy\x1b[0m\n   keep  <a>.jpg\n")
    assert "keep" in svg
    assert "&lt;a&gt;.jpg" in svg
    assert "@font-face" not in svg
    assert "url(http" not in svg
