"""The summary of skipped tests at the end of pytest's output."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.paths import ROOT

if TYPE_CHECKING:
    from pathlib import Path

TESTS = """
import pytest

@pytest.mark.parametrize("number", range(3))
def test_a(number):
    pytest.skip("PyTurboJPEG and libturbojpeg are not both installed")

@pytest.mark.skip(reason="a reason of its own")
def test_b():
    pass

def test_c():
    pass
"""


def run(directory: Path, text: str, *options: str, ci: str = "", exit_code: int = 0) -> list[str]:
    (directory / "test_it.py").write_text(text)
    command = [sys.executable, "-m", "pytest", "-p", "tests.skipped", "-c", "/dev/null", "--rootdir", str(directory)]
    command += ["-p", "no:cacheprovider", *options, str(directory)]
    environment = {**os.environ, "CI": ci, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT, timeout=60, env=environment)
    assert done.returncode == exit_code, done.stdout + done.stderr
    return done.stdout.splitlines()


def test_skipped_tests_are_counted_by_reason_with_their_remedy(tmp_path: Path) -> None:
    lines = run(tmp_path, TESTS)
    title = next(number for number, line in enumerate(lines) if "skipped tests: 4" in line)
    assert [line.split(maxsplit=1) for line in lines[title + 1 :] if line][:-1] == [
        ["3", "PyTurboJPEG and libturbojpeg are not both installed: apt-get install libturbojpeg0, then make install"],
        ["1", "a reason of its own"],
    ]
    assert "1 passed, 4 skipped" in lines[-1]


@pytest.mark.parametrize("options", [(), ("-p", "xdist", "--numprocesses", "1")], ids=["alone", "xdist"])
def test_a_run_of_ci_without_libturbojpeg_fails(options: tuple[str, ...], tmp_path: Path) -> None:
    lines = run(tmp_path, TESTS, *options, ci="true", exit_code=1)
    assert "CI fails, because tests were skipped: PyTurboJPEG and libturbojpeg are not both installed" in lines


def test_a_run_of_ci_may_lack_other_parts_and_without_skipped_tests_there_is_no_summary(tmp_path: Path) -> None:
    lines = run(tmp_path, TESTS.replace("libturbojpeg", "another part"), ci="true")
    assert not any("CI fails" in line for line in lines)
    assert not any("skipped tests" in line for line in run(tmp_path, "def test_a():\n    pass\n"))
