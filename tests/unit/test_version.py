"""The version is one number: that of setup.cfg."""

import re
from configparser import ConfigParser
from importlib import metadata
from typing import Final

import yaml

from preprocess_ensemble.command_line import DISTRIBUTION
from tests.paths import ROOT

_CONFIG = ConfigParser()
_CONFIG.read(ROOT / "setup.cfg", encoding="utf-8")
VERSION: Final = _CONFIG["metadata"]["version"]


def _text(path: str) -> str:
    return (ROOT / path).read_text(encoding="utf-8")


def test_the_package_has_the_version_that_commands_tell() -> None:
    assert metadata.version(DISTRIBUTION) == VERSION


def test_the_chart_has_it_and_its_own_in_semantic_versioning() -> None:
    chart = yaml.safe_load(_text("containers/chart/Chart.yaml"))
    assert chart["appVersion"] == VERSION
    assert chart["version"] == VERSION.replace(".dev", "-dev.")


def test_every_image_has_it_in_a_label() -> None:
    dockerfile = _text("containers/Dockerfile")
    assert re.findall(r"^ARG VERSION=(.*)$", dockerfile, re.M) == [VERSION]
    labelled: dict[str, bool] = {}
    for parent, stage, lines in re.findall(r"^FROM (\S+) AS (\S+)\n(.*?)(?=^FROM |\Z)", dockerfile, re.S | re.M):
        labelled[stage] = labelled.get(parent, False) or 'image.version="${VERSION}"' in lines
        assert labelled[stage] or "ENTRYPOINT" not in lines, stage


def test_the_changelog_begins_with_it() -> None:
    assert re.findall(r"^## (\S+)", _text("CHANGELOG.md"), re.M)[0] == VERSION
