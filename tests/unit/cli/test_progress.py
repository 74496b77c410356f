"""Bars, and the lines that stand for them where there is no terminal."""

from __future__ import annotations

import pytest
from rich.progress import Progress

from clip_client.cli.output.progress import ProgressBars, progress_bars


@pytest.mark.parametrize(
    ("each_second", "total", "said"),
    [
        (10, 1000, "100 of 1,000, 10.0 photos/s, 2 min left"),
        (10, 400, "100 of 400, 10.0 photos/s, 30 s left"),
        (10, 90_100, "100 of 90,100, 10.0 photos/s, 2.5 h left"),
        (1234, None, "12,340, 1,234.0 photos/s"),
        (3, 30, "30 of 30"),
    ],
)
def test_a_line_every_ten_seconds(each_second: int, total: int | None, said: str) -> None:
    now, lines = [0.0], list[str]()
    show = ProgressBars(Progress(get_time=lambda: now[0]), lines.append, in_lines=True)
    show("looking for photos", 3, None)
    for second in range(11):
        now[0] = float(second)
        show("embedding", each_second * second, total)
    assert lines == [f"clip-client: embedding: {said}"]
    now[0] += 10
    show("looking for photos", 40, None)
    assert lines[1].startswith("clip-client: looking for photos: 40, ")


def test_without_a_terminal_and_in_time_nothing_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    with progress_bars() as show:
        show("embedding", 1, 2)
        show.say("EMPTY a.jpg")
    with progress_bars(quiet=True) as show:
        show.say("EMPTY b.jpg")
    assert capsys.readouterr() == ("", "EMPTY a.jpg\n")


def test_a_terminal_shows_a_bar_with_what_is_left(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in (("FORCE_COLOR", "1"), ("TERM", "xterm"), ("COLUMNS", "100")):
        monkeypatch.setenv(name, value)
    with progress_bars() as show:
        show("extracting keypoints", 0, 0)  # there is nothing to do, so there is no bar
        show("embedding", 1, 1200)
        show.say("EMPTY a.jpg")
    said = capsys.readouterr().err
    assert "EMPTY a.jpg" in said
    assert "1/1,200" in said
    assert "keypoints" not in said
