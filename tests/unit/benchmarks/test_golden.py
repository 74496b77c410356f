"""Changes in the comparison of two checkouts, each a folder with a command that prints a report."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.experiments.dedup.golden import main

GOOD, POOR = "good.jpg", "poor.jpg"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in (GOOD, POOR, "other.jpg"):
        path = tmp_path / "copies" / "00" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    return tmp_path / "copies"


def checkout(root: Path, name: str, *, moved: str, kept: str, moves: str = "by default") -> Path:
    """A checkout whose command reports one group of the files in the folder that it searches."""
    verdict = {"tier": "re-encoded", "kept": kept, "moves": moves, "reason": ""}
    verdicts: dict[str, Any] = {kept: {**verdict, "kept": None, "moves": "never"}, moved: verdict}
    command = root / name / ".venv" / "bin" / "clip-client"
    command.parent.mkdir(parents=True)
    command.write_text(
        f"#!{sys.executable}\nimport json, sys\nfolder, members = sys.argv[-1], []\n"
        f"for name, verdict in {verdicts!r}.items():\n"
        "    kept = verdict['kept'] and f\"{folder}/{verdict['kept']}\"\n"
        "    members.append({'path': f'{folder}/{name}', 'verdict': {**verdict, 'kept': kept}})\n"
        "print(json.dumps({'groups': [{'members': members}], 'failed': []}))\n"
    )
    command.chmod(0o755)
    return root / name


def changes(monkeypatch: pytest.MonkeyPatch, folder: Path, old: Path, new: Path) -> tuple[int, dict[str, str]]:
    output = folder.parent / "output"
    options = [str(folder), "--old", str(old), "--new", str(new), "--output", str(output)]
    monkeypatch.setattr(sys, "argv", ["golden", *options])
    code = main()
    rows = [json.loads(line) for line in (output / "changes.jsonl").read_text().splitlines()]
    return code, {row["file"]: row["change"] for row in rows}


def test_each_kind_of_change_is_named(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    old = checkout(tmp_path, "old", moved=POOR, kept=GOOD)
    shown = checkout(tmp_path, "shown", moved=POOR, kept=GOOD, moves="if chosen")
    turned = checkout(tmp_path, "turned", moved=GOOD, kept=POOR)
    other = checkout(tmp_path, "other", moved=POOR, kept="other.jpg")
    assert changes(monkeypatch, folder, old, old) == (0, {})
    assert changes(monkeypatch, folder, old, shown) == (1, {POOR: "moves no longer"})
    assert changes(monkeypatch, folder, shown, old) == (1, {POOR: "moves now"})
    assert changes(monkeypatch, folder, old, turned) == (1, {GOOD: "changed places", POOR: "changed places"})
    assert changes(monkeypatch, folder, old, other)[1][POOR] == "other kept file"
    assert "1 moves now" in capsys.readouterr().out


def test_the_lines_of_an_earlier_run_stand_for_a_checkout(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = checkout(tmp_path, "old", moved=POOR, kept=GOOD)
    changes(monkeypatch, folder, old, old)
    kept = (tmp_path / "output" / "old.jsonl").rename(tmp_path / "kept.jsonl")
    shown = checkout(tmp_path, "shown", moved=POOR, kept=GOOD, moves="if chosen")
    assert changes(monkeypatch, folder, kept, shown) == (1, {POOR: "moves no longer"})
