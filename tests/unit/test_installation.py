"""Which packages an installation brings, without one: the extras in setup.cfg, and what make would run."""

from __future__ import annotations

import re
import subprocess
from typing import TYPE_CHECKING, Final

import pytest

from tests.fixtures.packaging.extras import extras
from tests.paths import ROOT

if TYPE_CHECKING:
    from pathlib import Path

LARGE: Final = {"torch", "open_clip_torch", "scipy", "scikit-image"}
"""Gigabytes with what they bring, or 150 MB for one function."""
ONE_OF: Final = {"gpu"}
"""Extras that exclude another one."""
FOR_DEVELOPERS: Final = {"baseline", "bench", "dev"}


@pytest.mark.parametrize("extra", ["cli", "dedup", "laptop", "local", "phone", "photos", "raw", "server"])
def test_only_exports_and_benchmarks_need_pytorch(extra: str) -> None:
    assert extras()[extra] & LARGE == set()


def test_a_laptop_gets_everything_but_a_server() -> None:
    packages = extras()
    for extra in ("cli", "dedup", "local", "phone", "raw", "review"):
        assert packages[extra] <= packages["laptop"], extra
    assert "nvidia-pytriton" not in packages["laptop"]


def test_development_needs_every_extra() -> None:
    packages = extras()
    assert [name for name in packages if name not in ONE_OF and not packages[name] <= packages["dev"]] == []


def test_the_package_page_lists_every_extra_for_users() -> None:
    listed = re.findall(r"^\| `(\w+)` \|", (ROOT / "docs" / "package.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert set(listed) == extras().keys() - FOR_DEVELOPERS


@pytest.mark.parametrize(("target", "dev"), [("demo", False), ("test", True), ("install", True)])
def test_the_first_make_installs_what_it_needs(target: str, dev: bool, tmp_path: Path) -> None:
    command = ["make", "--dry-run", target, f"VENV={tmp_path / 'venv'}"]
    shown = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert "-m venv" in shown
    assert ("'.[dev]'" in shown) is dev
    assert ("'.[cli,dedup,server]'" in shown) is not dev


def test_make_test_installs_the_rest_after_make_demo(tmp_path: Path) -> None:
    python = tmp_path / "venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.touch()
    (tmp_path / "venv" / ".demo-installed").touch()

    def shown(target: str) -> str:
        command = ["make", "--dry-run", target, f"VENV={tmp_path / 'venv'}"]
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout

    assert "pip install" not in shown("demo")
    assert "'.[dev]'" in shown("test")
