"""Rates, and the lines that stand for bars where there is no terminal."""

from __future__ import annotations

import pytest

from clip_client.cli.output.progress import ProgressBars, Rate, progress_bars


def test_a_batch_at_once_is_no_rate_of_thousands() -> None:
    rate = Rate(0.0, 0)
    for done in range(1, 33):
        rate.add(0.5 + done / 10_000, done)
    assert rate.at(0.6) is None
    assert rate.at(1.0) == pytest.approx(32.0)


def test_a_rate_leaves_out_what_was_done_before_and_long_ago() -> None:
    rate = Rate(0.0, 1000)
    for second in range(1, 101):
        rate.add(float(second), 1000 + 50 * min(second, 50) + 10 * max(0, second - 50))
    assert rate.at(100.0) == pytest.approx(10.0)
    assert rate.at(2000.0) == pytest.approx(0.16, abs=0.01), "it falls while nothing arrives"


@pytest.mark.parametrize(
    ("each_second", "total", "words"),
    [
        (3, 3, ["3.0 photos/s"]),
        (3, 30, ["3.0 photos/s", "9 s left"]),
        (1234, None, ["1,234 photos/s"]),
        (10, 6010, ["10.0 photos/s", "10 min left"]),
        (10, 90_010, ["10.0 photos/s", "2.5 h left"]),
    ],
)
def test_numbers_for_people(each_second: int, total: int | None, words: list[str]) -> None:
    rate = Rate(0.0, 0)
    rate.add(1.0, each_second)
    assert rate.in_words(1.0, total) == words


def test_a_line_every_ten_seconds() -> None:
    now, said = [0.0], list[str]()
    show = ProgressBars(None, said.append, clock=lambda: now[0])
    show("looking for photos", 3, None)
    for tenth in range(250):
        now[0] = tenth / 10
        show("embedding", tenth, 1000)
    assert said == [
        "clip-client: embedding: 100 of 1,000, 10.0 photos/s, 2 min left",
        "clip-client: embedding: 200 of 1,000, 10.0 photos/s, 80 s left",
    ]
    now[0] += 10
    show("looking for photos", 40, None)
    assert said[-1].startswith("clip-client: looking for photos: 40, ")


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
