"""The pages name files that exist, and repeat the contract as the code defines it."""

import json
import math
import re
import subprocess
import sys
from pathlib import Path

import pytest

from clip_client import ClientConfig
from preprocess_ensemble.contract import ImageStatus
from tests.fixtures.packaging.extras import extras
from tests.fixtures.packaging.pages import blocks
from tests.paths import ROOT

FRONT = ("CODE_OF_CONDUCT.md", "CONTRIBUTING.md", "README.md", "SECURITY.md", ".github/PULL_REQUEST_TEMPLATE.md")
PAGES = (*sorted((ROOT / "docs").glob("*.md")), *(ROOT / name for name in FRONT))
PAGES_AND_CHANGELOG = pytest.mark.parametrize("page", [*PAGES, ROOT / "CHANGELOG.md"], ids=lambda page: page.name)
TRACKED_FOLDERS = ("benchmarks", "clip_client", "containers", "docs", "examples", "preprocess_ensemble", "tests")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_what_a_page_names_exists(page: Path) -> None:
    text = page.read_text()
    # A name behind a command ("pytest tests/live/...") counts, too; one with a placeholder or a wildcard does not.
    named = re.findall(rf"(?<![\w./~-])((?:{'|'.join(TRACKED_FOLDERS)})/[\w./-]*\w/?)(?![\w*<{{])", text)
    assert [name for name in named if not (ROOT / name).exists()] == []
    for name in re.findall(r"`((?:clip_client|preprocess_ensemble|benchmarks)(?:\.\w+){2,})(?:\(\))?`", text):
        path, rest = ROOT, name.split(".")
        while rest and (path / rest[0]).is_dir():
            path /= rest.pop(0)
        path = path / f"{rest.pop(0)}.py" if rest and (path / f"{rest[0]}.py").exists() else path / "__init__.py"
        assert not rest or re.search(rf"\b{rest[0]}\b", path.read_text()), name


def test_the_readme_says_what_a_client_sends_by_default() -> None:
    page = (ROOT / "README.md").read_text()
    assert re.findall(r"clip\.embed\(.*# sends a (\w+) of each", page) == [ClientConfig().transfer]


def test_the_table_of_status_codes_is_the_code() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text()
    assert re.findall(r"^\| (\d+) \| ([A-Z_0-9]+) \|", page, re.MULTILINE) == [
        (str(int(status)), status.name) for status in ImageStatus
    ]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_block_has_a_language_and_is_run_or_says_why_not(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for language, code, note in blocks(text):
        assert language in ("sh", "python", "text"), code
        test = re.fullmatch(r"run by (tests/\S+\.py)", note)
        assert note.startswith("not run: ") or not note or (test and page.name in (ROOT / test[1]).read_text()), code
    assert len(blocks(text)) * 2 == len(re.findall(r"^```", text, re.MULTILINE))


@PAGES_AND_CHANGELOG
def test_links_lead_to_files_and_headings_that_exist(page: Path) -> None:
    for link in re.findall(r"\]\((?!https?:)([^)\s]+)\)", page.read_text()):
        name, _, heading = link.partition("#")
        target = page.parent / name if name else page
        assert target.exists(), link
        assert not heading or heading in _anchors(target), link


@PAGES_AND_CHANGELOG
def test_lines_that_a_person_writes_have_at_most_120_characters(page: Path) -> None:
    written = re.sub(r"<!-- (\w+) -->\n.*?<!-- /\1 -->", "", page.read_text(), flags=re.DOTALL)
    lines = re.sub(r"https?://\S+", "", written).splitlines()
    assert [line for line in lines if len(line) > 120 and not line.startswith("|")] == []


def test_the_tests_that_a_page_names_exist() -> None:
    page = (ROOT / "docs" / "elsewhere.md").read_text()
    for path, name in re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", page):
        assert not name or re.search(rf"^(?:async )?def {name}\(", (ROOT / path).read_text(), re.MULTILINE), name
    rows = [line for line in page.splitlines() if line.startswith("| ")][1:]
    assert [row for row in rows if "https://github.com/" not in row or "`tests/" not in row] == []


def test_each_task_names_the_files_that_it_touches_and_its_test() -> None:
    _, *tasks = re.split(r"^## ", (ROOT / "docs" / "tasks.md").read_text(), flags=re.MULTILINE)
    assert len(tasks) == 11
    for task in tasks:
        code, _, tests = task.partition("Test: ")
        assert re.search(r"`(?:clip_client|preprocess_ensemble|benchmarks)/[\w/]+(?:\.\w+)?", code), task
        assert re.match(r"`tests/[\w/]+\.py`", tests), task


def test_pages_and_messages_install_extras_that_exist() -> None:
    hint = re.compile(
        r"""(?:pip install '\.\[|pip_install\(['"]|require\("[\w.]+", "|extras="|EXTRA: Final = ")([\w,-]+)"""
    )
    folders = [ROOT / name for name in ("clip_client", "preprocess_ensemble", "examples")]
    code = (path for folder in folders for ending in ("py", "ipynb") for path in folder.rglob(f"*.{ending}"))
    named = {
        (path.name, extra)
        for path in (*PAGES, *code)
        for extras_named in hint.findall(path.read_text("utf-8"))
        for extra in extras_named.split(",")
    }
    assert len(named) > 40
    assert {(name, extra) for name, extra in named if extra not in extras()} == set()


def test_the_page_on_scale_says_how_fast_the_time_of_grouping_was_measured_to_grow() -> None:
    (results,) = (ROOT / "benchmarks" / "results").glob("scale-*.json")
    searches = json.loads(results.read_text())["searches"]
    growth = [
        searches[f"{10 * vectors:,} vectors, {engine}"][time] / searches[f"{vectors:,} vectors, {engine}"][time]
        for vectors in (10_000, 100_000)
        for engine in ("one machine", "Ray")
        for time in ("seconds", "processor_seconds")
    ]
    assert f"grew with a power of at most {math.log10(max(growth)):.1f}." in (ROOT / "docs" / "scale.md").read_text()


def test_github_can_read_the_forms_of_issues() -> None:
    forms = map(str, (ROOT / ".github" / "ISSUE_TEMPLATE").glob("[!c]*.yml"))
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.github-issue-forms", *forms]
    checked = subprocess.run(command, check=False, capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout


def _anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(
        r"^#+ (.*)$", re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE), re.M
    )
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
