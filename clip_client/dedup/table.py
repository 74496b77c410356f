"""A report as tables for the terminal."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from clip_client.dedup.raw import can_read_raw
from clip_client.dedup.report import printable
from clip_client.dedup.thresholds import is_random

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from clip_client.dedup.report import DuplicateReport, FailedFile, Member

_MOST_GROUPS: Final = 50
"""Groups that a terminal shows; the JSON file and the page have them all."""
_MOST_FAILED: Final = 50


def print_report(report: DuplicateReport, console: Console) -> None:
    """Print the groups, the files that failed and a summary."""
    from rich.table import Table
    from rich.text import Text

    if report.groups:
        table = Table(show_edge=False, pad_edge=False)
        for heading, right in (("", False), ("photo", False), ("pixels", True), ("size", True), ("to kept", True)):
            table.add_column(heading, justify="right" if right else "left", no_wrap=right, overflow="fold")
        for number, group in enumerate(report.groups[:_MOST_GROUPS], start=1):
            heading = f"{group.tier}, all pairs at least {at_least(group.min_similarity)}"
            if group.reason:
                heading += f"; kept: {printable(group.reason)}"
            table.add_row(Text(str(number), style="bold"), Text(heading, style="bold"))
            for member in group.members:
                kept = member.path == group.keep
                note = "keep" if kept else "never moved" if _never_moves(member) else ""
                why = "; ".join(filter(None, (member.moment, *map(str, member.matches))))
                table.add_row(
                    Text(note, style="green" if kept else "yellow"),
                    Text.assemble(printable(member.label), (f"\n{why}" if why else "", "dim")),
                    f"{member.width}x{member.height}",
                    human_bytes(member.size_bytes),
                    "" if kept else f"{member.similarity:.4f}",
                )
            table.add_section()
        console.print(table)
        if len(report.groups) > _MOST_GROUPS:
            console.print(f"... and {len(report.groups) - _MOST_GROUPS} more groups, not shown here", markup=False)
    print_failed(report.failed, console)
    if report.bytes_only:
        # The file's name says why: RAW files are the only ones that are taken without a picture.
        console.print(
            f"{counted(len(report.bytes_only), 'RAW file')} compared by bytes only, for want of a preview"
            + ("" if can_read_raw() else "; pip install 'clip-triton[raw]' reads previews"),
            markup=False,
            highlight=False,
            soft_wrap=True,
        )
    copies = sum(len(group.members) - 1 for group in report.groups)
    if report.coverage is not None and report.coverage.method != "exact":
        console.print(
            f"compared in cells: {report.coverage.recall:.2%} of the alike pairs were met, measured on "
            f"{counted(report.coverage.pairs, 'pair')}",
            soft_wrap=True,
        )
    console.print(
        f"{counted(report.compared, 'photo')} compared, {counted(len(report.groups), 'group')}, "
        f"{counted(copies, 'copy', 'copies')} of {human_bytes(report.spare_bytes)}, "
        f"{counted(len(report.failed), 'file')} not compared",
        style="bold",
        highlight=False,
        soft_wrap=True,
    )
    console.print(f"model {report.model}, threshold {report.thresholds.similar:g}", markup=False, soft_wrap=True)
    if is_random(report.model):
        console.print(
            "The weights of this model are random: groups show re-encoded and resized copies only.",
            style="yellow",
            soft_wrap=True,
        )


def _never_moves(member: Member) -> bool:
    return bool(member.moment or member.is_reference or member.in_library)


def print_failed(failed: Sequence[FailedFile], console: Console) -> None:
    """Print which files were not compared, and why."""
    from rich.text import Text

    for failure in failed[:_MOST_FAILED]:
        console.print(
            Text.assemble((failure.code, "yellow"), f" {printable(failure.path)}: {failure.message}"), soft_wrap=True
        )
    if len(failed) > _MOST_FAILED:
        console.print(
            f"... and {counted(len(failed) - _MOST_FAILED, 'file')} more not compared; --json and --report list all",
            soft_wrap=True,
            highlight=False,
        )


def counted(number: int, noun: str, plural: str | None = None) -> str:
    """``counted(1, "photo")`` is ``"1 photo"``, ``counted(1200, "photo")`` is ``"1,200 photos"``."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def at_least(similarity: float) -> str:
    """Write a lower bound with four decimals, rounded down, so that it stays one."""
    return f"{math.floor(round(similarity * 1e4, 2)) / 1e4:.4f}"


def human_bytes(size: int) -> str:
    """Write a size with a decimal unit, as file managers do: ``"812 B"``, ``"1.4 MB"``."""
    value = float(size)
    for unit in ("B", "kB", "MB", "GB"):
        if value < 999.5:
            return f"{value:.0f} {unit}" if unit == "B" or value >= 99.5 else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:,.1f} TB"
