"""What do the kept results show? Writes the tables and the charts in the documents.

The newest JSON of each experiment counts. No number is typed by hand: the text in the documents between
``<!-- NAME -->`` and ``<!-- /NAME -->`` is written here. A test compares the files with the results that they name, so
a new result breaks no test before you run the report. The text of the tables is in ``templates/tables.md``; the rows of
single figures are in ``templates/readme_figures.md``.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final

from jinja2 import Environment, FileSystemLoader, StrictUndefined, UndefinedError, select_autoescape

from benchmarks.experiments import search
from benchmarks.experiments.dedup import first_scan
from benchmarks.experiments.serving import serialisation
from benchmarks.experiments.serving.three_way import OTHER_SERVICES, SYSTEMS, TEXT_SYSTEMS
from benchmarks.experiments.serving.transfer import CHOSEN
from benchmarks.harness.results import RESULTS, median_of
from benchmarks.report.charts import write_charts
from benchmarks.scripts.install_size import EXTRAS, LICENCES
from clip_client._encoding import IMAGE_ENCODINGS

Result = Mapping[str, Any]
Results = Mapping[str, Result]
"""Experiment -> its result."""

DOCUMENTS: Final = (Path("README.md"), Path("docs/performance.md"), Path("docs/client.md"))
MARKED: Final = re.compile(r"(<!-- (?P<name>[a-z_]+) -->\n).*?(<!-- /(?P=name) -->)", re.DOTALL)
TABLES: Final = (
    "three_way", "ratios", "text", "ensemble", "queue_delay", "serialisation", "operators", "scaling",
    "perf_analyzer", "transfer", "thumbnails", "first_scan", "search", "accuracy", "others",
    "install_size",
)  # fmt: skip
"""Markers of tables, each with a macro of its name."""
EXPERIMENTS: Final = {"ratios": "three_way", "thumbnails": "transfer"}
"""Marker -> its experiment, if that has another name."""
COMMANDS: Final = {
    "text": "three_way --text",
    "queue_delay": (
        "ensemble --name queue_delay --parts --delay-us 0 1000 10000 100000 --encoders 1 2 --concurrency 1 64"
    ),
}
"""Experiment -> the command that makes its result, if it needs options."""
FIGURES: Final = "benchmarks"
"""Marker of the table of single figures in the README."""
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
SHOWN_ENCODINGS: Final = (
    "JPEG q75 4:2:0", "JPEG q90 4:2:0", "JPEG q90 4:4:4", "JPEG q95 4:4:4",
    "WebP q80, method 2", "WebP q90, method 2", "WebP lossless", "PNG",
)  # fmt: skip
"""Encodings of thumbnails in the table: the chosen ones, and those around them. The result has all."""


def newest(paths: Iterable[Path]) -> Results:
    """Experiment -> the newest of its results, by the time that a result states."""
    results = [{**json.loads(path.read_text(encoding="utf-8")), "file": path.name} for path in sorted(paths)]
    return {result["experiment"]: result for result in sorted(results, key=lambda one: one["environment"]["time"])}


def stated(text: str, directory: Path) -> Results:
    """Experiment -> the result that ``text`` names between its markers, whatever else ``directory`` holds."""
    names = {name for marked in MARKED.finditer(text) for name in _RESULT_LINK.findall(marked[0])}
    return newest(directory / name for name in names)


def fill(text: str, results: Results) -> str:
    """Return ``text`` with its marked parts rewritten; an unknown marker stays as it is."""

    def part(match: re.Match[str]) -> str:
        known = match["name"] in (*TABLES, FIGURES, "gpu")
        return f"{match[1]}{part_of(match['name'], results)}\n{match[3]}" if known else match[0]

    return MARKED.sub(part, text)


def part_of(name: str, results: Results) -> str:
    """The text for a marker that :func:`fill` knows."""
    if name == FIGURES:
        return _figures(results)
    if name == "gpu":
        # ``python -m benchmarks gpu`` can also run on a CPU.
        on_cards = [one for one in results.values() if one["experiment"].startswith("gpu_")]
        return _macro("on_a_gpu")([one for one in on_cards if one["plan"]["device"] == "cuda"])
    kept = EXPERIMENTS.get(name, name)
    if kept not in results:
        return f"Not measured yet: `python -m benchmarks {COMMANDS.get(kept, kept)}`."
    return _macro(name)(results[kept])


def tables_of(path: Path) -> str:
    results = newest([path])
    return "\n\n".join(part_of(name, results) for name in TABLES if EXPERIMENTS.get(name, name) in results)


def _figures(results: Results) -> str:
    """The table of single figures; a row is left out if its experiment has no result, or was run only in part."""
    rows = []
    source = partial(_macro("source"), folder="benchmarks/results")
    for row in _ROW.findall((TEMPLATES / "readme_figures.md").read_text(encoding="utf-8")):
        with suppress(UndefinedError):
            rows.append(ENVIRONMENT.from_string(row).render(results, source=source, processor=_macro("processor")))
    if not rows:
        return "Not measured yet: `python -m benchmarks all`."
    return "\n".join(["| what | figure | of `python -m benchmarks ...` |", "|---|---:|---:|", *rows])


def _macro(name: str) -> Callable[..., str]:
    """The macro of ``tables.md``, without the blank lines around its text."""
    macro = getattr(ENVIRONMENT.get_template("tables.md").module, name)
    return lambda *arguments, **named: macro(*arguments, **named).strip()


def _best_service(result: Result, size: str) -> dict[str, Any]:
    """The fastest service of others, by its words, and its rate at this number of callers."""
    systems = {name: row for name, row in result["summary"]["systems"].items() if name in OTHER_SERVICES}
    rates = {name: row["at"][size]["images_per_second"]["median"] for name, row in systems.items()}
    name = max(rates, key=rates.__getitem__)
    return {"words": {**SYSTEMS, **TEXT_SYSTEMS}[name].words, "rate": rates[name]}


ENVIRONMENT.globals.update(
    SYSTEMS=SYSTEMS,
    TEXT_SYSTEMS=TEXT_SYSTEMS,
    EXTRAS=EXTRAS,
    LICENCES=LICENCES,
    FIRST_SCAN_SYSTEMS=first_scan.SYSTEMS,
    SEARCH_SYSTEMS=search.SYSTEMS,
    IMAGE_ENCODINGS=IMAGE_ENCODINGS,
    CHOSEN=CHOSEN,
    SHOWN_ENCODINGS=SHOWN_ENCODINGS,
    SERIALISATION_SYSTEMS=serialisation.SYSTEMS,
    median_of=median_of,
    best_service=_best_service,
)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks report", description=__doc__)
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of JSON files (default: %(default)s)")
    price = "price of the machine: print what a million images cost, by the rates of the newest three_way"
    parser.add_argument("--price-per-hour", type=float, help=price)
    options = parser.parse_args()
    results = newest(options.results.glob("*.json"))
    if options.price_per_hour is not None:
        for name, row in results["three_way"]["summary"]["systems"].items():
            rate = max(at["images_per_second"]["median"] for at in row["at"].values())
            print(f"{options.price_per_hour / 3600 / rate * 1e6:10.2f}  {SYSTEMS[name].words}")
    for chart in write_charts(results, RESULTS):
        print(f"chart: {chart}")
    for document in DOCUMENTS:
        document.write_text(fill(document.read_text(encoding="utf-8"), results), encoding="utf-8")
        print(f"tables: {document}")
