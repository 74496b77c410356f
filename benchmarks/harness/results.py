"""Where results are kept, and how one is written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from benchmarks.harness.environment import environment

if TYPE_CHECKING:
    from collections.abc import Mapping

RESULTS: Final = Path(__file__).parents[1] / "results"


def write_result(experiment: str, result: Mapping[str, Any], directory: Path = RESULTS) -> Path:
    """Keep ``result`` with the environment as ``<experiment>-<date>-<commit>.json`` and return the path."""
    record = {"experiment": experiment, "environment": environment(), **result}
    day = record["environment"]["time"][:10]
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"{experiment}-{day}-{record['environment']['commit'] or 'unknown'}.json"
    path.write_text(json.dumps(record, indent=1) + "\n")
    return path
