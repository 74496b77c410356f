"""The output of commands: files that are whole or not there, full disks, bars, and the lines that stand for them."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.progress import Progress

from clip_client._storage.vector_file import FileVersion, npz_file, parquet_file, vector_row
from clip_client.cli.errors import CommandFailed
from clip_client.cli.main import main
from clip_client.cli.output import ProgressBars, _in_words, progress_bars, replacing
from tests.fixtures.models.model_info import model_info

needs_full_disk = pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path: Path) -> None:
    target = tmp_path / "out.json"
    target.write_text("old")
    with pytest.raises(ZeroDivisionError), replacing(target) as file:
        file.writelines(b"%d" % (1 // divisor) for divisor in (1, 0))
    assert target.read_text() == "old"
    with replacing(target) as file:
        file.write(b"new")
    assert target.read_text() == "new"
    assert list(tmp_path.iterdir()) == [target]


@pytest.mark.parametrize(
    ("name", "said"),
    # pathlib raises for the last name, and for one below a folder that may not be entered.
    [("no/out.json", "there is no folder"), ("", "it is a folder"), ("x" * 300, "File name too long")],
)
def test_a_file_that_cannot_be_written_is_one_sentence(name: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(CommandFailed, match=said), replacing(tmp_path / name):
        pass


@needs_full_disk
@pytest.mark.parametrize("kind", [parquet_file, npz_file])
def test_vectors_on_a_full_disk_are_one_sentence(kind: Any) -> None:
    rows = [vector_row(FileVersion(path=f"/{number}.jpg"), np.zeros(512, np.float32)) for number in range(2000)]

    def write_all() -> None:
        with replacing(Path("/dev/full")) as file, kind(file, model_info(dimension=512)) as add:
            for row in rows:
                add(row)

    with pytest.raises(CommandFailed, match="No space left"):
        write_all()


@needs_full_disk
def test_output_on_a_full_disk_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with open("/dev/full", "w", encoding="utf-8") as full:
        monkeypatch.setattr(sys, "stdout", full)
        assert main(["purge", "--store", str(tmp_path)]) == 1
    assert capsys.readouterr().err == "clip-client: the output cannot be written: a disk is full\n"


@pytest.mark.parametrize(
    ("each_second", "total", "said"),
    [
        (10, 1000, "100 of 1,000, 10.0 photos/s, 2 min left"),
        (10, 400, "100 of 400, 10.0 photos/s, 30 s left"),
        (10, 90_100, "100 of 90,100, 10.0 photos/s, 2.5 h left"),
        (1234, None, "12,340, 1,234 photos/s"),
        (0, None, "..."),
        (3, 30, "30 of 30"),
    ],
)
def test_without_a_terminal_a_line_comes_every_ten_seconds(each_second: int, total: int | None, said: str) -> None:
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


def test_a_rate_is_shown_only_after_a_second() -> None:
    now = [0.0]
    progress = Progress(get_time=lambda: now[0])
    show = ProgressBars(progress, print, in_lines=False)
    shown = []
    for step in range(16):
        now[0] = step / 10
        show("drawing", step + 1, 27)
        shown.append(len(_in_words(progress.tasks[0], "/")) > 1)
    assert shown == [second / 10 >= 1 for second in range(16)]


def test_what_is_said_between_is_printed_unless_it_shall_be_quiet(capsys: pytest.CaptureFixture[str]) -> None:
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
        show("extracting keypoints", 0, 0)  # without work there is no bar
        show("embedding", 1, 1200)
        show.say("EMPTY a.jpg")
    said = capsys.readouterr().err
    assert "EMPTY a.jpg" in said
    assert "1/1,200" in said
    assert "keypoints" not in said
