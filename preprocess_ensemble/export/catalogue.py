"""The models that are worth a look: ``models.md`` beside this module, whose tables docs/models.md repeats.

The speed is what ``python -m benchmarks towers`` measures: milliseconds of one thread in fp32, in batches of 8. The
recall is the mean of that at 1, 5 and 10.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

_MODELS: Final = Path(__file__).with_name("models.md")


def tables() -> list[list[list[str]]]:
    """Return the cells of both tables, the headings first: what is known of each model, and the recall by language."""
    return [_cells(block) for block in _blocks() if block.startswith("|")]


def listing() -> str:
    """Return all that ``clip-export --list`` prints."""
    aligned = (_aligned(_cells(block)) if block.startswith("|") else block.strip() for block in _blocks())
    return "\n\n".join(aligned) + "\n"


def _blocks() -> Iterator[str]:
    yield from _MODELS.read_text(encoding="utf-8").split("\n\n")


def _cells(block: str) -> list[list[str]]:
    first, _, *others = (line.strip("|").split("|") for line in block.strip().splitlines())
    return [[cell.strip().replace("`", "") for cell in row] for row in (first, *others)]


def _aligned(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)
