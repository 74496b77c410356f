"""The accuracy benchmark as one HTML page with its plots inside."""

from __future__ import annotations

import base64
import io
from typing import TYPE_CHECKING, Any

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined

if TYPE_CHECKING:
    from pathlib import Path

    from matplotlib.figure import Figure

_COLUMNS = {
    "recall of copies": "recall_of_copies",
    "pair precision": "precision",
    "B-cubed F1": "bcubed_f1",
    "chained pairs": "chaining",
    "largest group": "largest_group",
    "deleted": "deleted",
    "harmful per 1,000": "harmful_per_1000",
    "best photo kept": "keeper_right",
}


def write_page(result: dict[str, Any], path: Path) -> None:
    """Write the result of the experiment ``accuracy``."""
    environment = Environment(
        loader=PackageLoader(__package__),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    detectors = result["detectors"]
    plots = {"trade": _trade(detectors), "curves": _curves(result["rankings"]), "heat": _heat(detectors)}
    page = environment.get_template("accuracy.html.j2").render(result, columns=_COLUMNS, **plots)
    path.write_text(page, encoding="utf-8")


def _heat(detectors: list[dict[str, Any]]) -> str:
    """Above, what should be found; below, what should not be."""
    changes, kinds = list(detectors[0]["recall_by_change"]), list(detectors[0]["negatives_merged"])
    found = np.array([[row["recall_by_change"][change] for row in detectors] for change in changes])
    taken = np.array([[row["negatives_merged"][kind] for row in detectors] for kind in kinds])
    figure = _figure(12, 20)
    above, below = figure.subplots(2, height_ratios=[len(changes), len(kinds)])
    for axes, values, names, title, colours in (
        (above, found, changes, "Share of the copies found", "Blues"),
        (below, taken, [f"negative: {kind}" for kind in kinds], "Share of the look-alikes taken for copies", "Oranges"),
    ):
        axes.imshow(values, cmap=colours, vmin=0, vmax=1, aspect="auto")
        axes.set_yticks(range(len(names)), names, fontsize=9)
        axes.set_xticks([])
        axes.spines[:].set_visible(False)
        for (row, column), value in np.ndenumerate(values):
            color = "w" if value > 0.6 else "k"
            axes.text(column, row, f"{value:.2f}", ha="center", va="center", fontsize=7, color=color)
        axes.set_title(title, loc="left", fontsize=12)
    names = [row["detector"] for row in detectors]
    below.set_xticks(range(len(detectors)), names, rotation=45, ha="right", fontsize=9)
    return _data_uri(figure)


def _trade(detectors: list[dict[str, Any]]) -> str:
    """A line joins the detectors of one kind; the number beside a point is the detector's setting."""
    figure = _figure(12, 5.5)
    axes = figure.subplots()
    kinds: dict[str, list[dict[str, Any]]] = {}
    for row in detectors:
        name = row["detector"]
        is_swept = name.startswith(("pHash", "embedding")) and not name.endswith("thumbnail")
        kinds.setdefault(name.split()[0].rstrip(",") if is_swept else name, []).append(row)
    for marker, (kind, rows) in zip("oDs^vP*X<>dph8" * 2, kinds.items(), strict=False):
        points = np.array([(row["recall_of_copies"], row["harmful_per_1000"]) for row in rows])
        axes.plot(*points.T, marker=marker, markersize=8, linewidth=1.2, label=kind, alpha=0.8)
        for row, (x, y) in zip(rows, points, strict=True):
            if len(rows) > 1:
                setting = row["detector"].removeprefix(kind).strip(", ")
                axes.annotate(setting, (x, y), (5, 5), textcoords="offset points", fontsize=8)
    axes.set(xlabel="share of the copies found", ylabel="harmful deletes per 1,000")
    axes.set_yscale("symlog", linthresh=1)
    axes.set_ylim(bottom=-0.1)
    axes.grid(alpha=0.3)
    figure.legend(loc="outside right upper", fontsize=9, frameon=False)
    return _data_uri(figure)


def _curves(rankings: dict[str, Any]) -> str:
    figure = _figure(12, 4.5)
    axes = figure.subplots()
    for name, ranking in rankings.items():
        axes.plot(ranking["curve"]["recall"], ranking["curve"]["precision"], label=name)
    axes.axhline(0.9, color="#999", linewidth=0.8, linestyle="--")
    axes.set(xlim=(0, 1), ylim=(0, 1.02), xlabel="recall of all pairs of copies", ylabel="precision")
    axes.grid(alpha=0.3)
    figure.legend(loc="outside right upper", fontsize=9, frameon=False)
    return _data_uri(figure)


def _figure(width: float, height: float) -> Figure:
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), dpi=120, layout="constrained")


def _data_uri(figure: Figure) -> str:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode("ascii")
