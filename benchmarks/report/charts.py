"""The charts in the documents: images and texts a second, and photos a second of a first search, as PNG."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from benchmarks.experiments.dedup import first_scan
from benchmarks.experiments.serving.three_way import SYSTEMS, TEXT_SYSTEMS
from benchmarks.harness.results import spread

INK, OURS, OTHERS = "#1f2933", "#2563eb", "#9aa5b1"
STYLE: Final[dict[Any, Any]] = {
    "font.size": 10,
    **dict.fromkeys(("axes.spines.top", "axes.spines.right"), False),
    **dict.fromkeys(("axes.labelcolor", "text.color", "xtick.color", "ytick.color"), INK),
    "axes.edgecolor": OTHERS,
    "figure.constrained_layout.use": True,
    "savefig.dpi": 130,
}


class Bar(NamedTuple):
    """One system of a chart."""

    words: str
    rate: Mapping[str, float]
    """``median``, ``min`` and ``max`` over the rounds."""
    is_ours: bool
    note: str = ""
    """Stands behind the rate."""


def serving_bars(result: Mapping[str, Any]) -> tuple[str, list[Bar]]:
    """Return the axis and the bars of ``three_way`` or ``text`` at the highest number of callers."""
    known = {**SYSTEMS, **TEXT_SYSTEMS}
    systems = result["summary"]["systems"]
    most = max(next(iter(systems.values()))["at"], key=int)
    bars = [
        Bar(
            known[name].words,
            row["at"][most]["images_per_second"],
            is_ours=known[name].words.startswith(("ensemble", "clip_text")),
            note="" if row["valid"] else "  invalid: other vectors",
        )
        for name, row in systems.items()
    ]
    return f"{'texts' if result['experiment'] == 'text' else 'images'} per second, {most} callers", bars


def search_bars(result: Mapping[str, Any]) -> tuple[str, list[Bar]]:
    """Return the axis and the bars of ``first_scan``, for its first size of photos."""
    size = result["plan"]["sizes"][0]
    bars = []
    for system, words in first_scan.SYSTEMS.items():
        if found := result["searches"].get(f"{size}, {system}"):
            rate = spread([one["photos_per_second"] for one in found])
            bars.append(Bar(words.replace("`", ""), rate, is_ours=system not in ("imagehash", "czkawka")))
    return f"photos of {size} per second, from an empty store to the groups", bars


CHARTS: Final[Mapping[str, Callable[[Mapping[str, Any]], tuple[str, list[Bar]]]]] = {
    "three_way": serving_bars,
    "text": serving_bars,
    "first_scan": search_bars,
}


def write_charts(results: Mapping[str, Mapping[str, Any]], folder: Path) -> list[Path]:
    """Write the chart of each experiment that has a result; return the files."""
    written = []
    for name, bars_of in CHARTS.items():
        if name in results:
            written.append(folder / f"{name}.png")
            written[-1].write_bytes(drawn(*bars_of(results[name])))
    return written


def drawn(axis: str, bars: Sequence[Bar]) -> bytes:
    import matplotlib as mpl
    from matplotlib.figure import Figure

    bars = bars[::-1]  # the first on top
    rates = [bar.rate for bar in bars]
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(10, 0.42 * len(bars) + 1))
        axes = figure.subplots()
        shapes = axes.barh(
            [bar.words for bar in bars],
            [rate["median"] for rate in rates],
            xerr=[[rate["median"] - rate["min"] for rate in rates], [rate["max"] - rate["median"] for rate in rates]],
            ecolor=INK,
            color=[OURS if bar.is_ours else OTHERS for bar in bars],
            height=0.7,
        )
        axes.bar_label(shapes, [f"{bar.rate['median']:.1f}{bar.note}" for bar in bars], padding=5)
        axes.set(xlabel=f"{axis}; line: slowest to fastest round", xmargin=0.12)
        picture = io.BytesIO()
        figure.savefig(picture)
    return picture.getvalue()
