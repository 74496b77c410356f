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
h2 { margin-top: 2em; }
img { width: 100%; }
.wide { overflow-x: auto; }
th { vertical-align: bottom; }
tr:hover td { background: #f5f5f2; }
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
    """Write the result of the experiment ``accuracy``."""
    detectors = result["detectors"]
    rows = "".join(
        f"<tr><td>{escape(row['detector'])}</td>"
        + "".join(f"<td>{_shown(row[key])}</td>" for key in _COLUMNS.values())
        + "</tr>"
        for row in detectors
    )
    rankings = "".join(
        f"<tr><td>{escape(name)}</td><td>{ranking['uap']:.4f}</td><td>{ranking['recall_at_p90']:.4f}</td></tr>"
        for name, ranking in result["rankings"].items()
    )
    missing = "".join(f"<li>left out: {escape(line)}</li>" for line in result["missing"])
    path.write_text(
        '<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f"<title>Accuracy, {escape(result['model'])}</title><style>{_STYLE}</style>"
        f"<h1>{escape(result['model'])}</h1>{_banner(result)}"
        f"<p>{result['files']:,} files: {result['photos']} photos, their copies, and pictures that only look alike.</p>"
        "<h2>What each detector would do</h2>"
        "<p>Harmful is a deleted photo of which no copy is left; the pictures that only look alike are built to "
        "provoke that. Chained pairs are in one group without being alike themselves.</p>"
        f'<div class="wide"><table><tr><th>detector</th>{"".join(f"<th>{name}</th>" for name in _COLUMNS)}</tr>{rows}'
        f"</table></div><ul>{missing}</ul>"
        f'<img alt="Harmful deletes and recall of each detector" src="{_trade(detectors)}">'
        "<h2>Pairs, ranked by score</h2><table><tr><th>score</th><th>uAP</th><th>recall at 90 % precision</th></tr>"
        f'{rankings}</table><img alt="Precision by recall of each score" src="{_curves(result["rankings"])}">'
        "<h2>What is found, and what is taken for a copy</h2>"
        f'<img alt="Recall of each detector by what was done to the photo" src="{_heat(detectors)}">',
        encoding="utf-8",
    )


def _banner(result: dict[str, Any]) -> str:
    if result["random_weights"]:
        return (
            '<p class="banner"><strong>The weights are random.</strong> No threshold or precision on this page is a '
            "recommendation: it shows that the measurement works, and how the hashes do.</p>"
        )
    chosen = result["tuned"]
    return (
        f"<p>A cosine of {chosen['threshold']:.4f} was chosen on half of the photos; on the other half it has a "
        f"precision of {chosen['test_precision']:.4f} and a recall of {chosen['test_recall']:.4f}.</p>"
    )


def _shown(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:.3f}"


def _heat(detectors: list[dict[str, Any]]) -> str:
    """What should be found above, what should not be below."""
    changes, kinds = list(detectors[0]["recall_by_change"]), list(detectors[0]["negatives_merged"])
    found = np.array([[row["recall_by_change"][change] for row in detectors] for change in changes])
    taken = np.array([[row["negatives_merged"][kind] for row in detectors] for kind in kinds])
    figure = _figure(12, 20)
    above, below = figure.subplots(2, height_ratios=[len(changes), len(kinds)])
    for axes, values, names, title in (
        (above, found, changes, "Share of the copies found"),
        (below, taken, [f"negative: {kind}" for kind in kinds], "Share of the look-alikes taken for copies"),
    ):
        axes.imshow(values, cmap="Blues" if axes is above else "Oranges", vmin=0, vmax=1, aspect="auto")
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
    """Detectors of one kind are joined by a line; a number beside a point is where the detector's setting is."""
    figure = _figure(12, 5.5)
    axes = figure.subplots()
    kinds: dict[str, list[dict[str, Any]]] = {}
    for row in detectors:
        swept = row["detector"].startswith(("pHash", "embedding")) and row["detector"].count(",") < 2
        is_swept = swept and not row["detector"].endswith("thumbnail")
        kinds.setdefault(row["detector"].split()[0].rstrip(",") if is_swept else row["detector"], []).append(row)
    for marker, (kind, rows) in zip("oDs^vP*X<>dph8" * 2, kinds.items(), strict=False):
        points = np.array([(row["recall_of_copies"], row["harmful_per_1000"]) for row in rows])
        axes.plot(*points.T, marker=marker, markersize=8, linewidth=1.2, label=kind, alpha=0.8)
        for row, (x, y) in zip(rows, points, strict=True):
            if len(rows) > 1:
                setting = row["detector"].removeprefix(kind).strip(", ")
                axes.annotate(setting, (x, y), (5, 5), textcoords="offset points", fontsize=8)
    axes.set_xlabel("share of the copies found")
    axes.set_ylabel("harmful deletes per 1,000")
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
    axes.set_xlim(0, 1)
    axes.set_ylim(0, 1.02)
    axes.set_xlabel("recall of all pairs of copies")
    axes.set_ylabel("precision")
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
