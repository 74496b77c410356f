"""A report as lines for other programs: tab-separated copies, and CSV for spreadsheets."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from typing import Final

from clip_client.dedup.pages.words import in_words
from clip_client.dedup.report import DuplicateReport
from clip_client.dedup.text import escaped

CSV_COLUMNS: Final = (
    "group", "kept", "tier", "path", "bytes", "width", "height", "similarity", "taken", "what", "moves", "why",
)  # fmt: skip
"""``group`` counts from 1; ``similarity`` is the cosine with the kept photo, empty without a model; ``why`` says why
the photo does not move by default."""

_FORMULA: Final = ("=", "+", "-", "@")
"""Characters with which a formula begins; a spreadsheet may run it."""


def copy_lines(report: DuplicateReport) -> Iterator[str]:
    """Yield tier, bytes, path, kept path and ``moves``, separated by tabs, for each copy that can move."""
    for group in report.groups:
        for member in group.members[1:]:
            verdict, photo = member.verdict, member.photo
            if verdict.is_copy and photo.in_library is None:
                paths = f"{escaped(photo.path)}\t{escaped(verdict.kept)}"
                yield f"{verdict.tier}\t{photo.size_bytes}\t{paths}\t{verdict.moves}"


def csv_lines(report: DuplicateReport) -> Iterator[str]:
    yield _line(*CSV_COLUMNS)
    for number, group in enumerate(report.groups, start=1):
        for member in group.members:
            is_kept = member.path == group.keep
            path, photo = escaped(member.path), member.photo
            yield _line(
                number,
                "yes" if is_kept else "no",
                member.tier,
                f"./{path}" if path.startswith(_FORMULA) else path,
                photo.size_bytes,
                photo.width,
                photo.height,
                member.similarity if report.has_cosines else "",
                photo.metadata.taken,
                "" if is_kept else in_words(member, group.members[0]),
                "" if is_kept else member.verdict.moves,
                member.verdict.reason,
            )


def _line(*row: object) -> str:
    buffer = io.StringIO()
    csv.writer(buffer, lineterminator="\n").writerow(row)
    return buffer.getvalue()
