"""The pictures of the report: each function turns the summary of a result into a figure."""

from __future__ import annotations

import io
import math
from textwrap import fill
from typing import TYPE_CHECKING, Any, Final

import matplotlib as mpl

mpl.use("Agg")
from matplotlib import pyplot as plt
from matplotlib.patches import Rectangle
from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator

from benchmarks.experiments.serving.operators import EXPORTED, FLOP_PER_IMAGE
from benchmarks.experiments.serving.three_way import SYSTEMS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from benchmarks.report.efficiency_breakdown import Breakdown

    Summary = Mapping[str, Any]

INK: Final = "#1f2933"
OURS: Final = "#2563eb"
OTHERS: Final = "#9aa5b1"
WARNING: Final = "#d64545"
STAGES: Final = {"decode": "#f59e0b", "queue": "#cbd2d9", "model": OURS, "rest": "#7b8794"}
FORMS: Final = {
    "fp32-json": WARNING,
    "fp32-http": "#f59e0b",
    "fp32-grpc": "#7b8794",
    "uint8-grpc": "#0ea5a4",
    "jpeg-grpc": OURS,
}
CURVES: Final = (OURS, "#0ea5a4", "#f59e0b", "#7b8794", WARNING)
LOST: Final = "#dbeafe"
NARROW: Final = 8
"""If rates differ by a smaller factor than this, their axis starts at zero."""

mpl.rcParams.update(
    {
        "font.size": 10,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.edgecolor": OTHERS,
        "axes.labelcolor": INK,
        "axes.titlesize": 10,
        "legend.fontsize": 8,
        "legend.frameon": False,
        "text.color": INK,
        "xtick.color": INK,
        "ytick.color": INK,
        "figure.constrained_layout.use": True,
        "savefig.dpi": 130,
    }
)


def png(figure: Figure) -> bytes:
    """Close ``figure`` and return its picture."""
    buffer = io.BytesIO()
    figure.savefig(buffer)
    plt.close(figure)
    return buffer.getvalue()


def three_way(summary: Summary) -> Figure:
    """Images per second of each system at the highest concurrency, with the range over the rounds."""
    systems = dict(reversed(summary["systems"].items()))
    most = max(next(iter(systems.values()))["at"], key=int)
    rates = [row["at"][most]["images_per_second"] for row in systems.values()]
    figure, axes = plt.subplots(figsize=(8, 0.42 * len(systems) + 1))
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
    return figure


def queue_delay(summary: Summary) -> Figure:
    """A heat map for each number of instances: images per second, and the share that was batched."""
    cells, advice = summary["cells"], summary["recommended"]
    instances, delays, sizes = (
        sorted({cell[key] for cell in cells}) for key in ("instances", "delay_us", "concurrency")
    )
    # Each column has its own scale: what matters is which delay is best for that number of callers.
    best = {size: max(cell["rate"] for cell in cells if cell["concurrency"] == size) for size in sizes}
    figure, all_axes = plt.subplots(
        1, len(instances), figsize=(4.6 * len(instances) + 1, 0.6 * len(delays) + 1.6), squeeze=False, sharey=True
    )
    for axes, count in zip(all_axes[0], instances, strict=True):
        at = {(cell["delay_us"], cell["concurrency"]): cell for cell in cells if cell["instances"] == count}
        shares = [[at[delay, size]["rate"] / best[size] for size in sizes] for delay in delays]
        image = axes.imshow(shares, cmap="Blues", vmin=0.4, vmax=1.0, aspect="auto")
        for row, delay in enumerate(delays):
            for column, size in enumerate(sizes):
                text = f"{at[delay, size]['rate']:.1f}\n{at[delay, size]['share_batched']:.0%} batched"
                ink = "white" if shares[row][column] > 0.75 else INK
                axes.text(column, row, text, ha="center", va="center", color=ink, fontsize=8)
        axes.set_xticks(range(len(sizes)), sizes)
        axes.set_yticks(range(len(delays)), [f"{delay / 1000:g} ms" for delay in delays])
        axes.set(xlabel="concurrency", title=_counted(count, "instance"))
        if count == advice["instances"]:
            row = delays.index(advice["max_queue_delay_microseconds"])
            corner = (-0.48, row - 0.46)
            box = Rectangle(corner, len(sizes) - 0.04, 0.92, fill=False, edgecolor=WARNING, linewidth=2)
            axes.add_patch(box)
    all_axes[0][0].set_ylabel("max_queue_delay")
    figure.colorbar(image, ax=all_axes[0].tolist(), label="share of the best in its column")
    return figure


def batches(summary: Summary) -> Figure:
    """Histogram of batch sizes with the recommended setting, by concurrency."""
    cells = recommended_cells(summary)
    figure, all_axes = plt.subplots(1, len(cells), figsize=(2.3 * len(cells), 2.2), sharey=True, squeeze=False)
    for axes, cell in zip(all_axes[0], cells, strict=True):
        images = {int(size): int(size) * count for size, count in cell["batches"].items()}
        total = sum(images.values())
        axes.bar(list(images), [count / total for count in images.values()], color=OURS, width=0.9)
        axes.set(xlim=(0, 33), xlabel="images in a run", title=f"concurrency {cell['concurrency']}")
    all_axes[0][0].set_ylabel("share of images")
    return figure


def recommended_cells(summary: Summary) -> list[Summary]:
    """The cells of ``queue_delay`` with the recommended setting, one for each concurrency."""
    advice = summary["recommended"]
    wanted = (advice["instances"], advice["max_queue_delay_microseconds"])
    return [cell for cell in summary["cells"] if (cell["instances"], cell["delay_us"]) == wanted]


def latency(summary: Summary) -> Figure:
    """Rate and percentiles over concurrency, saturation marked; beside it where a request's time goes."""
    curve, full = summary["by_concurrency"], summary["saturated_at"]
    sizes = [point["concurrency"] for point in curve]
    figure, (left, middle, right) = plt.subplots(1, 3, figsize=(11, 3.2))
    rates = [point["rate"] for point in curve]
    left.plot(sizes, rates, color=OURS, marker="o")
    left.axvline(full, color=WARNING, linestyle="--", linewidth=1)
    state = "full" if full < sizes[-1] else "best"
    left.annotate(f"{state} at {full}", (full, 0), xytext=(5, 5), textcoords="offset points", color=WARNING)
    left.set(ylabel="images per second", ylim=(0, 1.08 * max(rates)))
    for name, line in (("p50", "-"), ("p95", "--"), ("p99", ":")):
        middle.plot(sizes, [point["latency_ms"][name] for point in curve], line, color=OURS, label=name)
    middle.set(yscale="log", ylabel="latency, ms")
    middle.yaxis.set_major_formatter("{x:,.0f}")
    middle.legend()
    for axes in (left, middle):
        axes.set_xscale("log", base=2)
        axes.set_xticks(sizes, sizes)
        axes.set_xlabel("concurrency")
    _stages(right, curve)
    return figure


def _stages(axes: Axes, curve: Sequence[Summary]) -> None:
    """Shares of the caller's mean time, by the server's own counters."""
    names = [str(point["concurrency"]) for point in curve]
    bottoms = [0.0] * len(curve)
    shares = [_shares(point) for point in curve]
    for stage, colour in STAGES.items():
        heights = [share[stage] for share in shares]
        axes.bar(names, heights, bottom=bottoms, color=colour, label=stage)
        bottoms = [bottom + height for bottom, height in zip(bottoms, heights, strict=True)]
    axes.set(xlabel="concurrency", ylabel="% of a request's time")
    axes.legend(loc="upper center", ncols=4, bbox_to_anchor=(0.5, 1.16), columnspacing=0.8)


def _shares(point: Summary) -> dict[str, float]:
    """Stage -> percent of a request's mean time. The server counts means, so the whole is a mean too."""
    steps = point["server_ms"]
    spent_ms = {
        "decode": steps["clip_preprocess"]["compute_infer"],
        "queue": sum(step["queue"] for step in steps.values()),
        "model": steps["clip_encoder"]["compute_infer"],
    }
    whole_ms = max(point["latency_ms"]["mean"], sum(spent_ms.values()))
    spent_ms["rest"] = whole_ms - sum(spent_ms.values())
    return {stage: 100 * ms / whole_ms for stage, ms in spent_ms.items()}


def serialisation(summary: Summary) -> Figure:
    """Milliseconds an image by form, one line for each, over images to a request."""
    figure, axes = plt.subplots(figsize=(7, 3.4))
    ends: list[float] = []
    for form, label in summary["labels"].items():
        line = [point for point in summary["points"] if point["form"] == form]
        rows = [point["rows"] for point in line]
        times = [point["ms_per_image"] for point in line]
        # Labels of two lines that end at the same height would overlap.
        near = sum(abs(math.log(times[-1] / other)) < 0.15 for other in ends)
        ends.append(times[-1])
        axes.plot(rows, times, marker="o", color=FORMS[form], label=label)
        end = (rows[-1], times[-1])
        axes.annotate(f"{times[-1]:.3g}", end, xytext=(6, -3 - 13 * near), textcoords="offset points")
    axes.set_xscale("log", base=2)
    axes.set(yscale="log", xlabel="images to a request", ylabel="ms an image, no model")
    axes.yaxis.set_major_formatter("{x:g}")
    axes.set_xticks(rows, rows)
    axes.legend(loc="center left", bbox_to_anchor=(1.04, 0.5))
    return figure


def links(summary: Summary) -> Figure:
    """Milliseconds of a request by line and form, one panel for each number of images; marks: by arithmetic."""
    slow = summary["over_links"]
    counts = sorted({point["rows"] for point in slow})
    lines = ["loopback", *dict.fromkeys(point["link"] for point in slow)]
    forms = list(dict.fromkeys(point["form"] for point in slow))
    local = [{**point, "link": "loopback", "computed_ms": math.nan} for point in summary["points"]]
    width = max(7.0, 5.2 * len(counts))
    figure, all_axes = plt.subplots(1, len(counts), figsize=(width, 3.4), sharey=True, squeeze=False)
    for axes, count in zip(all_axes[0], counts, strict=True):
        for number, form in enumerate(forms):
            points = [one for one in (*local, *slow) if (one["form"], one["rows"]) == (form, count)]
            middles = [lines.index(point["link"]) + (number - (len(forms) - 1) / 2) * 0.2 for point in points]
            times = [point["p50_ms"] for point in points]
            bars = axes.bar(middles, times, width=0.18, color=FORMS[form], label=summary["labels"][form])
            axes.bar_label(bars, [f"{ms:.3g}" if ms < 100 else f"{ms:,.0f}" for ms in times], padding=2, fontsize=7)
            computed = [point["computed_ms"] for point in points]
            axes.hlines(computed, [x - 0.09 for x in middles], [x + 0.09 for x in middles], color=INK, linewidth=1.5)
        axes.set(yscale="log", title=f"{_counted(count, 'image')} to a request")
        axes.yaxis.set_major_formatter("{x:,.15g}")
        axes.set_xticks(range(len(lines)), lines)
    all_axes[0][0].set_ylabel("ms a request, no model")
    figure.legend(*all_axes[0][0].get_legend_handles_labels(), ncols=4, loc="outside lower center")
    return figure


def precision(summary: Summary) -> Figure:
    """Images per second by precision, and what each costs in cosine."""
    rows = list(summary.values())[::-1]
    most = max(rows[0]["rates"], key=int)
    rates = [row["rates"][most]["median"] for row in rows]
    figure, axes = plt.subplots(figsize=(8, 0.45 * len(rows) + 1))
    colours = [OURS if row["valid"] else OTHERS for row in rows]
    bars = axes.barh([row["label"] for row in rows], rates, color=colours, height=0.7)
    refused = ["" if row["valid"] else " (below the required cosine)" for row in rows]
    cosines = [f"cosine {row['cosine']:.6f}{why}" for row, why in zip(rows, refused, strict=True)]
    axes.bar_label(bars, [f"{rate:.1f}   {cosine}" for rate, cosine in zip(rates, cosines, strict=True)], padding=5)
    axes.set(xlabel=f"images per second, concurrency {most}", xmargin=0.4)
    return figure


def operators(summary: Summary) -> Figure:
    """Shares of the model's time by kind of node, one bar for each batch size."""
    sizes = sorted(summary, key=int)
    names = [f"batch {size}, {summary[size]['total_ms']:.0f} ms" for size in sizes]
    kinds = [row["operator"] for row in summary[sizes[-1]]["operators"][:7]]
    by_size = [{row["operator"]: row["share"] for row in summary[size]["operators"]} for size in sizes]
    parts = {kind: [shares.get(kind, 0.0) for shares in by_size] for kind in kinds}
    parts["all others"] = [1 - sum(column) for column in zip(*parts.values(), strict=True)]
    shades = plt.get_cmap("Blues_r")
    figure, axes = plt.subplots(figsize=(8, 0.6 * len(sizes) + 1.5))
    lefts = [0.0] * len(sizes)
    for number, (kind, shares) in enumerate(parts.items()):
        colour = OTHERS if kind == "all others" else shades(0.1 + 0.1 * number)
        bars = axes.barh(names, shares, left=lefts, color=colour, height=0.6, label=kind)
        labels = [f"{share:.0%}" if share > 0.04 else "" for share in shares]
        axes.bar_label(bars, labels, label_type="center", color="white" if number < 4 else INK, fontsize=8)
        lefts = [left + share for left, share in zip(lefts, shares, strict=True)]
    axes.xaxis.set_major_formatter("{x:.0%}")
    axes.set_xlabel("share of the model's time")
    figure.legend(ncols=4, loc="outside upper center")
    return figure


def scaling(summary: Summary) -> Figure:
    """Images per second by number of servers, beside multiples of the rate of one server."""
    counts = sorted(summary["rates"], key=int)
    rates = [summary["rates"][count] for count in counts]
    figure, axes = plt.subplots(figsize=(5, 3))
    bars = axes.bar(counts, rates, color=OURS, width=0.6)
    labels = [f"{summary['rates'][count]:.1f} ({summary['efficiency'][count]:.0%})" for count in counts]
    axes.bar_label(bars, labels, label_type="center", color="white")
    axes.plot(counts, [int(count) * rates[0] for count in counts], "--o", color=OTHERS, label="multiples of one")
    axes.set(xlabel="servers behind one client", ylabel="images per second")
    axes.legend(loc="upper left")
    axes.margins(y=0.15)
    return figure


def roofline(shown: Breakdown) -> Figure:
    """From the peak down to the service, with what each step loses; beside it both limits over the batch size."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(12, 1.6 + 0.45 * len(shown.steps)), width_ratios=(1.15, 1))
    counted = f"counted as {FLOP_PER_IMAGE / 1e9:.2f} GFLOP an image, of which the export computes {EXPORTED:.0%}"
    figure.suptitle(f"{shown.machine}, {shown.precision}; ViT-B-32 {counted}", fontsize=10)
    _steps(left, shown.steps)
    _limits(right, shown)
    return figure


def _steps(axes: Axes, steps: Sequence[Summary]) -> None:
    rates = [step["rate"] for step in steps]
    above = [rates[0], *rates[:-1]]
    names = [fill(step["what"], 34) for step in steps]
    lost = [max(0.0, before - rate) for before, rate in zip(above, rates, strict=True)]
    axes.barh(names, rates, color=[OTHERS, *[OURS] * (len(steps) - 1)], height=0.62)
    bars = axes.barh(names, lost, left=rates, color=LOST, height=0.62)
    number = "{:,.0f}" if max(rates) >= 1000 else "{:.1f}"
    shares = ["", *(f"   {step['of_first']:.0%}" for step in steps[1:])]
    axes.bar_label(bars, [number.format(rate) + share for rate, share in zip(rates, shares, strict=True)], padding=5)
    axes.invert_yaxis()
    axes.set(
        xlim=(0, 1.28 * max(rates)), xlabel="images per second, and the share of the peak; light: lost at this step"
    )
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.xaxis.set_major_locator(MaxNLocator(5))


def _limits(axes: Axes, shown: Breakdown) -> None:
    sizes = sorted({rows for points in shown.curves.values() for rows, _ in points})
    least, most = sizes[0], sizes[-1]
    knee = shown.compute / shown.memory
    along = sorted({least, most, *([knee] if least < knee < most else [])})
    axes.plot(along, [min(shown.compute, rows * shown.memory) for rows in along], color=INK, linewidth=1.5)
    note: dict[str, Any] = {"textcoords": "offset points", "fontsize": 8}
    axes.annotate(f"bare products, {shown.precision}", (most, shown.compute), xytext=(0, 4), ha="right", **note)
    if least < knee:
        axes.annotate("reading the weights", (least, shown.memory), xytext=(6, -2), va="top", **note)
    for (label, points), colour in zip(shown.curves.items(), CURVES, strict=False):
        axes.plot(*zip(*sorted(points), strict=True), marker="o", markersize=4, color=colour, label=label)
    axes.set_xscale("log", base=2)
    axes.set_xticks(sizes, map(str, sizes))
    axes.margins(y=0.12)
    if shown.compute / min(rate for points in shown.curves.values() for _, rate in points) > NARROW:
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_minor_locator(NullLocator())
    else:
        axes.set_ylim(bottom=0)
    axes.yaxis.set_major_formatter("{x:,.0f}")
    axes.set(xlabel="images in a run, or callers", ylabel="images per second")
    axes.legend(loc="lower right")


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}{'s' if count > 1 else ''}"
