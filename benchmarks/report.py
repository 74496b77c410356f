"""One page, its pictures and the README's table, all from the kept results: ``python -m benchmarks.report``.

The newest JSON of each experiment counts. No number is typed by hand: what stands in the README between the lines
``<!-- benchmarks -->`` and ``<!-- /benchmarks -->`` is written here.
"""

from __future__ import annotations

import argparse
import base64
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from benchmarks import plots
from benchmarks.harness import RESULTS
from benchmarks.published import FIGURES, HARDWARE
from benchmarks.three_way import SYSTEMS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

PICTURES: Final[Mapping[str, tuple[tuple[str, str, Callable[[Mapping[str, Any]], bytes]], ...]]] = {
    "three_way": (("three_way", "The same model, photos and machine, one image a request.", plots.three_way),),
    "queue_delay": (
        (
            "queue_delay",
            "Images per second, and the share of images that shared a run. Boxed: recommended.",
            plots.queue_delay,
        ),
        ("batches", "How large the runs were with the recommended setting.", plots.batches),
    ),
    "latency": (("latency", "Closed loop, one image a request; steps by Triton's own counters.", plots.latency),),
    "serialisation": (
        (
            "serialisation",
            "Serialise, send over loopback and parse, to a model that does nothing.",
            plots.serialisation,
        ),
    ),
    "precision": (("precision", "The whole ensemble by precision and provider of the encoder.", plots.precision),),
}
TITLES: Final[Mapping[str, str]] = {
    "three_way": "Ways of serving one model",
    "queue_delay": "How long a batch should wait, and how many instances",
    "latency": "Latency and saturation",
    "serialisation": "The form in which an image travels",
    "precision": "Precisions and providers",
}
BEGIN: Final = "<!-- benchmarks -->"
END: Final = "<!-- /benchmarks -->"


def newest(directory: Path) -> dict[str, dict[str, Any]]:
    """Experiment -> its newest result, by the time that it carries."""
    found: dict[str, dict[str, Any]] = {}
    for path in sorted(directory.glob("*.json")):
        result = {**json.loads(path.read_text()), "file": path.name}
        name = result.get("experiment")
        if name and ("environment" in result):
            known = found.get(name)
            if known is None or known["environment"]["time"] <= result["environment"]["time"]:
                found[name] = result
    return found


def own_figures(results: Mapping[str, Mapping[str, Any]]) -> dict[str, float]:
    """What of ours stands beside the published figures; empty where it was not measured."""
    figures: dict[str, float] = {}
    if latency := results.get("latency"):
        summary = latency["summary"]
        single = summary["by_concurrency"][0]
        model_ms = single["server_ms"]["clip_encoder"]["compute_infer"]
        p50 = single["latency_ms"]["p50"]
        figures = {
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
        figures["share_batched_percent"] = 100 * max(cells, key=lambda cell: cell["concurrency"])["share_batched"]
    return figures


def readme_table(results: Mapping[str, Mapping[str, Any]]) -> str:
    """The README's part, in Markdown."""
    three_way = results.get("three_way")
    if three_way is None:
        return "No results yet: `python -m benchmarks three_way`."
    summary, machine = three_way["summary"], three_way["environment"]
    sizes = list(next(iter(summary["systems"].values()))["at"])
    lines = [
        "| images per second | " + " | ".join(f"concurrency {size}" for size in sizes) + " | least cosine |",
        "|---|" + "---:|" * (len(sizes) + 1),
    ]
    for system, row in summary["systems"].items():
        rates = (f"{row['at'][size]['images_per_second']['median']:.1f}" for size in sizes)
        cosine = f"{row['cosine']:.6f}" if row["valid"] else f"{row['cosine']:.6f}, invalid"
        lines.append(f"| {SYSTEMS[system]} | {' | '.join(rates)} | {cosine} |")
    flags = ", ".join(machine["cpu_flags"])
    lines += [
        "",
        (
            f"{machine['cores']} cores of {machine['cpu']} ({flags}), medians of interleaved rounds, one image of 256 "
            f"pixels a request; [raw figures](benchmarks/results/{three_way['file']}), `python -m benchmarks report`."
        ),
    ]
    return "\n".join(lines)


def update_readme(path: Path, table: str) -> bool:
    """Put ``table`` between the two marker lines; False where the file has none."""
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        return False
    path.write_text(f"{before}{BEGIN}\n{table}\n{END}{after}", encoding="utf-8")
    return True


def render(results: Mapping[str, Mapping[str, Any]], directory: Path) -> Path:
    """Write the pictures and ``report.html`` into ``directory``; return the page's path."""
    sections = []
    for name, pictures in PICTURES.items():
        if name not in results:
            continue
        shown = []
        for stem, caption, draw in pictures:
            png = draw(results[name]["summary"])
            (directory / f"{stem}.png").write_bytes(png)
            shown.append({"name": stem, "caption": caption, "data": base64.b64encode(png).decode("ascii")})
        sections.append({"name": name, "title": TITLES[name], "result": results[name], "pictures": shown})
    own = own_figures(results)
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
        others=[result for name, result in sorted(results.items()) if name not in PICTURES],
    )
    path = directory / "report.html"
    path.write_text(page, encoding="utf-8")
    return path


def main() -> None:
    """Write page, pictures and the README's table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of JSON files; the page is written there")
    parser.add_argument("--readme", type=Path, default=Path("README.md"))
    parser.add_argument("--page-only", action="store_true", help="leave the README and docs/performance.md as they are")
    arguments = parser.parse_args()
    results = newest(arguments.results)
    print(f"page: {render(results, arguments.results)}")
    if arguments.page_only:
        return
    table = readme_table(results)
    if not update_readme(arguments.readme, table):
        print(f"{arguments.readme} has no {BEGIN} ... {END}; the table would be:\n\n{table}")


if __name__ == "__main__":
    main()
