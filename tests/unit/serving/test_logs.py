"""Log lines that a collector can read."""

from __future__ import annotations

import json
import logging
import sys

from preprocess_ensemble.serving.json_log import JsonFormatter


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
