"""What do the kept results show? Writes the tables in the documents, and the README's picture.

The newest JSON of each experiment counts. No number is typed by hand: the text in the README and in
docs/performance.md between marker lines is written here (see ``markdown_tables``).
"""

from __future__ import annotations

import argparse
import io
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import matplotlib as mpl
from matplotlib.figure import Figure

from benchmarks.experiments.serving.three_way import BY_PRECISION, SYSTEMS
from benchmarks.harness.results import RESULTS
from benchmarks.report import markdown_tables

DOCUMENTS: Final = (Path("README.md"), Path("docs/performance.md"))
"""Files with generated tables between markers."""
INK, OURS, OTHERS = "#1f2933", "#2563eb", "#9aa5b1"
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
            color=[OURS if name in (*BY_PRECISION, "ensemble", "client") else OTHERS for name in systems],
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
    """Write the picture, and the tables in the documents."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks report", description=__doc__)
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of JSON files (default: %(default)s)")
    results = newest(parser.parse_args().results)
    if "three_way" in results:
        (RESULTS / "three_way.png").write_bytes(three_way(results["three_way"]["summary"]))
    for document in DOCUMENTS:
        document.write_text(markdown_tables.fill(document.read_text(encoding="utf-8"), results), encoding="utf-8")
        print(f"tables: {document}")
