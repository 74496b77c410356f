"""Print a report for people in the terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from textwrap import wrap
from typing import TYPE_CHECKING, Final, TypeVar

from rich.cells import cell_len
from rich.text import Text

from clip_client._files import FailedFile, printable
from clip_client.dedup.group import DuplicateGroup, Member
from clip_client.dedup.pages.words import in_words, to_free_in_words
from clip_client.dedup.report import DuplicateReport
from clip_client.dedup.text import at_least, counted, human_bytes, skipped_files
from clip_client.dedup.types import BY_DEFAULT, EXACT, IF_CHOSEN, NEVER, NO_MODEL, ON_REQUEST, is_random
from preprocess_ensemble.errors import pip_install

if TYPE_CHECKING:
    from rich.console import Console

_Line = TypeVar("_Line")

_WORDS: Final = {BY_DEFAULT: "copy", ON_REQUEST: "wait", IF_CHOSEN: "stay", NEVER: "stay"}

_MOST_GROUPS: Final = 10
_MOST_MEMBERS: Final = 5
_MOST_FAILED: Final = 5
"""Limits of groups, of members in a group and of failed files; with ``-v`` all are printed."""
_NO_GROUPS: Final = {0: "", 1: "no other to compare it with"}


def print_groups(report: DuplicateReport, console: Console, *, verbose: bool = False) -> dict[str, str]:
    """Print the ten groups whose copies take the most space, or all; return path -> printed reason to stay."""
    by_space = report.groups_by_space
    shown = by_space if verbose else by_space[:_MOST_GROUPS]
    explained: dict[str, str] = {}
    for number, group in enumerate(shown, start=1):
        explained |= _print_group(number, group, console, verbose=verbose, has_cosines=report.has_cosines)
    if len(shown) < len(by_space):
        left = by_space[len(shown) :]
        space = human_bytes(sum(group.spare_bytes[0] for group in left))
        where = "-v lists them here, --report FILE.html shows the pictures"
        _print(f"{counted(len(left), 'more group')} of {space}: {where}\n", console)
    return explained


def print_notes(report: DuplicateReport, console: Console, *, can_read_raw: bool = True, verbose: bool = False) -> None:
    print_failed(report.failed, report.skipped, console, verbose=verbose)
    if report.bytes_only:
        # Only RAW files are compared by their bytes alone.
        remedy = "" if can_read_raw else f"; to read previews: {pip_install('raw')}"
        raw_files = counted(len(report.bytes_only), "RAW file")
        _print(f"{raw_files} compared by bytes only, because no preview could be read{remedy}", console)
    if (cells := report.coverage) is not None and cells.method != "exact":
        interval = "95 % interval: {:.2%} to {:.2%}".format(*cells.recall_95)
        pairs = f"{cells.recall:.2%} of the similar pairs were found ({interval})"
        _print(f"compared in cells: {pairs}, measured on {counted(cells.pairs, 'pair')}", console)
    if report.note:
        _print(report.note, console, style="yellow")
    if verbose and report.model != NO_MODEL:
        _print(f"model {report.model}, threshold {report.thresholds.similar:g}", console)
    missing = "crops and heavy edits may be missing."
    if report.model == NO_MODEL:
        _print(f"Searched without a model: {missing}", console, style="yellow")
    if is_random(report.model):
        _print(f"The weights of this model are random: copies are still proved, but {missing}", console, style="yellow")
    compared = [
        f"{counted(report.compared, 'photo')} compared",
        counted(len(report.groups), "group") if report.groups else _NO_GROUPS.get(report.compared, "no duplicates"),
        report.failed_in_words,
    ]
    _print(", ".join(filter(None, compared)), console, style="bold")


def _first(lines: Sequence[_Line], most: int) -> Sequence[_Line]:
    """Return the first ``most``, or all if only one more would be hidden: the line about it takes as much space."""
    return lines if len(lines) == most + 1 else lines[:most]


def _print(text: str, console: Console, style: str = "") -> None:
    # Text: brackets are not markup.
    console.print(Text(text, style=style), soft_wrap=not console.is_terminal)


def _print_group(
    number: int, group: DuplicateGroup, console: Console, *, verbose: bool, has_cosines: bool
) -> dict[str, str]:
    kept, *others = group.members
    words = {member.path: in_words(member, kept) for member in others}
    is_uniform = len(set(words.values())) == 1
    to_free = "".join(to_free_in_words(len(group.members), group.moving(), len(group.waiting)))
    line = Text()
    line.append(f"{number}. {to_free}", style="bold")
    if is_uniform:
        line.append(":")
        _append(line, " ", words[others[0].path], 3, console)
    if group.reason:
        _append(line, "; ", f"kept: {printable(group.reason)}", 3, console, style="dim")
    console.print(line, soft_wrap=True)
    if verbose and group.tier != EXACT:
        similarity = f", cosine of every pair at least {at_least(group.min_similarity)}" if has_cosines else ""
        _print(f"   {group.tier}{similarity}", console, style="dim")
    moving_first = [kept, *sorted(others, key=lambda one: one.verdict.moves != BY_DEFAULT)]
    shown = moving_first if verbose else _first(moving_first, _MOST_MEMBERS + 1)
    for member in shown:
        said = "" if is_uniform else words.get(member.path, "")
        cosine = f"{member.similarity:.4f}" if has_cosines and member is not kept else ""
        _print_member(member, said, cosine, console, is_kept=member is kept, verbose=verbose)
    if hidden := len(group.members) - len(shown):
        _print(f"   ... and {hidden:,} more photos; -v lists them", console)
    console.print()
    return {one.path: one.verdict.reason for one in shown if one is not kept and not one.verdict.is_copy}


def _print_member(member: Member, words: str, cosine: str, console: Console, *, is_kept: bool, verbose: bool) -> None:
    photo, verdict = member.photo, member.verdict
    size = f"{photo.width}x{photo.height}" if photo.width else ""
    line = Text("   ")
    line.append("keep" if is_kept else _WORDS[verdict.moves], style="green" if is_kept else "yellow")
    line.append(f"  {size:>10}  {human_bytes(photo.size_bytes):>7}")
    if verbose:
        line.append(f"  {cosine:6}")
    line.append(f"  {printable(photo.label)}")
    indent = line.cell_len - cell_len(printable(photo.label))
    if words:
        _append(line, "  ", words, indent, console, style="dim")
    if not is_kept and not verdict.is_copy:
        line.append(_below(printable(verdict.reason), indent, console), style="dim")
    console.print(line, soft_wrap=True)
    if verbose:
        embedded = photo.features.embedded
        holds = f"holds more than its picture: {embedded}" if embedded else ""
        cannot = f"cannot be verified: {member.cannot_verify}" if member.cannot_verify else ""
        other_shot = member.other_shot if member.copy_of else ""  # else the reason says so
        why = "; ".join(filter(None, (other_shot, member.why, cannot, holds)))
        for note in filter(None, (photo.origin, why)):
            for part in note.split("; "):
                console.print(Text(f"{' ' * indent}{printable(part)}", style="dim"), soft_wrap=True)


def _append(line: Text, between: str, text: str, indent: int, console: Console, style: str = "") -> None:
    fits = "\n" not in line.plain and line.cell_len + len(between) + cell_len(text) <= console.width
    line.append(f"{between}{text}" if fits else _below(text, indent, console), style=style)


def _below(text: str, indent: int, console: Console) -> str:
    """Return the text in lines of its own, broken between words, because a terminal would break inside them."""
    lines = wrap(text, max(console.width - indent, 20), break_long_words=False, break_on_hyphens=False)
    return "".join(f"\n{' ' * indent}{line}" for line in lines)


def print_failed(
    failed: Sequence[FailedFile], skipped: Mapping[str, int], console: Console, *, verbose: bool = False
) -> None:
    shown = failed if verbose else _first(failed, _MOST_FAILED)
    for failure in shown:
        console.print(
            Text.assemble((failure.code, "yellow"), f" {printable(failure.path)}: {failure.message}"), soft_wrap=True
        )
    if len(shown) < len(failed):
        _print(f"... and {len(failed) - len(shown):,} more files not compared", console)
    if skipped:
        _print(skipped_files(skipped), console)
