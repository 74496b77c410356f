"""What do the kept results show? Writes one page, the README's picture, and the tables in the documents.

The newest JSON of each experiment counts. No number is typed by hand: the text in the README and in
docs/performance.md between marker lines is written here (see ``markdown_tables``).
"""

from __future__ import annotations

import argparse
import io
import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import matplotlib as mpl
from matplotlib.figure import Figure

from benchmarks.experiments.serving.three_way import SYSTEMS
from benchmarks.harness.results import RESULTS
from benchmarks.report import efficiency_breakdown, markdown_tables
from benchmarks.report.gpu_rows import rows_of

Results = Mapping[str, Mapping[str, Any]]

_RESULTS_FOLDER: Final = re.compile(r"\]\((\.\./)?benchmarks/results/")
DOCUMENTS: Final = (Path("README.md"), Path("docs/performance.md"))
"""Files with generated tables between markers."""
INK: Final = "#1f2933"
OURS: Final = "#2563eb"
OTHERS: Final = "#9aa5b1"
STYLE: Final[dict[Any, Any]] = {
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": OTHERS,
    "axes.labelcolor": INK,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "figure.constrained_layout.use": True,
    "savefig.dpi": 130,
}


def newest(directory: Path) -> dict[str, dict[str, Any]]:
    """Experiment -> its newest result, by the time that the result states."""
    return _newest(directory.glob("*.json"))


def stated(text: str, directory: Path) -> dict[str, dict[str, Any]]:
    """Experiment -> the result that ``text`` names between its markers, whatever else ``directory`` holds."""
    return _newest(directory / name for name in markdown_tables.named(text))


def _newest(paths: Iterable[Path]) -> dict[str, dict[str, Any]]:
    results = [{**json.loads(path.read_text()), "file": path.name} for path in sorted(paths)]
    kept = [result for result in results if result.get("experiment") and "environment" in result]
    return {result["experiment"]: result for result in sorted(kept, key=lambda one: one["environment"]["time"])}


def render(results: Results, directory: Path, *, price_per_hour: float | None = None) -> Path:
    """Write ``report.md`` and the README's picture into ``directory``; return the page's path."""
    if "three_way" in results:
        (directory / "three_way.png").write_bytes(three_way(results["three_way"]["summary"]))
    text = markdown_tables.ENVIRONMENT.get_template("report.md").render(
        results=results,
        titles=markdown_tables.TITLES,
        tables={name: markdown_tables.part_of(name, results) for name in (*markdown_tables.TITLES, "gpu")},
        cpu=efficiency_breakdown.of_cpu(results),
        gpu=[(result, rows_of(result)) for _, result in sorted(markdown_tables.of_gpus(results).items())],
        price_per_hour=price_per_hour,
    )
    path = directory / "report.md"
    # The links of the tables are those of the documents; the results lie beside this page.
    path.write_text(_RESULTS_FOLDER.sub("](", text), encoding="utf-8")
    return path


def three_way(summary: Mapping[str, Any]) -> bytes:
    """Images per second of each system at the highest concurrency, with the range over the rounds, as PNG."""
    systems = dict(reversed(summary["systems"].items()))
    most = max(next(iter(systems.values()))["at"], key=int)
    rates = [row["at"][most]["images_per_second"] for row in systems.values()]
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(8, 0.42 * len(systems) + 1))
        axes = figure.subplots()
        bars = axes.barh(
            [SYSTEMS[name] for name in systems],
            [rate["median"] for rate in rates],
            xerr=[[rate["median"] - rate["min"] for rate in rates], [rate["max"] - rate["median"] for rate in rates]],
            ecolor=INK,
            color=[OURS if name in ("ensemble", "client", "openvino-bf16") else OTHERS for name in systems],
            height=0.7,
        )
        invalid = ["" if row["valid"] else "  invalid: other vectors" for row in systems.values()]
        labels = [f"{rate['median']:.1f}{why}" for rate, why in zip(rates, invalid, strict=True)]
        axes.bar_label(bars, labels, padding=5)
        axes.set(xlabel=f"images per second, concurrency {most}; line: slowest to fastest round", xmargin=0.12)
        picture = io.BytesIO()
        figure.savefig(picture)
    return picture.getvalue()


def main() -> None:
    """Write the page and the picture, and the tables in the documents."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of JSON files; the page is written there")
    parser.add_argument(
        "--page-only", action="store_true", help=f"leave {' and '.join(map(str, DOCUMENTS))} as they are"
    )
    parser.add_argument("--price-per-hour", type=float, help="of the machine, for the cost of 1,000 images")
    arguments = parser.parse_args()
    results = newest(arguments.results)
    print(f"page: {render(results, arguments.results, price_per_hour=arguments.price_per_hour)}")
    for document in () if arguments.page_only else DOCUMENTS:
        document.write_text(markdown_tables.fill(document.read_text(encoding="utf-8"), results), encoding="utf-8")
        print(f"tables: {document}")
