"""The log: lines of Triton, the log file, and records as JSON."""

import contextlib
import json
import logging
import sys
from pathlib import Path

import pytest

from clip_client.serving.logs import OUTPUT, JsonFormatter, append_output_to, parse_line, print_line
from preprocess_ensemble.errors import ReportedError


def test_a_record_is_one_line_of_json_whatever_it_holds() -> None:
    record = logging.LogRecord("clip", logging.ERROR, __file__, 1, 'two\nlines and a "%s"', ("quote",), None)
    line = JsonFormatter().format(record)
    assert "\n" not in line
    entry = json.loads(line)
    assert (entry["level"], entry["logger"], entry["message"]) == ("error", "clip", 'two\nlines and a "quote"')
    assert entry["time"].endswith("+00:00")
    assert "traceback" not in entry
    record.exc_info = (ValueError, ValueError("no"), None)
    assert "ValueError: no" in json.loads(JsonFormatter().format(record))["traceback"]


FAILED = "E1121 13:04:26.771774 8809 model_lifecycle.cc:642] \"failed to load 'm1' version 1: %s\""
RAISED = r"Internal: TritonModelException: One sentence.\n\nAt:\n  /a/model.py(6): initialize\n"


@pytest.mark.parametrize(
    ("line", "entry"),
    [
        ('I1121 13:04:26.781027 8809 model_lifecycle.cc:777] "loaded"', None),
        ("+-------+---------+", None),
        ("Error: Failed to initialize NVML", None),
        ("error: failed to stop server: Internal - Exit timeout expired. Exiting immediately.", None),
        (
            'I1130 10:34:42.222572 25401 model.py:45] "clip_encoder_0_0: runs on ONNX Runtime 1.32.0, fp32 (no; why)"',
            (logging.INFO, "clip_encoder_0_0: runs on ONNX Runtime 1.32.0, fp32 (no; why)"),
        ),
        ('W1121 12:59:17.755776 8215 a.cc:1] "careful"', (logging.WARNING, "careful")),
        ("/a/bin/tritonserver: unrecognized option '--what'", (logging.ERROR, "unrecognized option '--what'")),
        ("tritonserver: No server is installed.", (logging.ERROR, "No server is installed.")),
        ("  what():  Failed to create temporary directory.", (logging.ERROR, "Failed to create temporary directory.")),
        ("error: creating server: Internal - all failed", (logging.ERROR, "creating server: Internal - all failed")),
        (FAILED % RAISED, (logging.ERROR, "m1 could not be loaded: One sentence.")),
        (FAILED % "Invalid arg: no", (logging.ERROR, "m1 could not be loaded: no")),
        (
            FAILED % f"Invalid argument: {'batch size 32; ' * 31};",
            (logging.ERROR, "m1 could not be loaded: batch size 32"),
        ),
    ],
)
def test_a_line_of_triton_becomes_one_plain_sentence(line: str, entry: tuple[int, str] | None) -> None:
    assert parse_line(line) == entry


def test_a_log_file_may_be_moved_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # pytest keeps what is logged in its report, which pytest-xdist cannot send with half a character in it.
    monkeypatch.setattr(OUTPUT, "handlers", [])
    with append_output_to(tmp_path / "log"):
        OUTPUT.info("%s", "first %s")
        (tmp_path / "log").rename(tmp_path / "log.1")
        OUTPUT.info("%s", b"second \xff".decode("utf-8", "surrogateescape"))
    OUTPUT.info("after the block")
    assert (tmp_path / "log.1").read_bytes() == b"first %s\n"
    assert (tmp_path / "log").read_bytes() == b"second \xff\n"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
def test_a_log_file_on_a_full_disk_is_no_reason_to_end(caplog: pytest.LogCaptureFixture) -> None:
    with append_output_to(Path("/dev/full")):
        OUTPUT.info("first")
        OUTPUT.info("second")
    assert caplog.text.count("cannot write /dev/full (No space left on device): Triton's log lines are lost") == 1


def test_a_missing_folder_for_the_log_is_no_reason_to_end(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = tmp_path / "folder"
    with pytest.raises(ReportedError, match=r"No such file or directory\): name another with --log-file"):
        append_output_to(folder / "log").__enter__()
    folder.mkdir()
    with append_output_to(folder / "log"):
        folder.rename(tmp_path / "old")
        OUTPUT.info("first")
        folder.mkdir()
        OUTPUT.info("second")
    assert "Triton's log lines are lost" in caplog.text
    assert (folder / "log").read_bytes() == b"second\n"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
def test_a_line_that_cannot_be_printed_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    with contextlib.suppress(OSError), open("/dev/full", "w", encoding="ascii") as full:
        monkeypatch.setattr(sys, "stdout", full)
        print_line("ready\n")
        assert sys.stdout is None, "Python would write the line again when it exits, and fail"
    print_line("ready\n")
