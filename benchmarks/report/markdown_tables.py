"""The tables of the README and docs/performance.md, as Markdown made from the kept results.

``python -m benchmarks report`` writes them between ``<!-- NAME -->`` and ``<!-- /NAME -->``. A test compares the files
with the results that they name, so a new result breaks no test before you run the report.
"""

from __future__ import annotations

import re
import statistics
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from benchmarks.experiments.serving.operators import EXPORTED, FLOP_PER_IMAGE
from benchmarks.experiments.serving.three_way import SYSTEMS
from benchmarks.report import efficiency_breakdown

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    Result = Mapping[str, Any]
    Results = Mapping[str, Result]

MARKED: Final = re.compile(r"(<!-- (?P<name>[a-z_]+) -->\n).*?(<!-- /(?P=name) -->)", re.DOTALL)
_RESULT_LINK: Final = re.compile(r"benchmarks/results/([^)/]+\.json)\)")


def fill(text: str, results: Results) -> str:
    """Return ``text`` with its marked parts rewritten; a marker that :data:`PARTS` does not know stays as it is."""

    def part(match: re.Match[str]) -> str:
        name = match["name"]
        if name == "benchmarks":
            made = readme(results)
        elif name in PARTS:
            experiment, make = PARTS[name]
            made = make(results[experiment]) if experiment in results else missing(experiment)
        else:
            return match[0]
        return f"{match[1]}{made}\n{match[3]}"

    return MARKED.sub(part, text)


def named(text: str) -> set[str]:
    """The result files that ``text`` names between its markers."""
    return {name for marked in MARKED.finditer(text) for name in _RESULT_LINK.findall(marked[0])}


def of_gpus(results: Results) -> dict[str, Result]:
    """The results of ``python -m benchmarks gpu`` that were measured on a card; it can also run on a CPU."""
    return {
        name: result for name, result in results.items() if name.startswith("gpu_") and result.get("device") != "cpu"
    }


def machine(result: Result) -> str:
    """Cores, CPU, flags and GPU of the machine that gave ``result``."""
    where = result["environment"]
    flags = f" ({', '.join(where['cpu_flags'])})" if where["cpu_flags"] else ""
    return f"{where['cores']} cores of {where['cpu']}{flags}, {where['gpu'] or 'no GPU'}"


def source(result: Result, folder: str) -> str:
    """A link to the raw measurements."""
    return f"[{result['experiment']}]({folder}/{result['file']})"


def table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table; all columns but the first are numbers."""
    lines = [f"| {' | '.join(headings)} |", "|---|" + "---:|" * (len(headings) - 1)]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)])


def missing(name: str) -> str:
    """The text for an experiment without a result."""
    return f"Not measured yet: `python -m benchmarks {name}`."


def readme(results: Results) -> str:
    """All tables of the README."""
    parts = [_systems(results), _ceiling(results), _on_a_gpu(results), _single_values(results)]
    return "\n\n".join(part for part in parts if part)


def _systems(results: Results) -> str:
    result = results.get("three_way")
    if result is None:
        return ""
    systems = result["summary"]["systems"]
    sizes = list(next(iter(systems.values()))["at"])
    rows = []
    for name, row in systems.items():
        rates = (f"{row['at'][size]['images_per_second']['median']:.1f}" for size in sizes)
        rows.append([SYSTEMS[name], *rates, f"{row['cosine']:.6f}" + ("" if row["valid"] else ", invalid")])
    callers = ["1 caller" if size == "1" else f"{size} callers" for size in sizes]
    headings = ["images per second, one image a request", *callers, "least cosine"]
    return (
        f"{machine(result)}; medians of {result['plan']['rounds']} interleaved rounds, JPEG files of 256 pixels, in "
        "process batches of so many in place of callers, `python -m benchmarks three_way`, "
        f"{source(result, 'benchmarks/results')}:\n\n{table(headings, rows)}"
    )


def _ceiling(results: Results) -> str:
    result = results.get("end_to_end")
    if result is None:
        return ""
    rows = []
    for size, row in result["summary"].items():
        rates = (f"{row['images_per_second'][name]['median']:.1f}" for name in ("session", "pytorch", "ensemble"))
        ratio = row["ensemble_to_session"]
        share = f"{ratio['median']:.3f} ({ratio['min']:.2f}-{ratio['max']:.2f})"
        rows.append([size, *rates, share, f"{row['ensemble_latency_ms']['p50']:.0f} ms"])
    headings = ["callers, or batch", "bare ONNX Runtime session", "open_clip's PyTorch loop", "ensemble, JPEG in"]
    return (
        f"{machine(result)}; the session is fed ready pixels, the others decode, `make measure`, "
        f"{source(result, 'benchmarks/results')}:\n\n{table([*headings, 'ensemble / session', 'p50'], rows)}"
    )


def _on_a_gpu(results: Results) -> str:
    kept = of_gpus(results)
    if not kept:
        return "GPU: not measured yet."
    shown = efficiency_breakdown.of_gpu(kept)
    steps = shown.steps if shown is not None else ()
    rows = [[step["what"], f"{step['rate']:,.0f}", f"{step['of_above']:.0%}"] for step in steps]
    sources = ", ".join(source(result, "benchmarks/results") for result in kept.values())
    headings = ["from the card's peak down, fp16", "images per second", "of the line above"]
    return f"{machine(next(iter(kept.values())))}, `python -m benchmarks gpu`, {sources}:\n\n{table(headings, rows)}"


def _single_values(results: Results) -> str:
    rows: list[list[str]] = []

    def add(name: str, what: str, figure: Callable[[Result], str]) -> None:
        if name in results:
            with suppress(KeyError):  # a run of a part only
                rows.append([what, figure(results[name]), source(results[name], "benchmarks/results")])

    add("fidelity", "fast path for large JPEG files, the worst of all classes", _fast_path)
    add("preprocess", "open_clip's transform / this one, processor time, 12 MP, 2 MP (fast path), 256 px", _transform)
    for share in ("preprocess / bare threads", "ensemble, real / harmonic bound"):
        what = {"preprocess / bare threads": "preprocessing inside Triton / bare threads"}.get(
            share, "ensemble / harmonic bound of its steps"
        )
        add("ensemble_tax", f"{what}, 32 and 1 images a request", lambda result, share=share: _tax(result, share))  # type: ignore[misc]
    add("transfer", "2 MP photos over 20 Mbit/s and 40 ms, thumbnails / FP32 tensors", _thumbnails)
    # The client packs what its callers ask for at one time; perf_analyzer sends each image by itself.
    alone = "client (packs calls) / perf_analyzer (does not), no model, one image a call, 1, 16, 64 callers"
    add("client", alone, _against_perf_analyzer(1))
    add("client", "the same with 32 images a call, requests alike", _against_perf_analyzer(32))
    add(
        "overload",
        "ten times what a stand-in encoder can do, from four clients: good answers / peak, latest after its deadline",
        _overload,
    )
    add("fuzz", "damaged files: crashes, hangs, changed neighbours", _damaged)
    add("faults", "a server broken under load: wrong and lost answers, longest recovery", _broken)
    add("soak", "a soak: memory of the server's and the client's processes, last tenth against second", _soak)
    add(
        "grouping",
        "100,000 vectors compared exactly, by bounds first / products of all pairs, even and skewed",
        _exact_groups,
    )
    add("grouping", "a million vectors, even and skewed", _large_groups)
    add("scan", "10,000 files: first scan, second scan; a million known files", _scans)
    add("scan", "ten files, and all, against a store of a million photos: seconds, peak memory of the process", _memory)
    harm = "harmful deletes per 1,000 (share of copies found): `--apply`, its pHash tier, all tiers, imagededup's pHash"
    add("accuracy", harm, _harm)
    return table(["what", "figure", "of `python -m benchmarks ...`"], rows) if rows else ""


def _fast_path(result: Result) -> str:
    cosine = min(row["cosine_min"] for row in result["by_class"])
    psnr_db = min(row["psnr_db_min"] for row in result["by_class"])
    return f"cosine {cosine:.5f}, {psnr_db:.1f} dB ({len(result['by_class'])} classes)"


def _transform(result: Result) -> str:
    times = (result["sizes"][size]["one_core_ms"] for size in ("12 MP", "2 MP", "256 px"))
    return ", ".join(f"{time_ms['open_clip'] / time_ms['fast path']:.2f}" for time_ms in times)


def _tax(result: Result, share: str) -> str:
    return ", ".join(
        f"{result[name]['shares'][share]['median']:.2f}" for name in ("32 images a request", "1 image a request")
    )


def _thumbnails(result: Result) -> str:
    runs = result["runs"]
    ratio = statistics.median(a / b for a, b in zip(runs["thumbnail"], runs["FP32 tensor"], strict=True))
    return f"{ratio:.1f} ({result['images_per_s']['FP32 tensor']['median']:.1f} images/s with tensors)"


def _damaged(result: Result) -> str:
    counts = (f"{len(result[kind]['findings'])} of {result[kind]['inputs']:,}" for kind in ("in_process", "live"))
    return "{}, and {} live".format(*counts)


def _against_perf_analyzer(rows: int) -> Callable[[Result], str]:
    def figure(result: Result) -> str:
        cells = result["summary"]["null"]
        return ", ".join(f"{cells[f'{callers} x {rows}']['to_perf_analyzer']:.2f}" for callers in (1, 16, 64))

    return figure


def _overload(result: Result) -> str:
    return f"{result['overload']['goodput_to_peak']:.2f}, {result['overload']['latest_ms']:.0f} ms"


def _broken(result: Result) -> str:
    outcomes = result["outcomes"]
    wrong, lost, offered = (sum(one[key] for one in outcomes) for key in ("wrong", "lost", "offered"))
    slowest = max(one["recovery_s"] for one in outcomes)
    return f"{wrong} and {lost} of {offered:,} ({len(outcomes)} faults), {slowest:.0f} s"


def _soak(result: Result) -> str:
    memory = [one for name, one in result["series"].items() if ", memory" in name]
    most = max(one["last_tenth"] / one["second_tenth"] - 1 for one in memory)
    flat = "all else flat" if all(one["flat"] for one in result["series"].values()) else "not flat"
    return f"at most {most:+.1%}, {flat} ({result['requests']:,} requests, {result['seconds'] / 60:.0f} min)"


def _exact_groups(result: Result) -> str:
    cells = (result["cells"][f"100000 {shape} exact"] for shape in ("even", "skewed"))
    return ", ".join(f"{cell['seconds'] / cell['bare_products_seconds']:.2f}" for cell in cells)


def _large_groups(result: Result) -> str:
    cells = [result["cells"][f"1000000 {shape} cells"] for shape in ("even", "skewed")]
    each = ", ".join(f"{cell['seconds']:.0f} s (recall {cell['pair_recall']:.4f})" for cell in cells)
    return f"{each}; {max(cell['peak_gb'] for cell in cells):.1f} GB"


def _scans(result: Result) -> str:
    first, second = (result[name]["scan_seconds"] for name in ("first", "second"))
    return f"{first:.1f} s, {second:.2f} s; {result['bookkeeping']['seconds']:.0f} s"


def _memory(result: Result) -> str:
    runs = (result["large_store"][name] for name in ("few", "all"))
    return ", ".join(f"{run['seconds']:.1f} s and {run['peak_mb'] / 1e3:.1f} GB" for run in runs)


def _harm(result: Result) -> str:
    # Harm alone says nothing: a detector that finds nothing does no harm.
    found = {row["detector"]: row for row in result["detectors"]}
    every = next((name for name in found if name.startswith("all tiers")), "all tiers")
    names = ("same pixels (default of --apply)", "pHash, 3 bits", every, "imagededup pHash, 10 bits (its default)")
    shown = (f"{found[name]['harmful_per_1000']:.1f} ({found[name]['recall_of_copies']:.0%})" for name in names)
    return ", ".join(shown) + (", random weights" if result["random_weights"] else "")


def ratios(result: Result) -> str:
    """The ratios that the comparison of systems requires, and whether they hold."""
    rows = [
        [
            f"{SYSTEMS[ratio['of']]} / {SYSTEMS[ratio['to']]}",
            f"{ratio['median']:.2f} ({ratio['min']:.2f}-{ratio['max']:.2f})",
            f"{ratio['required']}",
            "holds" if ratio["median"] >= ratio["required"] else "does not hold",
        ]
        for ratio in result["summary"]["ratios"]
    ]
    size = result["summary"]["ratios"][0]["at_concurrency"]
    headings = [f"images per second, {size} callers", "median of rounds", "at least wanted", ""]
    return f"{machine(result)}, {source(result, '../benchmarks/results')}:\n\n{table(headings, rows)}"


def queue_delay(result: Result) -> str:
    """The recommended delay and instances, beside the other settings."""
    summary = result["summary"]
    advice, cells = summary["recommended"], summary["cells"]
    alone, crowd = (choose(cell["concurrency"] for cell in cells) for choose in (min, max))
    rows = []
    for count, delay_us in sorted({(cell["instances"], cell["delay_us"]) for cell in cells}):
        at = {c["concurrency"]: c for c in cells if (c["instances"], c["delay_us"]) == (count, delay_us)}
        chosen = (count, delay_us) == (advice["instances"], advice["max_queue_delay_microseconds"])
        name = f"{count} x, {delay_us / 1000:g} ms"
        values = (f"{at[alone]['p50_ms']:.0f} ms", _ranged(at[crowd]), f"{at[crowd]['share_batched']:.0%}")
        rows.append([f"**{name}**" if chosen else name, *values])
    headings = ["instances, delay", f"p50 of {alone} caller", f"images/s, {crowd} callers (rounds)", "batched"]
    return (
        f"{machine(result)}, {source(result, '../benchmarks/results')}, bold: recommended:\n\n{table(headings, rows)}"
    )


def _ranged(cell: Result) -> str:
    return f"{cell['rate']:.1f} ({min(cell['rates']):.1f}-{max(cell['rates']):.1f})"


def latency(result: Result) -> str:
    """The concurrency at which the server is full, and what more callers get."""
    summary = result["summary"]
    curve = {point["concurrency"]: point for point in summary["by_concurrency"]}
    full, alone, most = curve[summary["saturated_at"]], curve[min(curve)], curve[max(curve)]
    stages = alone["server_ms"]
    # The best at the end of a curve may be a point on the way up.
    state = "full at" if full is not most else "not known to be full at"
    return (
        f"{machine(result)}, {source(result, '../benchmarks/results')}: {state} {full['concurrency']} callers with "
        f"{full['rate']:.1f} images a second and a p50 of {full['latency_ms']['p50']:.0f} ms; "
        f"{most['concurrency']} callers get {most['rate']:.1f} and wait {most['latency_ms']['p50']:.0f} ms. Of the "
        f"{alone['latency_ms']['mean']:.0f} ms of a lone caller the model takes "
        f"{stages['clip_encoder']['compute_infer']:.0f} and decoding {stages['clip_preprocess']['compute_infer']:.1f}. "
        f"A server is ready {summary['cold_start_s']:.0f} s after its start."
    )


def precision(result: Result) -> str:
    """Rates and cosines by precision."""
    rows = []
    for row in result["summary"].values():
        rates = [f"{rate['median']:.1f}" for rate in row["rates"].values()]
        gate = f"{row['required']}, {'passed' if row['valid'] else 'failed'}"
        rows.append([row["label"], *rates, f"{row['cosine']:.6f}", gate])
    sizes = next(iter(result["summary"].values()))["rates"]
    headings = ["encoder", *(f"images/s, x{size}" for size in sizes), "least cosine", "gate"]
    return f"{machine(result)}, {source(result, '../benchmarks/results')}:\n\n{table(headings, rows)}"


def travel(result: Result) -> str:
    """Milliseconds of a request of one image, by form and line."""
    summary = result["summary"]
    fewest = min(point["rows"] for point in summary["points"])
    links = list(dict.fromkeys(point["link"] for point in summary["over_links"]))
    slow = {(point["form"], point["link"]): point for point in summary["over_links"] if point["rows"] == fewest}
    rows = []
    for point in summary["points"]:
        if point["rows"] == fewest:
            over = (slow.get((point["form"], link)) for link in links)
            times = (f"{one['p50_ms']:.0f} ms" if one else "" for one in over)
            size, time_ms = f"{point['bytes']:,.0f}", f"{point['p50_ms']:.2f} ms"
            rows.append([summary["labels"][point["form"]], size, time_ms, *times])
    headings = [f"a request of {fewest}, no model", "bytes", "loopback", *links]
    return f"{machine(result)}, {source(result, '../benchmarks/results')}:\n\n{table(headings, rows)}"


def operators(result: Result) -> str:
    """The model's own time by kind of node."""
    batch, found = max(result["summary"].items(), key=lambda item: int(item[0]))
    shares = ", ".join(f"{row['operator']} {row['share']:.0%}" for row in found["operators"][:4])
    attention = ", ".join(found["fused_attention"]) or "not fused"
    rate = ""
    if result["model"].startswith("ViT-B-32/"):
        gflops = FLOP_PER_IMAGE * int(batch) / found["total_ms"] / 1e6
        done = EXPORTED * gflops
        rate = f" Counted as the whole tower's {FLOP_PER_IMAGE / 1e9:.2f} GFLOP an image that is {gflops:.0f} GFLOP/s"
        rate += f", and {done:.0f} by what the export computes of it"
        if bare := result.get("roofs"):
            peak = bare["product_gflops"]["fp32"]["best"]
            of_peak = f"{gflops / peak:.0%} and {done / peak:.0%} of the {peak:.0f}"
            rate += f": {of_peak} that bare products reach in the same run"
        rate += "."
    return (
        f"{machine(result)}, {source(result, '../benchmarks/results')}: a batch of {batch} takes "
        f"{found['total_ms']:.0f} ms, {shares}; attention {attention}.{rate}"
    )


def scaling(result: Result) -> str:
    """Rates by number of servers."""
    summary = result["summary"]
    rates = ", ".join(
        f"{count} {'servers' if int(count) > 1 else 'server'} {rate:.1f} images/s ({summary['efficiency'][count]:.0%})"
        for count, rate in summary["rates"].items()
    )
    unmeasured = ", ".join(map(str, summary["unproved"]))
    return (
        f"{machine(result)}, {summary['device']}, {source(result, '../benchmarks/results')}: {rates}. "
        f"Not measured: {unmeasured} servers."
    )


PARTS: Final[Mapping[str, tuple[str, Callable[[Result], str]]]] = {
    "ratios": ("three_way", ratios),
    "queue_delay": ("queue_delay", queue_delay),
    "latency": ("latency", latency),
    "precision": ("precision", precision),
    "travel": ("serialisation", travel),
    "operators": ("operators", operators),
    "scaling": ("scaling", scaling),
}
"""Marker -> the experiment, and the function that turns its result into text."""
