"""The tables of README.md and docs/performance.md, as Markdown made from the kept results.

``python -m benchmarks report`` writes them between ``<!-- NAME -->`` and ``<!-- /NAME -->``. A test compares the files
with the results that they name, so a new result breaks no test before you run the report. Their text is in
``templates/tables.md`` and, for the README's table of single figures, ``templates/figures.md``.
"""

from __future__ import annotations

import re
import statistics
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from jinja2 import Environment, FileSystemLoader, StrictUndefined, UndefinedError, select_autoescape

from benchmarks.experiments.packaging.install_size import EXTRAS
from benchmarks.experiments.serving.operators import EXPORTED, FLOP_PER_IMAGE
from benchmarks.experiments.serving.three_way import SYSTEMS
from benchmarks.report import efficiency_breakdown

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    Result = Mapping[str, Any]
    Results = Mapping[str, Result]

MARKED: Final = re.compile(r"(<!-- (?P<name>[a-z_]+) -->\n).*?(<!-- /(?P=name) -->)", re.DOTALL)
PARTS: Final = {
    "ratios": "three_way",
    "queue_delay": "queue_delay",
    "latency": "latency",
    "precision": "precision",
    "travel": "serialisation",
    "operators": "operators",
    "scaling": "scaling",
    "install_size": "install_size",
}
"""Marker and macro -> the experiment whose result it shows. The README's marker ``benchmarks`` is :func:`readme`."""
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
    """Return ``text`` with its marked parts rewritten; a marker that :data:`PARTS` does not know stays as it is."""

    def part(match: re.Match[str]) -> str:
        name = match["name"]
        if name == "benchmarks":
            return f"{match[1]}{readme(results)}\n{match[3]}"
        return f"{match[1]}{part_of(name, results)}\n{match[3]}" if name in PARTS else match[0]

    return MARKED.sub(part, text)


def part_of(name: str, results: Results) -> str:
    """The text for a marker in :data:`PARTS`."""
    experiment = PARTS[name]
    if experiment not in results:
        return f"Not measured yet: `python -m benchmarks {experiment}`."
    return _macro(name)(results[experiment])


def readme(results: Results) -> str:
    """All tables of the README."""
    on_a_card = of_gpus(results)
    breakdown = efficiency_breakdown.of_gpu(on_a_card)
    parts = [_macro(name)(results[name]) for name in ("three_way", "end_to_end") if name in results]
    parts.append(_macro("on_a_gpu")(list(on_a_card.values()), breakdown.steps if breakdown else ()))
    rows = []
    source = partial(_macro("source"), folder="benchmarks/results")
    for row in _ROW.findall((TEMPLATES / "figures.md").read_text(encoding="utf-8")):
        with suppress(UndefinedError):  # no result, or one of a part only
            rows.append(ENVIRONMENT.from_string(row).render(results, source=source))
    if rows:
        parts.append("\n".join(["| what | figure | of `python -m benchmarks ...` |", "|---|---:|---:|", *rows]))
    return "\n\n".join(parts)


def _macro(name: str) -> Callable[..., str]:
    """The macro of ``tables.md``, without the blank lines around its text."""
    macro = getattr(ENVIRONMENT.get_template("tables.md").module, name)
    return lambda *arguments, **named: macro(*arguments, **named).strip()


def named(text: str) -> set[str]:
    """The result files that ``text`` names between its markers."""
    return {name for marked in MARKED.finditer(text) for name in _RESULT_LINK.findall(marked[0])}


def of_gpus(results: Results) -> dict[str, Result]:
    """The results of ``python -m benchmarks gpu`` that were measured on a card; it can also run on a CPU."""
    return {
        name: result for name, result in results.items() if name.startswith("gpu_") and result.get("device") != "cpu"
    }


def _median_ratio(of: Sequence[float], to: Sequence[float]) -> float:
    """Rounds of two systems -> the median of the ratios within each round."""
    return statistics.median(a / b for a, b in zip(of, to, strict=True))


def _memory_growth(series: Mapping[str, Mapping[str, float]]) -> float:
    """The largest growth of a soak's memory from its second tenth to its last, as a share."""
    return max(one["last_tenth"] / one["second_tenth"] - 1 for name, one in series.items() if ", memory" in name)


ENVIRONMENT.globals.update(
    SYSTEMS=SYSTEMS,
    EXTRAS=EXTRAS,
    EXPORTED=EXPORTED,
    FLOP_PER_IMAGE=FLOP_PER_IMAGE,
    median_ratio=_median_ratio,
    memory_growth=_memory_growth,
)
ENVIRONMENT.tests["startswith"] = str.startswith
