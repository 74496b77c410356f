"""The summary of skipped tests at the end of pytest's output."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from preprocess_ensemble.imaging import turbojpeg_decoder
from tests.paths import ROOT

TESTS = """
import pytest

@pytest.mark.parametrize("number", range(3))
def test_a(number):
    pytest.skip("libturbojpeg is not installed")

@pytest.mark.skip(reason="a reason of its own")
def test_b():
    pass

def test_c():
    pass
"""


def run(directory: Path, text: str) -> list[str]:
    (directory / "test_it.py").write_text(text)
    command = [sys.executable, "-m", "pytest", "-p", "tests.skipped", "-c", "/dev/null", "-p", "no:cacheprovider"]
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    options = ["--rootdir", str(directory), str(directory)]
    done = subprocess.run([*command, *options], capture_output=True, text=True, check=True, cwd=ROOT, env=environment)
    return done.stdout.splitlines()


def test_skipped_tests_are_counted_by_reason_with_their_remedy(tmp_path: Path) -> None:
    lines = run(tmp_path, TESTS)
    title = next(number for number, line in enumerate(lines) if "skipped tests: 4" in line)
    assert [line.split(maxsplit=1) for line in lines[title + 1 :] if line][:-1] == [
        ["3", "libturbojpeg is not installed: apt-get install libturbojpeg0, then make install"],
        ["1", "a reason of its own"],
    ]
    assert not any("skipped tests" in line for line in run(tmp_path, "def test_a():\n    pass\n"))


def test_ci_has_libturbojpeg() -> None:
    # Without it, dozens of tests of the decoder that servers use would be skipped.
    assert os.environ.get("CI") != "true" or turbojpeg_decoder.installed()
