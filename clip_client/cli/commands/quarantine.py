"""The quarantine of ``dedup --apply``: ``clip-client undo`` restores it, and ``purge`` sends it to the trash."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, TextIO

from clip_client.cli.errors import CommandFailed, CommandMisused, need
from clip_client.cli.options.paths import add_store_option, opened_store
from clip_client.cli.output import STDOUT, add_json_option, progress_bars, write_json
from clip_client.dedup.store.journal import IN_QUARANTINE, Journal, JournalEntry
from clip_client.dedup.text import counted, human_bytes, printable
from clip_client.dedup.types import QUARANTINE_NAME

if TYPE_CHECKING:
    from clip_client.dedup.actions.apply import Outcome
    from clip_client.dedup.store.choices import Choice

_EMPTY: Final = "there is nothing in the quarantine to restore"
_UNKNOWN: Final = "Nothing in the quarantine came from this path; see clip-client undo --list."
_MOST_FOLDERS: Final = 20
_NO_SUSPECT: Final = "for each photo in the quarantine, a photo is left that is proved to show the same"


def add_undo_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command's options."""
    parser = commands.add_parser(
        "undo",
        usage="%(prog)s [options] [PATH ...]",
        help="restore the photos that dedup --apply moved",
        description="Move photos from the quarantine back to their old places, with their old times. Without a PATH or "
        "--run, restore all of them.",
    )
    parser.add_argument("paths", nargs="*", metavar="PATH", help="restore only the photo that was at this path")
    parser.add_argument(
        "--run",
        dest="of_run",
        metavar="RUN",
        help="take back only the moves and decisions of one run; --list shows the runs",
    )
    parser.add_argument(
        "--suspects",
        action="store_true",
        help="restore only the photos for which no remaining photo is proved to show the same; an earlier version may "
        "have moved such photos",
    )
    parser.add_argument(
        "--list",
        "--dry-run",
        action="store_true",
        help="only list the photos in the quarantine and the decisions of runs",
    )
    add_json_option(parser, "the result")
    add_store_option(parser)


def run_undo(arguments: argparse.Namespace) -> int:
    """Restore photos, and print failures."""
    from clip_client.dedup.actions.apply import Outcome
    from clip_client.dedup.actions.chosen_runs import declared_by, take_back
    from clip_client.dedup.actions.purge import suspects
    from clip_client.dedup.compare.proofs import prove_again
    from clip_client.dedup.store.store import store_option

    paths = [os.path.abspath(os.path.expanduser(path)) for path in arguments.paths]
    if arguments.suspects and paths:
        raise CommandMisused("--suspects chooses the photos itself; leave out the PATH")
    of_run = arguments.of_run
    with opened_store(arguments.store) as store:
        declared = [] if arguments.suspects else declared_by(store, of_run)
        entries = store.journal.entries(IN_QUARANTINE, run=of_run) if declared else _quarantined(store.journal, of_run)
        only = None
        if arguments.suspects:
            with progress_bars() as show:
                entries = suspects(store.journal, prove=prove_again, run=of_run, on_progress=show)
            only = {entry.id for entry in entries}
            if not (entries or arguments.json):
                print(_NO_SUSPECT)
                return 0
        if arguments.list:
            if paths:
                entries = [one for one in entries if not set(paths).isdisjoint(file.original for file in one.files)]
                declared = [one for one in declared if not set(paths).isdisjoint(photo.path for photo in one.photos)]
            if not write_json(arguments.json, _as_json(entries, declared)):
                _print_list(entries, declared, store_option(store.journal.directory))
            return 0
        # Look before undo: a companion is restored with its photo, and the outcome names only the photo.
        unknown = tuple(
            Outcome(path=path, done=False, message=_UNKNOWN)
            for path in paths
            if not store.journal.entries(IN_QUARANTINE, run=of_run, original=path)
        )
        taken_back = take_back(store, run=of_run, paths=paths or None, only=only)
    outcomes = taken_back.outcomes + unknown
    if not write_json(arguments.json, _outcomes_json(outcomes)):
        if outcomes:
            print(f"{counted(sum(outcome.done for outcome in outcomes), 'photo')} restored")
        if taken_back.decisions:
            print(f"{counted(taken_back.decisions, 'decision')} taken back")
        elif not outcomes:
            print(_EMPTY)
    _print_what_stays(outcomes)
    return 0 if print_failures(outcomes) == 0 else 1


def add_purge_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command's options."""
    parser = commands.add_parser(
        "purge",
        usage="%(prog)s [options]",
        help="send the quarantine to the system's trash",
        description="Send the photos in the quarantine to the system's trash. clip-client undo cannot restore them "
        "from there. A photo stays in the quarantine if the photo that was kept instead is missing or changed. It also "
        "stays if an earlier version moved it and the kept photo is not proved to show all of it.",
    )
    parser.add_argument(
        "--run",
        dest="of_run",
        metavar="RUN",
        help="purge only the photos that one run moved; clip-client undo --list shows the runs",
    )
    parser.add_argument("--yes", action="store_true", help="do not ask for confirmation")
    add_json_option(parser, "the result")
    add_store_option(parser)


def run_purge(arguments: argparse.Namespace) -> int:
    """Print a summary, ask, and purge."""
    need("send2trash", extras="cli,dedup")
    from clip_client.dedup.actions.purge import purge
    from clip_client.dedup.compare.proofs import prove_again

    with opened_store(arguments.store) as store:
        entries = _quarantined(store.journal, arguments.of_run)
        # With --json -, standard output is only for the result, so the summary goes to standard error.
        notes = sys.stderr if arguments.json == STDOUT else sys.stdout
        size = human_bytes(_size_of(entries))
        print(f"{counted(len(entries), 'photo')} of {size} in the quarantine", file=notes)
        if not entries:
            write_json(arguments.json, _outcomes_json(()))
            return 0
        _print_folders(entries, notes)
        if not arguments.yes and not _agreed():
            print("nothing was changed", file=notes)
            return 0
        # Purge only these entries: another process may have moved more while the question was open.
        with progress_bars() as show:
            outcomes = purge(store.journal, prove=prove_again, only={entry.id for entry in entries}, on_progress=show)
    if not write_json(arguments.json, _outcomes_json(outcomes)):
        print(f"{counted(sum(outcome.done for outcome in outcomes), 'photo')} in the system's trash")
    return 0 if print_failures(outcomes) == 0 else 1


def _print_folders(entries: Sequence[JournalEntry], notes: TextIO) -> None:
    """Print the folders that the photos came from, the largest first."""
    folders: dict[str, list[JournalEntry]] = {}
    for entry in entries:
        folders.setdefault(os.path.dirname(entry.files[0].original), []).append(entry)
    by_size = sorted(folders.items(), key=lambda folder: (-_size_of(folder[1]), folder[0]))
    for folder, inside in by_size[:_MOST_FOLDERS]:
        print(
            f"  {printable(folder)}: {counted(len(inside), 'photo')} of {human_bytes(_size_of(inside))}",
            file=notes,
        )
    if len(by_size) > _MOST_FOLDERS:
        more = counted(len(by_size) - _MOST_FOLDERS, "folder")
        print(f"  and {more} more; to list all photos: clip-client undo --list", file=notes)


def _agreed() -> bool:
    if not sys.stdin.isatty():
        raise CommandFailed("standard input is not a terminal; use --yes to purge without confirmation")
    # The trash restores a file to its last folder, which is the quarantine.
    then = f"The trash restores them only into hidden {QUARANTINE_NAME} folders, and clip-client undo cannot"
    answer = input(f"Send them to the system's trash? {then}. [y/N] ")
    return answer.strip().lower() in ("y", "yes")


def _quarantined(journal: Journal, run: str | None) -> list[JournalEntry]:
    """Return the entries in the quarantine, of ``run`` or of all runs. Raises CommandFailed if ``run`` has none."""
    entries = journal.entries(IN_QUARANTINE, run=run)
    if not entries and run is not None:
        raise CommandFailed(f"no run {run!r} has photos in the quarantine; clip-client undo --list shows the runs")
    return entries


def _size_of(entries: Iterable[JournalEntry]) -> int:
    """Return the size of photos and their companions, which two photos may share."""
    return sum({file.quarantined: file.size_bytes for entry in entries for file in entry.files}.values())


def _as_json(entries: Sequence[JournalEntry], declared: Sequence[Choice]) -> dict[str, Any]:
    from clip_client.dedup.actions.quarantine import why_out_of_reach

    listed = [
        {
            "run": entry.run,
            "path": entry.files[0].original,
            "kept": entry.kept,
            "size_bytes": _size_of([entry]),
            "out_of_reach": why_out_of_reach(entry) or None,
        }
        for entry in entries
    ]
    decisions = [{"run": one.run, "what": one.what, "paths": [photo.path for photo in one.photos]} for one in declared]
    return {"entries": listed, "decisions": decisions}


def _print_list(entries: Sequence[JournalEntry], declared: Sequence[Choice], where: str) -> None:
    from clip_client.dedup.actions.quarantine import why_out_of_reach

    by_run: dict[str, list[JournalEntry]] = {}
    for entry in entries:
        by_run.setdefault(entry.run, []).append(entry)
    for name, of_run in by_run.items():
        moved = f"{counted(len(of_run), 'photo')}, {human_bytes(_size_of(of_run))}"
        print(f"{name}  {moved}; restore with: clip-client undo --run {name}{where}")
    if entries:
        print()
    for entry in entries:
        reach = f"  out of reach: {printable(why)}" if (why := why_out_of_reach(entry)) else ""
        print(f"{entry.run}  {printable(entry.files[0].original)}  kept: {printable(entry.kept)}{reach}")
    for choice in declared:
        print(f"{choice.run}  {choice.what}: {', '.join(printable(photo.path) for photo in choice.photos)}")
    if not entries and not declared:
        print(_EMPTY)


def _print_what_stays(outcomes: Sequence[Outcome]) -> None:
    """Print on standard error the sidecars that stay although their photos are restored."""
    from clip_client.dedup.actions.apply import RESTORED

    for outcome in outcomes:
        if outcome.done and outcome.message != RESTORED:
            print(f"{printable(outcome.path)}: {printable(outcome.message)}", file=sys.stderr)


def _outcomes_json(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """Return the number of successes, and the failures, as ``--json`` writes them."""
    failed = [{"path": outcome.path, "message": outcome.message} for outcome in outcomes if not outcome.done]
    return {"done": len(outcomes) - len(failed), "failed": failed}


def print_failures(outcomes: tuple[Outcome, ...]) -> int:
    """Print the failures and their reasons on standard error; return their number."""
    failures = [outcome for outcome in outcomes if not outcome.done]
    for outcome in failures:
        print(f"not done: {printable(outcome.path)}: {printable(outcome.message)}", file=sys.stderr)
    return len(failures)
