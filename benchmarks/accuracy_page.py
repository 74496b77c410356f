"""The accuracy benchmark as one HTML page with its plots inside."""

from __future__ import annotations

import base64
import io
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from pathlib import Path

    from matplotlib.figure import Figure

_STYLE = """
body { max-width: 1200px; margin: 24px auto; padding: 0 16px; font: 16px/1.45 system-ui, sans-serif; color: #1c1d1f; }
h1 { font: 700 2.2rem/1.2 ui-monospace, monospace; overflow-wrap: anywhere; }
.banner { padding: 12px 16px; border-left: 6px solid #d9a520; background: #fff3d6; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: 4px 12px 4px 0; border-bottom: 1px solid #dcdcd8; text-align: right; }
th:first-child, td:first-child { text-align: left; }
img { width: 100%; }
"""

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
    """Write what ``benchmarks.accuracy`` found."""
    rows = "".join(
        f"<tr><td>{escape(row['detector'])}</td>"
        + "".join(f"<td>{row[key]:.4g}</td>" for key in _COLUMNS.values())
        + "</tr>"
        for row in result["detectors"]
    )
    banner = (
        '<p class="banner"><strong>The weights are random.</strong> No threshold or precision on this page is a '
        "recommendation: it shows that the measurement works, and how the hashes do.</p>"
        if result["random_weights"]
        else ""
    )
    rankings = "".join(
        f"<li>{escape(name)}: uAP {ranking['uap']:.4f}, recall at 90 % precision {ranking['recall_at_p90']:.4f}</li>"
        for name, ranking in result["rankings"].items()
    )
    missing = "".join(f"<li>left out: {escape(line)}</li>" for line in result["missing"])
    path.write_text(
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>Accuracy</title><style>{_STYLE}</style>'
        f"<h1>{escape(result['model'])}</h1>{banner}"
        f"<p>{result['files']} files of {result['photos']} photos.</p>"
        f"<table><tr><th>detector</th>{''.join(f'<th>{name}</th>' for name in _COLUMNS)}</tr>{rows}</table>"
        f"<ul>{rankings}{missing}</ul>"
        f'<img alt="Harmful deletes and recall of each detector" src="{_trade(result["detectors"])}">'
        f'<img alt="Recall of each detector by what was done to the photo" src="{_heat(result["detectors"])}">',
        encoding="utf-8",
    )


def _heat(detectors: list[dict[str, Any]]) -> str:
    changes = list(detectors[0]["recall_by_change"])
    recalls = np.array([[row["recall_by_change"][change] for row in detectors] for change in changes])
    figure = _figure(11, 14)
    axes = figure.subplots()
    axes.imshow(recalls, cmap="viridis", vmin=0, vmax=1, aspect="auto")
    axes.set_xticks(range(len(detectors)), [row["detector"] for row in detectors], rotation=60, ha="right", fontsize=7)
    axes.set_yticks(range(len(changes)), changes, fontsize=7)
    for (row, column), value in np.ndenumerate(recalls):
        axes.text(column, row, f"{value:.2f}", ha="center", va="center", fontsize=5, color="w" if value < 0.6 else "k")
    axes.set_title("Share of copies found")
    return _data_uri(figure)


def _trade(detectors: list[dict[str, Any]]) -> str:
    figure = _figure(11, 5)
    axes = figure.subplots()
    for row in detectors:
        axes.scatter(row["recall_of_copies"], row["harmful_per_1000"])
        axes.annotate(row["detector"], (row["recall_of_copies"], row["harmful_per_1000"]), fontsize=6)
    axes.set_xlabel("share of copies found")
    axes.set_ylabel("harmful deletes per 1,000")
    axes.set_yscale("symlog", linthresh=1)
    return _data_uri(figure)


def _figure(width: float, height: float) -> Figure:
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), dpi=120, layout="constrained")


def _data_uri(figure: Figure) -> str:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode("ascii")
