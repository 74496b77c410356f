"""Print a report as tables in the terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from rich.table import Table
from rich.text import Text

from clip_client.dedup.text import at_least, counted, human_bytes, printable, skipped_files
from clip_client.dedup.types import EXACT, is_random

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rich.console import Console

    from clip_client.dedup.types import DuplicateGroup, DuplicateReport, FailedFile

_MOST_GROUPS: Final = 50
"""Groups that the terminal shows; the JSON file and the page have all of them."""
_MOST_FAILED: Final = 50
_WIDEST: Final = 120
"""Characters; in a wider table the numbers are too far from their names."""
_NOTE_WIDTH: Final = len("never moved")


def print_report(report: DuplicateReport, console: Console, *, can_read_raw: bool = True) -> None:
    """Print the groups, the files that failed and a summary; without ``can_read_raw``, also how to read RAW files."""
    for number, group in enumerate(report.groups[:_MOST_GROUPS], start=1):
        _print_group(number, group, console)
    if len(report.groups) > _MOST_GROUPS:
        left = counted(len(report.groups) - _MOST_GROUPS, "group")
        _print(f"... and {left} more, not shown here\n", console)
    print_failed(report.failed, console)
    print_skipped(report.skipped, console)
    if report.bytes_only:
        # RAW files are the only ones that are compared without a preview.
        remedy = "" if can_read_raw else "; to read previews: pip install 'clip-triton[raw]'"
        raw_files = counted(len(report.bytes_only), "RAW file")
        _print(f"{raw_files} compared by bytes only, because no preview could be read{remedy}", console)
    if report.coverage is not None and report.coverage.method != "exact":
        _print(
            f"compared in cells: {report.coverage.recall:.2%} of the similar pairs were found "
            f"(95 % interval: {report.coverage.recall_95[0]:.2%} to {report.coverage.recall_95[1]:.2%}), measured on "
            f"{counted(report.coverage.pairs, 'pair')}",
            console,
        )
    _print(
        f"{counted(report.compared, 'photo')} compared, {counted(len(report.groups), 'group')}, "
        f"{counted(report.copies, 'copy', 'copies')} of {human_bytes(report.spare_bytes)}, "
        f"{counted(len(report.failed), 'file')} not compared",
        console,
        style="bold",
    )
    _print(f"model {report.model}, threshold {report.thresholds.similar:g}", console)
    if is_random(report.model):
        message = "The weights of this model are random: it finds only re-encoded and resized copies."
        _print(message, console, style="yellow")


def _print(text: str, console: Console, style: str = "") -> None:
    """Print a line that may hold names, whose brackets are not markup."""
    console.print(Text(text, style=style), soft_wrap=True)


def _print_group(number: int, group: DuplicateGroup, console: Console) -> None:
    heading = f"{number}. {summary(group)}"
    if group.reason:
        heading += f"; kept: {printable(group.reason)}"
    console.print(Text(heading, style="bold"))
    for warning in group.warnings:
        console.print(Text(f"warning: {warning}", style="yellow"))
    table = Table.grid(padding=(0, 2, 0, 0), expand=True)
    table.width = min(console.width, _WIDEST)
    table.add_column(width=_NOTE_WIDTH, no_wrap=True)
    table.add_column(overflow="fold", ratio=1)
    for right in (9, 7, 6):  # such as 6000x4000, 24.1 MB, 0.9993
        table.add_column(width=right, justify="right", no_wrap=True)
    for member in group.members:
        kept = member.path == group.keep
        never_moves = (member.moment and not member.copy_of) or member.is_reference or member.in_library
        note = "keep" if kept else "never moved" if never_moves else ""
        holds = f"holds more than its picture: {member.embedded}" if member.embedded else ""
        why = "; ".join(filter(None, (member.moment, member.why, holds)))
        notes = [printable(text) for text in (member.origin, why) if text]
        table.add_row(
            Text(note, style="green" if kept else "yellow", justify="right"),
            Text.assemble(printable(member.label), ("".join(f"\n{note}" for note in notes), "dim")),
            f"{member.width}x{member.height}" if member.width else "",
            human_bytes(member.size_bytes),
            "" if kept else f"{member.similarity:.4f}",
        )
    console.print(table)
    console.print()


def print_failed(failed: Sequence[FailedFile], console: Console) -> None:
    """Print which files were not compared, and why."""
    for failure in failed[:_MOST_FAILED]:
        console.print(
            Text.assemble((failure.code, "yellow"), f" {printable(failure.path)}: {failure.message}"), soft_wrap=True
        )
    if len(failed) > _MOST_FAILED:
        left = counted(len(failed) - _MOST_FAILED, "file")
        _print(f"... and {left} more not compared; --json lists all", console)


def print_skipped(skipped: Mapping[str, int], console: Console) -> None:
    """Print how many files of which kinds were passed over."""
    if skipped:
        _print(skipped_files(skipped), console)


def summary(group: DuplicateGroup) -> str:
    """Say what the photos of a group have in common: its tier, and the least similarity of all its pairs."""
    alike = "" if group.tier == EXACT else f", every pair at least {at_least(group.min_similarity)} alike"
    return f"{counted(len(group.members), 'photo')}, {group.tier}{alike}"
