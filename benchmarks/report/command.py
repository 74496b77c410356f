"""What do the kept results show? Writes one page, its pictures, and the tables in the documents.

The newest JSON of each experiment counts. No number is typed by hand: the text in the README and in
docs/performance.md between marker lines is written here (see ``markdown_tables``).
"""

from __future__ import annotations

import argparse
import base64
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from benchmarks.harness.results import RESULTS
from benchmarks.peers.published import FIGURES, HARDWARE
from benchmarks.report import efficiency_breakdown, markdown_tables, plots
from benchmarks.report.gpu_rows import rows_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from matplotlib.figure import Figure

    Results = Mapping[str, Mapping[str, Any]]

PICTURES: Final[Mapping[str, tuple[Callable[[Mapping[str, Any]], Figure], ...]]] = {
    "three_way": (plots.three_way,),
    "queue_delay": (plots.queue_delay, plots.batches),
    "latency": (plots.latency,),
    "serialisation": (plots.serialisation, plots.links),
    "precision": (plots.precision,),
    "operators": (plots.operators,),
    "scaling": (plots.scaling,),
}
"""Experiment -> the functions that draw its result. A function's name is that of its picture."""
DOCUMENTS: Final = (Path("README.md"), Path("docs/performance.md"))
"""Files with generated tables between markers."""


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


def measured_here(results: Results) -> dict[str, float]:
    """Our values for the comparison with the published ones; those that were not measured are missing."""
    values: dict[str, float] = {}
    if latency := results.get("latency"):
        curve = latency["summary"]["by_concurrency"]
        model_ms = curve[0]["server_ms"]["clip_encoder"]["compute_infer"]
        p50 = curve[0]["latency_ms"]["p50"]
        values = {
            "single_p50_ms": p50,
            "single_model_ms": model_ms,
            "single_other_percent": max(0.0, 100 * (1 - model_ms / p50)),
            "saturated_rate": max(point["rate"] for point in curve),
        }
    if delay := results.get("queue_delay"):
        cells = plots.recommended_cells(delay["summary"])
        values["share_batched_percent"] = 100 * max(cells, key=lambda cell: cell["concurrency"])["share_batched"]
    return values


def render(results: Results, directory: Path, *, price_per_hour: float | None = None) -> Path:
    """Write the pictures and ``report.html``, which embeds them, into ``directory``; return the page's path."""
    drawn = {
        draw.__name__: draw(results[name]["summary"])
        for name, functions in PICTURES.items()
        if name in results
        for draw in functions
    }
    on_a_card = markdown_tables.of_gpus(results)
    breakdowns = {
        "roofline": efficiency_breakdown.of_cpu(results),
        "gpu_roofline": efficiency_breakdown.of_gpu(on_a_card),
    }
    drawn |= {name: plots.roofline(shown) for name, shown in breakdowns.items() if shown and shown.can_be_drawn}
    pictures = {}
    for name, figure in drawn.items():
        data = plots.png(figure)
        (directory / f"{name}.png").write_bytes(data)
        pictures[name] = base64.b64encode(data).decode("ascii")
    page = markdown_tables.ENVIRONMENT.get_template("report.html").render(
        results=results,
        pictures=pictures,
        missing=[name for name in PICTURES if name not in results],
        breakdowns=breakdowns,
        published=FIGURES,
        ours=measured_here(results),
        hardware=HARDWARE,
        price_per_hour=price_per_hour,
        gpu=[(result, rows_of(result)) for _, result in sorted(on_a_card.items())],
        others=[results[name] for name in sorted(results.keys() - PICTURES.keys()) if not name.startswith("gpu_")],
    )
    path = directory / "report.html"
    path.write_text(page, encoding="utf-8")
    return path


def main() -> None:
    """Write page and pictures, and the tables in the documents."""
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


if __name__ == "__main__":
    main()
