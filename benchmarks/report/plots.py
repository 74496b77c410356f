"""The pictures of the report: each function turns the summary of a result into a PNG."""

from __future__ import annotations

import io
import math
from textwrap import fill
from typing import TYPE_CHECKING, Any, Final

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot as plt
from matplotlib.patches import Rectangle
from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator

from benchmarks.experiments.serving.operators import EXPORTED, FLOP_PER_IMAGE
from benchmarks.experiments.serving.three_way import SYSTEMS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from matplotlib.figure import Figure

    from benchmarks.report.efficiency_breakdown import Breakdown

INK: Final = "#1f2933"
OURS: Final = "#2563eb"
OTHERS: Final = "#9aa5b1"
STAGES: Final = {"decode": "#f59e0b", "queue": "#cbd2d9", "model": "#2563eb", "rest": "#7b8794"}
LOST: Final = "#dbeafe"
NARROW: Final = 8
"""If rates differ by a smaller factor than this, their axis starts at zero."""
CURVES: Final = (OURS, "#0ea5a4", "#f59e0b", "#7b8794", "#d64545")
STYLE: Final[Any] = {
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": OTHERS,
    "axes.labelcolor": INK,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "figure.constrained_layout.use": True,
}


def three_way(summary: Mapping[str, Any]) -> bytes:
    """Images per second of each system at the highest concurrency, with the range over the rounds."""
    rows = list(summary["systems"].items())[::-1]
    most = str(max(map(int, rows[0][1]["at"])))
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(figsize=(8, 0.42 * len(rows) + 1))
        for place, (system, row) in enumerate(rows):
            rate = row["at"][most]["images_per_second"]
            ours = system in ("ensemble", "client", "openvino-bf16")
            axes.barh(place, rate["median"], color=OURS if ours else OTHERS, height=0.7)
            axes.plot((rate["min"], rate["max"]), (place, place), color=INK, linewidth=1)
            label = f"{rate['median']:.1f}" + ("" if row["valid"] else "  invalid: other vectors")
            axes.annotate(label, (rate["max"], place), xytext=(5, 0), textcoords="offset points", va="center")
        axes.set_yticks(range(len(rows)), [SYSTEMS[system] for system, _ in rows])
        axes.set_xlabel(f"images per second, concurrency {most}; line: slowest to fastest round")
        axes.margins(x=0.12)
        return _png(figure)


def queue_delay(summary: Mapping[str, Any]) -> bytes:
    """A heat map for each number of instances: images per second, and the share that was batched."""
    cells = summary["cells"]
    instances = sorted({cell["instances"] for cell in cells})
    delays = sorted({cell["delay_us"] for cell in cells})
    sizes = sorted({cell["concurrency"] for cell in cells})
    # Each column has its own scale: what matters is which delay is best for that number of callers.
    best = {size: max(cell["rate"] for cell in cells if cell["concurrency"] == size) for size in sizes}
    advice = summary["recommended"]
    with plt.rc_context(STYLE):
        figure, all_axes = plt.subplots(
            1, len(instances), figsize=(4.6 * len(instances) + 1, 0.6 * len(delays) + 1.6), squeeze=False, sharey=True
        )
        for axes, count in zip(all_axes[0], instances, strict=True):
            at = {(cell["delay_us"], cell["concurrency"]): cell for cell in cells if cell["instances"] == count}
            shares = [[at[delay, size]["rate"] / best[size] for size in sizes] for delay in delays]
            image = axes.imshow(shares, cmap="Blues", vmin=0.4, vmax=1.0, aspect="auto")
            for row, delay in enumerate(delays):
                for column, size in enumerate(sizes):
                    cell = at[delay, size]
                    ink = "white" if shares[row][column] > 0.75 else INK
                    text = f"{cell['rate']:.1f}\n{cell['share_batched']:.0%} batched"
                    axes.text(column, row, text, ha="center", va="center", color=ink, fontsize=8)
            axes.set_xticks(range(len(sizes)), [str(size) for size in sizes])
            axes.set_yticks(range(len(delays)), [f"{delay / 1000:g} ms" for delay in delays])
            axes.set_xlabel("concurrency")
            axes.set_title(f"{count} instance{'s' if count > 1 else ''}", fontsize=10)
            if count == advice["instances"]:
                row = delays.index(advice["max_queue_delay_microseconds"])
                box = Rectangle(
                    (-0.48, row - 0.46), len(sizes) - 0.04, 0.92, fill=False, edgecolor="#d64545", linewidth=2
                )
                axes.add_patch(box)
        all_axes[0][0].set_ylabel("max_queue_delay")
        figure.colorbar(image, ax=all_axes[0].tolist(), label="share of the best in its column")
        return _png(figure)


def batches(summary: Mapping[str, Any]) -> bytes:
    """Histogram of batch sizes with the recommended setting, by concurrency."""
    advice = summary["recommended"]
    wanted = (advice["instances"], advice["max_queue_delay_microseconds"])
    cells = [cell for cell in summary["cells"] if (cell["instances"], cell["delay_us"]) == wanted]
    with plt.rc_context(STYLE):
        figure, all_axes = plt.subplots(1, len(cells), figsize=(2.3 * len(cells), 2.2), sharey=True, squeeze=False)
        for axes, cell in zip(all_axes[0], cells, strict=True):
            images = {int(size): int(size) * count for size, count in cell["batches"].items()}
            total = sum(images.values())
            axes.bar(list(images), [count / total for count in images.values()], color=OURS, width=0.9)
            axes.set_xlim(0, 33)
            axes.set_xlabel("images in a run")
            axes.set_title(f"concurrency {cell['concurrency']}", fontsize=10)
        all_axes[0][0].set_ylabel("share of images")
        return _png(figure)


def latency(summary: Mapping[str, Any]) -> bytes:
    """Rate and percentiles over concurrency, saturation marked; beside it where a request's time goes."""
    curve = summary["by_concurrency"]
    sizes = [point["concurrency"] for point in curve]
    with plt.rc_context(STYLE):
        figure, (left, middle, right) = plt.subplots(1, 3, figsize=(11, 3.2))
        left.plot(sizes, [point["rate"] for point in curve], color=OURS, marker="o")
        state = "full" if summary["saturated_at"] < sizes[-1] else "best"
        left.axvline(summary["saturated_at"], color="#d64545", linestyle="--", linewidth=1)
        left.annotate(
            f"{state} at {summary['saturated_at']}", (summary["saturated_at"], 0), xytext=(5, 5),
            textcoords="offset points", color="#d64545",
        )  # fmt: skip
        left.set_ylabel("images per second")
        left.set_ylim(0, 1.08 * max(point["rate"] for point in curve))
        for name, line in (("p50", "-"), ("p95", "--"), ("p99", ":")):
            middle.plot(sizes, [point["latency_ms"][name] for point in curve], line, color=OURS, label=name)
        middle.set_yscale("log")
        middle.set_ylabel("latency, ms")
        middle.yaxis.set_major_formatter(lambda ms, _: f"{ms:,.0f}")
        middle.legend(frameon=False)
        for axes in (left, middle):
            axes.set_xscale("log", base=2)
            axes.set_xticks(sizes, [str(size) for size in sizes])
            axes.set_xlabel("concurrency")
        _breakdown(right, curve)
        return _png(figure)


def _breakdown(axes: Any, curve: list[Mapping[str, Any]]) -> None:
    """Shares of the caller's mean time, by the server's own counters."""
    bottoms = [0.0] * len(curve)
    parts = {
        "decode": [point["server_ms"]["clip_preprocess"]["compute_infer"] for point in curve],
        "queue": [sum(point["server_ms"][step]["queue"] for step in point["server_ms"]) for point in curve],
        "model": [point["server_ms"]["clip_encoder"]["compute_infer"] for point in curve],
    }
    # The server counts means, so the whole is a mean too; older results hold only the median.
    seen = [point["latency_ms"].get("mean", point["latency_ms"]["p50"]) for point in curve]
    whole = [max(ms, sum(part[i] for part in parts.values())) for i, ms in enumerate(seen)]
    parts["rest"] = [total - sum(parts[name][i] for name in parts) for i, total in enumerate(whole)]
    for name, values in parts.items():
        shares = [100 * value / total for value, total in zip(values, whole, strict=True)]
        axes.bar(range(len(curve)), shares, bottom=bottoms, color=STAGES[name], label=name)
        bottoms = [bottom + share for bottom, share in zip(bottoms, shares, strict=True)]
    axes.set_xticks(range(len(curve)), [str(point["concurrency"]) for point in curve])
    axes.set_xlabel("concurrency")
    axes.set_ylabel("% of a request's time")
    axes.legend(frameon=False, fontsize=8, loc="upper center", ncols=4, bbox_to_anchor=(0.5, 1.16), columnspacing=0.8)


def serialisation(summary: Mapping[str, Any]) -> bytes:
    """Milliseconds an image by form, one line for each, over images to a request."""
    points = summary["points"]
    colours = dict(zip(summary["labels"], ("#d64545", "#f59e0b", "#7b8794", "#0ea5a4", OURS), strict=True))
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(figsize=(7, 3.4))
        ends: list[float] = []
        for form, label in summary["labels"].items():
            line = [point for point in points if point["form"] == form]
            rows = [point["rows"] for point in line]
            times = [point["ms_per_image"] for point in line]
            # Labels of two lines that end at the same height would overlap.
            near = sum(abs(math.log(times[-1] / other)) < 0.15 for other in ends)
            ends.append(times[-1])
            axes.plot(rows, times, marker="o", color=colours[form], label=label)
            place = (6, -3 - 13 * near)
            axes.annotate(f"{times[-1]:.3g}", (rows[-1], times[-1]), xytext=place, textcoords="offset points")
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(lambda ms, _: f"{ms:g}")
        axes.set_xticks(rows, [str(count) for count in rows])
        axes.set_xlabel("images to a request")
        axes.set_ylabel("ms an image, no model")
        axes.legend(frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1.04, 0.5))
        return _png(figure)


def precision(summary: Mapping[str, Any]) -> bytes:
    """Images per second by precision, and what each costs in cosine."""
    rows = list(summary.values())[::-1]
    most = max(map(int, rows[0]["rates"]))
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(figsize=(8, 0.45 * len(rows) + 1))
        for place, row in enumerate(rows):
            rate = row["rates"][str(most)]
            axes.barh(place, rate["median"], color=OURS if row["valid"] else OTHERS, height=0.7)
            label = f"{rate['median']:.1f}   cosine {row['cosine']:.6f}" + ("" if row["valid"] else " (below its gate)")
            axes.annotate(label, (rate["median"], place), xytext=(5, 0), textcoords="offset points", va="center")
        axes.set_yticks(range(len(rows)), [row["label"] for row in rows])
        axes.set_xlabel(f"images per second, concurrency {most}")
        axes.margins(x=0.4)
        return _png(figure)


def links(summary: Mapping[str, Any]) -> bytes:
    """Milliseconds of a request by line and form, one panel for each number of images; marks: by arithmetic."""
    slow = summary["over_links"]
    counts = sorted({point["rows"] for point in slow})
    lines = ["loopback", *dict.fromkeys(point["link"] for point in slow)]
    forms = list(dict.fromkeys(point["form"] for point in slow))
    local = [{**point, "link": "loopback", "computed_ms": None} for point in summary["points"]]
    at = {(point["link"], point["form"], point["rows"]): point for point in (*slow, *local)}
    colours = dict(zip(forms, ("#d64545", "#7b8794", "#0ea5a4", OURS), strict=True))
    with plt.rc_context(STYLE):
        figure, all_axes = plt.subplots(
            1, len(counts), figsize=(max(7.0, 5.2 * len(counts)), 3.4), sharey=True, squeeze=False
        )
        for axes, count in zip(all_axes[0], counts, strict=True):
            for offset, form in enumerate(forms):
                for place, line in enumerate(lines):
                    point = at.get((line, form, count))
                    if point is None:
                        continue
                    x = place + (offset - (len(forms) - 1) / 2) * 0.2
                    axes.bar(x, point["p50_ms"], width=0.18, color=colours[form])
                    label = f"{point['p50_ms']:.3g}" if point["p50_ms"] < 100 else f"{point['p50_ms']:,.0f}"
                    axes.annotate(
                        label, (x, point["p50_ms"]), xytext=(0, 2), textcoords="offset points", ha="center", fontsize=7
                    )
                    if point["computed_ms"] is not None:
                        axes.plot((x - 0.09, x + 0.09), [point["computed_ms"]] * 2, color=INK, linewidth=1.5)
            axes.set_yscale("log")
            axes.yaxis.set_major_formatter(lambda ms, _: f"{ms:,.15g}")
            axes.set_xticks(range(len(lines)), lines)
            axes.set_title(f"{count} image{'s' if count > 1 else ''} to a request", fontsize=10)
        all_axes[0][0].set_ylabel("ms a request, no model")
        handles = [Rectangle((0, 0), 1, 1, color=colours[form]) for form in forms]
        figure.legend(
            handles, [summary["labels"][form] for form in forms], frameon=False, ncols=4, fontsize=8,
            loc="outside lower center",
        )  # fmt: skip
        return _png(figure)


def operators(summary: Mapping[str, Any]) -> bytes:
    """Shares of the model's time by kind of node, one bar for each batch size."""
    batches_ = sorted(summary, key=int)
    kinds = [row["operator"] for row in summary[batches_[-1]]["operators"][:7]]
    shades = plt.get_cmap("Blues_r")
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(figsize=(8, 0.6 * len(batches_) + 1.5))
        for place, batch in enumerate(batches_):
            shares = {row["operator"]: row["share"] for row in summary[batch]["operators"]}
            parts = {kind: shares.get(kind, 0.0) for kind in kinds}
            parts["all others"] = 1 - sum(parts.values())
            left = 0.0
            for number, (kind, share) in enumerate(parts.items()):
                colour = OTHERS if kind == "all others" else shades(0.1 + 0.1 * number)
                axes.barh(place, share, left=left, color=colour, height=0.6, label=kind if place == 0 else None)
                if share > 0.04:
                    ink = "white" if number < 4 else INK
                    axes.text(left + share / 2, place, f"{share:.0%}", ha="center", va="center", color=ink, fontsize=8)
                left += share
        names = [f"batch {batch}, {summary[batch]['total_ms']:.0f} ms" for batch in batches_]
        axes.set_yticks(range(len(batches_)), names)
        axes.xaxis.set_major_formatter(lambda share, _: f"{share:.0%}")
        axes.set_xlabel("share of the model's time")
        figure.legend(frameon=False, ncols=4, fontsize=8, loc="outside upper center")
        return _png(figure)


def scaling(summary: Mapping[str, Any]) -> bytes:
    """Images per second by number of servers, beside multiples of the rate of one server."""
    counts = sorted(map(int, summary["rates"]))
    rates = [summary["rates"][str(count)] for count in counts]
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(figsize=(5, 3))
        axes.bar(range(len(counts)), rates, color=OURS, width=0.6)
        axes.plot(
            range(len(counts)), [count * rates[0] for count in counts], "--o", color=OTHERS, label="multiples of one"
        )
        for place, (count, rate) in enumerate(zip(counts, rates, strict=True)):
            text = f"{rate:.1f} ({summary['efficiency'][str(count)]:.0%})"
            axes.annotate(text, (place, 0), xytext=(0, 6), textcoords="offset points", ha="center", color="white")
        axes.set_xticks(range(len(counts)), [str(count) for count in counts])
        axes.set_xlabel("servers behind one client")
        axes.set_ylabel("images per second")
        axes.legend(frameon=False, loc="upper left")
        axes.margins(y=0.15)
        return _png(figure)


def roofline(shown: Breakdown) -> bytes:
    """From the peak down to the service, with what each step loses; beside it both limits over the batch size."""
    with plt.rc_context(STYLE):
        figure, (left, right) = plt.subplots(1, 2, figsize=(12, 1.6 + 0.45 * len(shown.steps)), width_ratios=(1.15, 1))
        counted = f"counted as {FLOP_PER_IMAGE / 1e9:.2f} GFLOP an image, of which the export computes {EXPORTED:.0%}"
        figure.suptitle(f"{shown.machine}; ViT-B-32 {counted}", fontsize=10)
        _steps(left, shown.steps)
        _limits(right, shown)
        return _png(figure)


def _steps(axes: Any, steps: Sequence[Mapping[str, Any]]) -> None:
    widest = max(step["rate"] for step in steps)
    for place, step in enumerate(steps):
        above = steps[place - 1]["rate"] if place else step["rate"]
        axes.barh(place, step["rate"], color=OURS if place else OTHERS, height=0.62)
        if above > step["rate"]:
            axes.barh(place, above - step["rate"], left=step["rate"], color=LOST, height=0.62)
        share = f"   {step['of_first']:.0%}" if place else ""
        label = f"{step['rate']:,.0f}" if widest >= 1000 else f"{step['rate']:.1f}"
        where = (max(above, step["rate"]), place)
        axes.annotate(label + share, where, xytext=(5, 0), textcoords="offset points", va="center")
    axes.set_yticks(range(len(steps)), [fill(step["what"], 34) for step in steps])
    axes.invert_yaxis()
    axes.set_xlabel("images per second, and the share of the peak; light: lost at this step")
    axes.xaxis.set_major_formatter(lambda rate, _: f"{rate:,.0f}")
    axes.xaxis.set_major_locator(MaxNLocator(5))
    axes.set_xlim(0, 1.28 * widest)


def _limits(axes: Any, shown: Breakdown) -> None:
    sizes = sorted({rows for points in shown.curves.values() for rows, _ in points})
    ends = [sizes[0], sizes[-1]]
    knee = shown.compute / shown.memory
    along = sorted({*ends, *([knee] if ends[0] < knee < ends[1] else [])})
    axes.plot(along, [min(shown.compute, rows * shown.memory) for rows in along], color=INK, linewidth=1.5)
    axes.annotate(
        f"bare products, {shown.precision}", (ends[1], shown.compute), xytext=(0, 4), textcoords="offset points",
        ha="right", fontsize=8,
    )  # fmt: skip
    if ends[0] < knee:
        axes.annotate(
            "reading the weights", (ends[0], shown.memory), xytext=(6, -2), textcoords="offset points", fontsize=8,
            va="top",
        )  # fmt: skip
    for (label, points), colour in zip(shown.curves.items(), CURVES, strict=False):
        axes.plot(*zip(*sorted(points), strict=True), marker="o", markersize=4, color=colour, label=label)
    axes.set_xscale("log", base=2)
    axes.set_xticks(sizes, [str(size) for size in sizes])
    axes.margins(y=0.12)
    least = min(rate for points in shown.curves.values() for _, rate in points)
    if shown.compute / least > NARROW:
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_minor_locator(NullLocator())
    else:
        axes.set_ylim(bottom=0)
    axes.yaxis.set_major_formatter(lambda rate, _: f"{rate:,.0f}")
    axes.set_xlabel("images in a run, or callers")
    axes.set_ylabel("images per second")
    axes.legend(frameon=False, fontsize=8, loc="lower right")


def _png(figure: Figure) -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, dpi=130)
    plt.close(figure)
    return buffer.getvalue()
