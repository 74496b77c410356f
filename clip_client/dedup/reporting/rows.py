"""A report as lines for other programs: tab-separated copies, and CSV for spreadsheets."""

from __future__ import annotations

import csv
import io
from typing import TYPE_CHECKING, Final

from clip_client.dedup.reporting.words import in_words
from clip_client.dedup.text import escaped

if TYPE_CHECKING:
    from collections.abc import Iterator

    from clip_client.dedup.report import DuplicateReport
    from clip_client.dedup.types import DuplicateGroup, Member

CSV_COLUMNS: Final = (
    "group", "kept", "tier", "path", "bytes", "width", "height", "similarity", "taken", "what",
)  # fmt: skip
"""``group`` counts from 1; ``kept`` is yes or no; ``similarity`` is the cosine to the kept photo; ``what`` is words."""

_FORMULA: Final = ("=", "+", "-", "@")
"""A spreadsheet may run what begins with one of these."""


def copy_lines(report: DuplicateReport) -> Iterator[str]:
    """Yield a line for each copy, whether ``--apply`` moves it or not: tier, bytes, path and path of the kept photo.

    The columns are separated by tabs, and paths are written by :func:`~clip_client.dedup.text.escaped`. Photos in
    reference folders and in libraries of Apple Photos, frames of a burst and other moments of a scene have no line.
    """
    for group in report.groups:
        for member in group.members[1:]:
            if member.is_copy and not member.is_reference and member.in_library is None:
                tier, kept = (member.copy_tier, member.copy_of) if member.copy_of else (member.tier, group.keep)
                yield f"{tier}\t{member.size_bytes}\t{escaped(member.path)}\t{escaped(kept)}"


def csv_lines(report: DuplicateReport) -> Iterator[str]:
    """Yield the lines of a CSV file: the names of :data:`CSV_COLUMNS`, then a row for each photo of each group."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(CSV_COLUMNS)
    for number, group in enumerate(report.groups, start=1):
        for member in group.members:
            writer.writerow(_csv_row(number, member, group))
        yield buffer.getvalue()
        buffer.seek(0)
        buffer.truncate()
    yield buffer.getvalue()


def _csv_row(number: int, member: Member, group: DuplicateGroup) -> tuple[str | int | float, ...]:
    is_kept = member.path == group.keep
    path = escaped(member.path)
    return (
        number,
        "yes" if is_kept else "no",
        member.tier,
        f"./{path}" if path.startswith(_FORMULA) else path,
        member.size_bytes,
        member.width,
        member.height,
        member.similarity,
        member.metadata.taken,
        "" if is_kept else in_words(member, group.members[0]),
    )
