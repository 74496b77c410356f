"""A pytest plugin: the summary of skipped tests, with the number, the reason and what to install."""

import re
from collections import Counter
from collections.abc import Generator
from typing import Final

import pytest

_REMEDIES: Final = {
    "chromium": "apt-get install chromium-headless-shell, or chromium",
    "libturbojpeg": "apt-get install libturbojpeg0, then make install",
    "nvidia-pytriton": "make install on Linux x86-64 with Python 3.11 or 3.12",
    "TensorRT for RTX": ".venv/bin/python -m pip install --editable '.[tensorrt-parser]'",
    "TensorRT": "only where the image of NVIDIA's Triton can be fetched",
    "no python3 with pip": "apt-get install python3-pip",
    "(buildah|podman|crun|mmdebstrap) is missing": "apt-get install buildah podman crun mmdebstrap",
    "only root": "run the tests as root",
    "package index": "run the tests with access to PyPI",
    "(is not installed|could not import|pip install)": "make install",
}
"""Pattern in the reason of a skip -> what makes the test run."""


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> Generator[None, None, None]:
    """Print the summary at the very end."""
    yield
    # For a skipped test, pytest keeps (file, line, "Skipped: reason").
    reports = [report.longrepr for report in terminalreporter.stats.get("skipped", ())]
    reasons = Counter(str(where[2]).removeprefix("Skipped: ") for where in reports if isinstance(where, tuple))
    if reasons:
        terminalreporter.section(f"skipped tests: {reasons.total()}, with the reason and what to install")
    for reason, tests in reasons.most_common():
        remedy = next((remedy for pattern, remedy in _REMEDIES.items() if re.search(pattern, reason)), None)
        terminalreporter.write_line(f"{tests:5}  {reason}" + (f": {remedy}" if remedy else ""))
