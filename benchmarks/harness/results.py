"""Where results are kept, how one is written, and how one is shown."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rich.console import Console
from rich.table import Table

from benchmarks.harness.environment import environment

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

RESULTS: Final = Path(__file__).parents[1] / "results"


def write_result(experiment: str, result: Mapping[str, Any], directory: Path = RESULTS) -> Path:
    """Keep ``result`` with the environment as ``<experiment>-<date>-<commit>.json`` and return the path."""
    record = {"experiment": experiment, "environment": environment(), **result}
    day = record["environment"]["time"][:10]
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"{experiment}-{day}-{record['environment']['commit'] or 'unknown'}.json"
    path.write_text(json.dumps(record, indent=1) + "\n")
    return path


def show(title: str, headings: Sequence[str], rows: Iterable[Sequence[str]], *, width: int | None = None) -> None:
    """Print a table; all columns but the first are numbers."""
    table = Table(title=title)
    for number, heading in enumerate(headings):
        table.add_column(heading, justify="right" if number else "left", no_wrap=width is not None)
    for row in rows:
        table.add_row(*row)
    Console(width=width).print(table)
