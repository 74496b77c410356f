"""What is logged: lines of Triton, the log file, and records as JSON."""

from __future__ import annotations

import contextlib
import json
import logging
import sys
from pathlib import Path

import pytest

from preprocess_ensemble.serving.logs import JsonFormatter, LogEntry, LogFile, parse_line, print_line


def test_a_record_is_one_line_of_json_whatever_it_holds() -> None:
    record = logging.LogRecord("clip", logging.ERROR, __file__, 1, 'two\nlines and a "%s"', ("quote",), None)
    line = JsonFormatter().format(record)
    assert "\n" not in line
    entry = json.loads(line)
    assert (entry["level"], entry["logger"], entry["message"]) == ("error", "clip", 'two\nlines and a "quote"')
    assert entry["time"].endswith("+00:00")
    assert "traceback" not in entry


def test_an_exception_comes_with_its_traceback() -> None:
    try:
        raise ValueError("no")
    except ValueError:
        record = logging.LogRecord("clip", logging.ERROR, __file__, 1, "failed", (), sys.exc_info())
    assert "ValueError: no" in json.loads(JsonFormatter().format(record))["traceback"]


@pytest.mark.parametrize(
    ("line", "entry"),
    [
        ('I1121 13:04:26.781027 8809 model_lifecycle.cc:777] "loaded"', None),
        ("+-------+---------+", None),
        ('W1121 12:59:17.755776 8215 metrics.cc:798] "DCGM unable to start: DCGM initialization error"', None),
        ("Error: Failed to initialize NVML", None),
        ('W1121 12:59:17.755776 8215 a.cc:1] "careful"', LogEntry(level=logging.WARNING, text="careful")),
        (
            "/a/bin/tritonserver: unrecognized option '--what'",
            LogEntry(level=logging.ERROR, text="unrecognized option '--what'"),
        ),
        ("tritonserver: No server is installed.", LogEntry(level=logging.ERROR, text="No server is installed.")),
        (
            "error: creating server: Internal - failed to load all models",
            LogEntry(level=logging.ERROR, text="creating server: Internal - failed to load all models"),
        ),
        (
            (
                "E1121 13:04:26.771774 8809 model_lifecycle.cc:642] \"failed to load 'm1' version 1: Internal: "
                'TritonModelException: One sentence.\\n\\nAt:\\n  /a/model.py(6): initialize\\n"'
            ),
            LogEntry(level=logging.ERROR, text="m1 could not be loaded: One sentence."),
        ),
        (
            "E1121 13:04:26.771774 8809 model_lifecycle.cc:642] \"failed to load 'm2' version 1: Invalid arg: no\"",
            LogEntry(level=logging.ERROR, text="m2 could not be loaded: no"),
        ),
        (
            (
                "E1121 13:04:26.771774 8809 model_lifecycle.cc:642] \"failed to load 'm3' version 1: Invalid argument: "
                "failed to run warmup sample 'batch-32': "
                + "batch size 32 for 'm3_0_0', max allowed is 8; " * 31
                + ';"'
            ),
            LogEntry(
                level=logging.ERROR,
                text=(
                    "m3 could not be loaded: failed to run warmup sample 'batch-32': batch size 32 for 'm3_0_0', max "
                    "allowed is 8"
                ),
            ),
        ),
    ],
)
def test_a_line_of_triton_becomes_one_plain_sentence(line: str, entry: LogEntry | None) -> None:
    assert parse_line(line) == entry


def test_a_log_file_may_be_moved_away(tmp_path: Path) -> None:
    log = LogFile(tmp_path / "log")
    log.write(b"first\n")
    (tmp_path / "log").rename(tmp_path / "log.1")
    log.write(b"second\n")
    log.close()
    assert (tmp_path / "log.1").read_bytes() == b"first\n"
    assert (tmp_path / "log").read_bytes() == b"second\n"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
def test_a_log_file_on_a_full_disk_is_no_reason_to_end(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR)
    log = LogFile(Path("/dev/full"))
    log.write(b"first\n")
    log.write(b"second\n")
    log.close()
    assert [record.getMessage() for record in caplog.records] == [
        "cannot write /dev/full (No space left on device): Triton's log lines are lost"
    ]


def test_a_folder_for_the_log_that_is_gone_is_no_reason_to_end(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log = LogFile(tmp_path / "none" / "log")
    log.write(b"first\n")
    (tmp_path / "none").mkdir()
    log.write(b"second\n")
    log.close()
    assert "Triton's log lines are lost" in caplog.text
    assert (tmp_path / "none" / "log").read_bytes() == b"second\n"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
def test_a_line_that_cannot_be_printed_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    with contextlib.suppress(OSError), open("/dev/full", "w", encoding="ascii") as full:
        monkeypatch.setattr(sys, "stdout", full)
        print_line("ready\n")
        assert sys.stdout is None, "Python would write the line again when it exits, and fail"
    print_line("ready\n")
