"""One page, its pictures and the tables in the documents, from the kept results: ``python -m benchmarks report``.

The newest JSON of each experiment counts. No number is typed by hand: the text in the README and in
docs/performance.md between marker lines is written here (see ``markdown_tables``).
"""

from __future__ import annotations

import argparse
import base64
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from benchmarks.experiments.serving.three_way import SYSTEMS
from benchmarks.harness.results import RESULTS
from benchmarks.peers.published import FIGURES, HARDWARE
from benchmarks.report import efficiency_breakdown, markdown_tables, plots
from benchmarks.report.gpu_rows import rows_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

PICTURES: Final[Mapping[str, tuple[tuple[str, str, Callable[[Mapping[str, Any]], bytes]], ...]]] = {
    "three_way": (
        (
            "three_way",
            "The same model, photos and machine, one image a request; in process: batches of that size.",
            plots.three_way,
        ),
    ),
    "queue_delay": (
        (
            "queue_delay",
            "Images per second, and the share of images that shared a run. Boxed: recommended.",
            plots.queue_delay,
        ),
        ("batches", "Batch sizes with the recommended setting.", plots.batches),
    ),
    "latency": (("latency", "Closed loop, one image a request; steps by Triton's own counters.", plots.latency),),
    "serialisation": (
        (
            "serialisation",
            "Serialise, send over loopback and parse, to a model that does nothing.",
            plots.serialisation,
        ),
        ("links", "One request after another over each line; dashes: bytes and round trip alone.", plots.links),
    ),
    "precision": (("precision", "The whole ensemble by precision and provider of the encoder.", plots.precision),),
    "operators": (("operators", "ONNX Runtime's own profile of the encoder.", plots.operators),),
    "scaling": (("scaling", "Servers with cores, or a GPU, of their own; in brackets the efficiency.", plots.scaling),),
}
TITLES: Final[Mapping[str, str]] = {
    "three_way": "Ways of serving one model",
    "queue_delay": "How long a batch should wait, and how many instances",
    "latency": "Latency and saturation",
    "serialisation": "The form in which an image travels",
    "precision": "Precisions and providers",
    "operators": "The model, operator by operator",
    "scaling": "More servers",
}
DOCUMENTS: Final = (Path("README.md"), Path("docs/performance.md"))
"""Files with generated tables between markers."""


def newest(directory: Path) -> dict[str, dict[str, Any]]:
    """Experiment -> its newest result, by the time that the result states."""
    return _newest(sorted(directory.glob("*.json")))


def stated(text: str, directory: Path) -> dict[str, dict[str, Any]]:
    """Experiment -> the result that ``text`` names between its markers, whatever else ``directory`` holds."""
    return _newest([directory / name for name in sorted(markdown_tables.named(text))])


def _newest(paths: Iterable[Path]) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for path in paths:
        result = {**json.loads(path.read_text()), "file": path.name}
        name = result.get("experiment")
        if name and ("environment" in result):
            known = found.get(name)
            if known is None or known["environment"]["time"] <= result["environment"]["time"]:
                found[name] = result
    return found


def measured_here(results: Mapping[str, Mapping[str, Any]]) -> dict[str, float]:
    """Our values for the comparison with the published ones; those that were not measured are missing."""
    values: dict[str, float] = {}
    if latency := results.get("latency"):
        summary = latency["summary"]
        single = summary["by_concurrency"][0]
        model_ms = single["server_ms"]["clip_encoder"]["compute_infer"]
        p50 = single["latency_ms"]["p50"]
        values = {
            "single_p50_ms": p50,
            "single_model_ms": model_ms,
            "single_other_percent": max(0.0, 100 * (1 - model_ms / p50)),
            "saturated_rate": max(point["rate"] for point in summary["by_concurrency"]),
        }
    if delay := results.get("queue_delay"):
        advice = delay["summary"]["recommended"]
        cells = [
            cell
            for cell in delay["summary"]["cells"]
            if (cell["instances"], cell["delay_us"]) == (advice["instances"], advice["max_queue_delay_microseconds"])
        ]
        values["share_batched_percent"] = 100 * max(cells, key=lambda cell: cell["concurrency"])["share_batched"]
    return values


def costs(results: Mapping[str, Mapping[str, Any]], price_per_hour: float | None) -> list[dict[str, Any]]:
    """Seconds that 1,000 images take, by system, at the highest concurrency, and their cost if there is a price."""
    if "three_way" not in results:
        return []
    rows = []
    for system, row in results["three_way"]["summary"]["systems"].items():
        rate = row["at"][max(row["at"], key=int)]["images_per_second"]["median"]
        cost = None if price_per_hour is None else price_per_hour / 3.6 / rate
        rows.append({"system": SYSTEMS[system], "seconds": 1000 / rate, "cost": cost})
    return rows


def roofline_pictures(
    breakdowns: Mapping[str, efficiency_breakdown.Breakdown | None], directory: Path
) -> dict[str, dict[str, str] | None]:
    """Write the picture of each breakdown that can be drawn; file name without ``.png`` -> the picture, or None."""
    return {
        stem: _picture(directory, stem, f"The roofline of {shown.machine}.", plots.roofline(shown))
        if shown is not None and shown.can_be_drawn
        else None
        for stem, shown in breakdowns.items()
    }


def _picture(directory: Path, stem: str, caption: str, png: bytes) -> dict[str, str]:
    """Write a picture beside the page, and return it for the page, which also embeds it."""
    (directory / f"{stem}.png").write_bytes(png)
    return {"name": stem, "caption": caption, "data": base64.b64encode(png).decode("ascii")}


def render(results: Mapping[str, Mapping[str, Any]], directory: Path, *, price_per_hour: float | None = None) -> Path:
    """Write the pictures and ``report.html`` into ``directory``; return the page's path."""
    sections = []
    for name, pictures in PICTURES.items():
        if name not in results:
            continue
        shown = []
        for stem, caption, draw in pictures:
            shown.append(_picture(directory, stem, caption, draw(results[name]["summary"])))
        sections.append({"name": name, "title": TITLES[name], "result": results[name], "pictures": shown})
    gpu = markdown_tables.of_gpus(results)
    on_gpu = efficiency_breakdown.of_gpu(gpu)
    rooflines = roofline_pictures({"roofline": efficiency_breakdown.of_cpu(results), "gpu_roofline": on_gpu}, directory)
    own = measured_here(results)
    published = [{"figure": figure, "ours": own.get(figure.ours)} for figure in FIGURES]
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent / "templates"), autoescape=True, undefined=StrictUndefined
    )
    page = environment.get_template("report.html").render(
        sections=sections,
        missing=[name for name in PICTURES if name not in results],
        published=published,
        hardware=HARDWARE,
        systems=SYSTEMS,
        perf_analyzer=results.get("perf_analyzer"),
        costs=costs(results, price_per_hour),
        price_per_hour=price_per_hour,
        gpu=[{"result": result, "rows": rows_of(result)} for _, result in sorted(gpu.items())],
        gpu_steps=on_gpu.steps if on_gpu is not None else (),
        cpu_roofline=rooflines["roofline"],
        gpu_roofline=rooflines["gpu_roofline"],
        others=[
            result for name, result in sorted(results.items()) if name not in PICTURES and not name.startswith("gpu_")
        ],
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
