"""Does another checkout of this project move the same photos? Runs ``clip-client dedup`` of both, without a model.

``python -m benchmarks golden FOLDER... --old A --new B``. A and B are checkouts with an environment in ``.venv``, or
JSON lines that an earlier run wrote. Each FOLDER is a class of cases, and each of its sub-folders a case, which is
searched by itself; a FOLDER without sub-folders is one case. Nothing is moved. The output folder holds ``old.jsonl``
and ``new.jsonl``, a line for each file, and ``changes.jsonl``, a line for each file that the two treat differently.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any, Final

from benchmarks.harness.experiment import say

Row = dict[str, Any]
"""One file: class, case, file, tier, moves, reason, kept."""
MOVES: Final = "by default"
"""Word of the report for a file that ``--apply`` moves."""
CHANGES: Final = ("moves now", "moves no longer", "changed places", "other kept file", "other verdict", "other reason")
_TIMEOUT_S: Final = 900


def outcomes(folder: Path, command: Path) -> list[Row]:
    """Search one case and return a row for each of its files, in the order of their names."""
    with tempfile.TemporaryDirectory() as store:
        words: list[str | Path] = [command, "dedup", *"--without-model --quiet --json - --store".split(), store, folder]
        try:
            done = subprocess.run(words, capture_output=True, check=False, timeout=_TIMEOUT_S)
            report = json.loads(done.stdout or b"{}")
            problem = f"exit code {done.returncode}" if done.returncode else "alone"
        except subprocess.TimeoutExpired:
            report, problem = {}, f"more than {_TIMEOUT_S} s"
    found: dict[str, tuple[str, str, str, str | None]] = {}
    for item in report.get("failed", []):
        found[item["path"]] = ("failed", "never", str(item["code"]), None)
    for member in (member for group in report.get("groups", []) for member in group["members"]):
        verdict = member["verdict"]
        kept = verdict["kept"] and str(Path(verdict["kept"]).relative_to(folder))
        tier = verdict["tier"] if kept else "kept"
        found[member["path"]] = (tier, verdict["moves"], verdict["reason"], kept)
    rows = []
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        tier, moves, reason, kept = found.get(str(path), (problem, "never", "", None))
        name = str(path.relative_to(folder))
        rows.append({"file": name, "tier": tier, "moves": moves, "reason": reason, "kept": kept})
    return rows


def searched(side: Path, folders: list[Path], output: Path) -> list[Row]:
    """Return the rows of one side: of an earlier run, or of a search with its checkout, which writes ``output``."""
    if side.is_file():
        rows = [json.loads(line) for line in side.read_text().splitlines()]
        return [row for row in rows if row["class"] in {folder.name for folder in folders}]
    rows = []
    command = side.absolute() / ".venv" / "bin" / "clip-client"
    with output.open("w") as file:
        for folder in folders:
            cases = sorted(path for path in folder.iterdir() if path.is_dir()) or [folder]
            for case in cases:
                made = [{"class": folder.name, "case": case.name, **row} for row in outcomes(case, command)]
                file.writelines(f"{json.dumps(row)}\n" for row in made)
                file.flush()
                rows += made
            say(f"{side}: {folder.name}, {len(cases)} cases")
    return rows


def compared(old: list[Row], new: list[Row]) -> list[Row]:
    """Return a row with both outcomes for each file that both searched and treat differently."""
    before = {(row["class"], row["case"], row["file"]): row for row in old}
    pairs = [(before[key], row) for row in new if (key := (row["class"], row["case"], row["file"])) in before]
    changes = [{**now, "change": change_of(was, now), "old": was} for was, now in pairs]
    by_name = {(row["class"], row["case"], row["file"]): row for row in changes}
    for row in changes:
        other = by_name.get((row["class"], row["case"], row["kept"]))
        if row["change"] == "moves now" and other is not None and other["change"] == "moves no longer":
            row["change"] = other["change"] = "changed places"
    return [row for row in changes if row["change"]]


def change_of(was: Row, now: Row) -> str:
    """Return the first of :data:`CHANGES` that holds, or an empty text."""
    moved, moves = was["moves"] == MOVES, now["moves"] == MOVES
    if moved != moves:
        return "moves now" if moves else "moves no longer"
    for change, keys in (("other kept file", ("kept",)), ("other verdict", ("tier", "moves"))):
        if any(was[key] != now[key] for key in keys):
            return change
    return "other reason" if was["reason"] != now["reason"] else ""


def table(old: list[Row], new: list[Row], changes: list[Row]) -> str:
    """Return counts by class: cases and files, how many files move, and each kind of change."""
    lines = [f"{'class':<40}{'cases':>6}{'files':>6}{'moved':>6}{'now':>6}  changes"]
    for kind in dict.fromkeys(row["class"] for row in new):
        was, now = ([row for row in side if row["class"] == kind] for side in (old, new))
        moved, moves = (sum(row["moves"] == MOVES for row in side) for side in (was, now))
        counts = Counter(row["change"] for row in changes if row["class"] == kind)
        told = ", ".join(f"{counts[change]} {change}" for change in CHANGES if counts[change])
        cases = len({row["case"] for row in now})
        lines.append(f"{kind:<40.40}{cases:>6}{len(now):>6}{moved:>6}{moves:>6}  {told}".rstrip())
    return "\n".join(lines)


def main() -> int:
    """Search, compare and print; 1 if the same files do not move."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks golden", description=__doc__)
    parser.add_argument("folders", nargs="+", type=Path, metavar="FOLDER", help="a class of cases")
    parser.add_argument("--old", required=True, type=Path, help="a checkout, or JSON lines of an earlier run")
    parser.add_argument("--new", type=Path, help="another (default: none, only OLD is searched)")
    parser.add_argument("--output", type=Path, default=Path("build/golden"), help="folder (default: %(default)s)")
    options = parser.parse_args()
    options.output.mkdir(parents=True, exist_ok=True)
    folders = [folder.absolute() for folder in options.folders if folder.is_dir()]
    old = searched(options.old, folders, options.output / "old.jsonl")
    new = searched(options.new, folders, options.output / "new.jsonl") if options.new else old
    changes = compared(old, new)
    (options.output / "changes.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in changes))
    print(table(old, new, changes))
    for row in changes:
        if row["change"] in CHANGES[:3]:
            was, now = (f"{side['tier']}: {side['reason'] or side['moves']}" for side in (row["old"], row))
            print(f"{row['change']}: {row['class']}/{row['case']}/{row['file']}\n    was {was}\n    now {now}")
    return int(any(row["change"] in CHANGES[:3] for row in changes))


if __name__ == "__main__":
    sys.exit(main())
