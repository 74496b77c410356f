"""ONNX Runtime is told to send no usage data before it is imported."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

_SAYS = "import clip_client, os; print(os.environ['ORT_DISABLE_TELEMETRY'])"


@pytest.mark.parametrize(("given", "expected"), [({}, "1"), ({"ORT_DISABLE_TELEMETRY": "0"}, "0")])
def test_onnx_runtime_reports_nothing_unless_a_person_asks_for_it(given: dict[str, str], expected: str) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "ORT_DISABLE_TELEMETRY"}
    done = subprocess.run(
        [sys.executable, "-c", _SAYS], env={**environment, **given}, check=True, capture_output=True, text=True
    )
    assert done.stdout.strip() == expected
