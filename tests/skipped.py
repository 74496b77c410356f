"""A pytest plugin: the summary of skipped tests, with the number, the reason and what to install.

In CI (the environment variable CI is ``true``) a skip fails the run if .ci/run should have installed what it names.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from typing import TYPE_CHECKING, Final

import pytest

if TYPE_CHECKING:
    from collections.abc import Generator

_REMEDIES: Final = {
    "chromium": "apt-get install chromium",
    "libturbojpeg": "apt-get install libturbojpeg0, then make install",
    "nvidia-pytriton": "make install on Linux x86-64 with Python 3.11 or 3.12",
    "TensorRT": "only where the image of NVIDIA's Triton can be fetched",
    "no python3 with pip": "apt-get install python3-pip",
    "(buildah|podman|crun|mmdebstrap) is missing": "apt-get install buildah podman crun mmdebstrap",
    "only root": "run the tests as root",
    "package index": "run the tests with access to PyPI",
    "(is not installed|could not import|pip install)": "make install",
}
"""Pattern in the reason of a skip -> what makes the test run."""

_PRESENT_IN_CI: Final = re.compile("libturbojpeg")
"""Reasons that CI must not have. Without libturbojpeg, dozens of tests of the decoder that servers use are skipped."""


def summary(reasons: Counter[str]) -> list[str]:
    """Return one line for each reason, the reason of most tests first."""
    lines = []
    for reason, tests in reasons.most_common():
        remedy = next((remedy for pattern, remedy in _REMEDIES.items() if re.search(pattern, reason)), None)
        lines.append(f"{tests:5}  {reason}" + (f": {remedy}" if remedy else ""))
    return lines


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> Generator[None, None, None]:
    """Print the summary at the very end."""
    yield
    reasons = _reasons(terminalreporter)
    if reasons:
        terminalreporter.section(f"skipped tests: {reasons.total()}, with the reason and what to install")
        for line in summary(reasons):
            terminalreporter.write_line(line)
        for reason in _missing_in_ci(reasons):
            terminalreporter.write_line(f"CI fails, because tests were skipped: {reason}", red=True)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail a run of CI that lacks a part of the system."""
    terminalreporter = session.config.pluginmanager.get_plugin("terminalreporter")
    # The processes of pytest-xdist have none; theirs are the reports of the main process.
    if terminalreporter is not None and _missing_in_ci(_reasons(terminalreporter)):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def _reasons(terminalreporter: pytest.TerminalReporter) -> Counter[str]:
    """Reason -> the number of tests that were skipped for it."""
    # For a skipped test, pytest keeps (file, line, "Skipped: reason").
    reports = [report.longrepr for report in terminalreporter.stats.get("skipped", ())]
    return Counter(str(where[2]).removeprefix("Skipped: ") for where in reports if isinstance(where, tuple))


def _missing_in_ci(reasons: Counter[str]) -> list[str]:
    return [reason for reason in reasons if os.environ.get("CI") == "true" and _PRESENT_IN_CI.search(reason)]
