"""The tables of README.md and docs/performance.md, as Markdown made from the kept results.

``python -m benchmarks report`` writes them between ``<!-- NAME -->`` and ``<!-- /NAME -->``. A test compares the files
with the results that they name, so a new result breaks no test before you run the report. The text of the tables is in
``templates/tables.md``; the rows of single figures are in ``templates/readme_figures.md`` and ``templates/figures.md``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final

from jinja2 import Environment, FileSystemLoader, StrictUndefined, UndefinedError, select_autoescape

from benchmarks.experiments import search
from benchmarks.experiments.dedup import first_scan
from benchmarks.experiments.serving.three_way import SYSTEMS
from benchmarks.harness.rounds import median_of
from benchmarks.scripts.install_size import EXTRAS
from clip_client._encoding import IMAGE_ENCODINGS

Result = Mapping[str, Any]
Results = Mapping[str, Result]

MARKED: Final = re.compile(r"(<!-- (?P<name>[a-z_]+) -->\n).*?(<!-- /(?P=name) -->)", re.DOTALL)
TABLES: Final = (
    "three_way", "ratios", "ensemble", "queue_delay", "transfer", "first_scan", "search", "accuracy", "install_size",
)  # fmt: skip
"""Markers of tables, each with a macro of its name."""
COMMANDS: Final = {
    "ratios": "three_way",
    "queue_delay": (
        "ensemble --name queue_delay --parts --delay-us 0 1000 10000 100000 --encoders 1 2 --concurrency 1 64"
    ),
}
"""Marker -> the command that makes its result, if it has another name than the marker."""
FIGURES: Final = {
    "benchmarks": ("readme_figures.md", "benchmarks/results"),
    "figures": ("figures.md", "../benchmarks/results"),
}
"""Marker of a table of single figures -> the file with its rows, and the folder of results from where the table is."""
TEMPLATES: Final = Path(__file__).parent / "templates"
ENVIRONMENT: Final = Environment(
    loader=FileSystemLoader(TEMPLATES),
    autoescape=select_autoescape(["html"], default_for_string=False),
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_RESULT_LINK: Final = re.compile(r"benchmarks/results/([^)/]+\.json)\)")
_ROW: Final = re.compile(r"^\|.*?(?=^[|{]|\Z)", re.DOTALL | re.MULTILINE)


def fill(text: str, results: Results) -> str:
    """Return ``text`` with its marked parts rewritten; an unknown marker stays as it is."""

    def part(match: re.Match[str]) -> str:
        known = match["name"] in (*TABLES, *FIGURES, "gpu")
        return f"{match[1]}{part_of(match['name'], results)}\n{match[3]}" if known else match[0]

    return MARKED.sub(part, text)


def part_of(name: str, results: Results) -> str:
    """The text for a marker that :func:`fill` knows."""
    if name in FIGURES:
        return _figures(*FIGURES[name], results)
    if name == "gpu":
        return _macro("on_a_gpu")(of_gpus(results))
    kept = _experiment_of(name)
    if kept not in results:
        return f"Not measured yet: `python -m benchmarks {COMMANDS.get(name, name)}`."
    return _macro(name)(results[kept])


def tables_of(path: Path) -> str:
    """The tables that show one result file."""
    result = {**json.loads(path.read_text(encoding="utf-8")), "file": path.name}
    names = [name for name in TABLES if _experiment_of(name) == result["experiment"]]
    return "\n\n".join(part_of(name, {result["experiment"]: result}) for name in names)


def _experiment_of(table: str) -> str:
    return "three_way" if table == "ratios" else table


def _figures(template: str, folder: str, results: Results) -> str:
    """A table of single figures; a row is left out if its experiment has no result, or was run only in part."""
    rows = []
    source = partial(_macro("source"), folder=folder)
    for row in _ROW.findall((TEMPLATES / template).read_text(encoding="utf-8")):
        with suppress(UndefinedError):
            rows.append(ENVIRONMENT.from_string(row).render(results, source=source))
    if not rows:
        return "Not measured yet: `python -m benchmarks all`."
    return "\n".join(["| what | figure | of `python -m benchmarks ...` |", "|---|---:|---:|", *rows])


def _macro(name: str) -> Callable[..., str]:
    """The macro of ``tables.md``, without the blank lines around its text."""
    macro = getattr(ENVIRONMENT.get_template("tables.md").module, name)
    return lambda *arguments, **named: macro(*arguments, **named).strip()


def named(text: str) -> set[str]:
    """The result files that ``text`` names between its markers."""
    return {name for marked in MARKED.finditer(text) for name in _RESULT_LINK.findall(marked[0])}


def of_gpus(results: Results) -> list[Result]:
    """The results of ``python -m benchmarks gpu`` that were measured on a card; it can also run on a CPU."""
    return [
        result
        for name, result in results.items()
        if name.startswith("gpu_") and result.get("plan", {}).get("device") == "cuda"
    ]


def _memory_growth(series: Mapping[str, Mapping[str, float]]) -> float:
    """The largest growth of a soak's memory from its second tenth to its last, as a share."""
    return max(one["last_tenth"] / one["second_tenth"] - 1 for name, one in series.items() if ", memory" in name)


ENVIRONMENT.globals.update(
    SYSTEMS=SYSTEMS,
    EXTRAS=EXTRAS,
    FIRST_SCAN_SYSTEMS=first_scan.SYSTEMS,
    SEARCH_SYSTEMS=search.SYSTEMS,
    REST=first_scan.REST,
    IMAGE_ENCODINGS=IMAGE_ENCODINGS,
    median_of=median_of,
    memory_growth=_memory_growth,
)
