"""``clip-client undo``: restore what ``dedup --apply`` moved."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from clip_client.cli.errors import CommandFailed, CommandMisused
from clip_client.cli.options.store import add_store_option, opened_store
from clip_client.cli.output.progress import progress_bars
from clip_client.dedup.store.journal import IN_QUARANTINE, Journal, JournalEntry
from clip_client.dedup.text import counted, human_bytes, printable

if TYPE_CHECKING:
    from clip_client.dedup.actions.apply import Outcome
    from clip_client.dedup.store.choices import Choice

_EMPTY: Final = "there is nothing in the quarantine to restore"
_NO_SUSPECT: Final = "for each photo in the quarantine, a photo is left that is proved to show the same"


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command's options."""
    parser = commands.add_parser(
        "undo",
        usage="%(prog)s [options] [PATH ...]",
        help="restore what dedup --apply moved",
        description="Move photos from the quarantine back to where they were, with their old times. Without a PATH or "
        "--run, restore all of them.",
    )
    parser.add_argument("paths", nargs="*", metavar="PATH", help="restore only the photo that was at this path")
    parser.add_argument(
        "--run",
        dest="of_run",
        metavar="RUN",
        help="take back only what one run moved and decided; --list shows the runs",
    )
    parser.add_argument(
        "--suspects",
        action="store_true",
        help="restore only the photos of which no photo is left that is proved to show the same, such as some that an "
        "earlier version moved",
    )
    parser.add_argument(
        "--list", action="store_true", help="list what is in the quarantine and what runs decided, and restore nothing"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    add_store_option(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Restore, and print what could not be restored."""
    from clip_client.dedup.actions.chosen_runs import declared_by, take_back
    from clip_client.dedup.actions.purge import suspects
    from clip_client.dedup.proving_again import prove_again

    paths = [os.path.abspath(os.path.expanduser(path)) for path in arguments.paths]
    if arguments.suspects and paths:
        raise CommandMisused("--suspects chooses the photos itself; leave out the PATH")
    of_run = arguments.of_run
    with opened_store(arguments.store) as store:
        declared = [] if arguments.suspects else declared_by(store, of_run)
        entries = store.journal.entries(IN_QUARANTINE, run=of_run) if declared else quarantined(store.journal, of_run)
        only = None
        if arguments.suspects:
            with progress_bars() as show:
                entries = suspects(store.journal, prove=prove_again, run=of_run, on_progress=show)
            only = {entry.id for entry in entries}
            if not (entries or arguments.json):
                print(_NO_SUSPECT)
                return 0
        if arguments.list:
            wanted = set(paths)
            if wanted:
                entries = [one for one in entries if not wanted.isdisjoint(file.original for file in one.files)]
                declared = [one for one in declared if not wanted.isdisjoint(photo.path for photo in one.photos)]
            _print_list(entries, declared, as_json=arguments.json)
            return 0
        # Before undo: a companion is restored with its photo, and the outcome names only the photo.
        unknown = _unknown(paths, store.journal, of_run)
        taken_back = take_back(store, run=of_run, paths=paths or None, only=only)
    outcomes = taken_back.outcomes + unknown
    done = sum(outcome.done for outcome in outcomes)
    if arguments.json:
        print(outcomes_json(outcomes))
    elif outcomes:
        print(f"{counted(done, 'photo')} restored")
    elif not taken_back.decisions:
        print(_EMPTY)
    if taken_back.decisions and not arguments.json:
        print(f"{counted(taken_back.decisions, 'decision')} taken back")
    return 0 if print_failures(outcomes) == 0 else 1


def quarantined(journal: Journal, run: str | None) -> list[JournalEntry]:
    """Return what is in the quarantine, or what ``run`` moved there. Raises CommandFailed if that is nothing."""
    entries = journal.entries(IN_QUARANTINE, run=run)
    if not entries and run is not None:
        raise CommandFailed(
            f"nothing in the quarantine was moved by a run {run!r}; clip-client undo --list shows the runs"
        )
    return entries


def _print_list(entries: Sequence[JournalEntry], declared: Sequence[Choice], *, as_json: bool) -> None:
    from clip_client.dedup.actions.quarantine import why_out_of_reach

    if as_json:
        listed = [
            {
                "run": entry.run,
                "path": entry.files[0].original,
                "kept": entry.kept,
                "size_bytes": sum(file.size_bytes for file in entry.files),
                "out_of_reach": why_out_of_reach(entry) or None,
            }
            for entry in entries
        ]
        decisions = [
            {"run": one.run, "what": one.what, "paths": [photo.path for photo in one.photos]} for one in declared
        ]
        print(json.dumps({"entries": listed, "decisions": decisions}, indent=2))
        return
    by_run: dict[str, list[JournalEntry]] = {}
    for entry in entries:
        by_run.setdefault(entry.run, []).append(entry)
    for name, of_run in by_run.items():
        size = human_bytes(sum(file.size_bytes for entry in of_run for file in entry.files))
        print(f"{name}  {counted(len(of_run), 'photo')}, {size}; restore with: clip-client undo --run {name}")
    if entries:
        print()
    for entry in entries:
        reach = f"  out of reach: {printable(why)}" if (why := why_out_of_reach(entry)) else ""
        print(f"{entry.run}  {printable(entry.files[0].original)}  kept: {printable(entry.kept)}{reach}")
    for choice in declared:
        print(f"{choice.run}  {choice.what}: {', '.join(printable(photo.path) for photo in choice.photos)}")
    if not entries and not declared:
        print(_EMPTY)


def _unknown(paths: Sequence[str], journal: Journal, run: str | None) -> tuple[Outcome, ...]:
    """Return a failure for each absolute path from which nothing was moved."""
    from clip_client.dedup.actions.apply import Outcome

    message = "Nothing in the quarantine came from this path; see clip-client undo --list."
    return tuple(
        Outcome(path=path, done=False, message=message)
        for path in paths
        if not journal.entries(IN_QUARANTINE, run=run, original=path)
    )


def outcomes_json(outcomes: Sequence[Outcome]) -> str:
    """Return what was and what could not be done, as ``--json`` prints it."""
    failed = [{"path": outcome.path, "message": outcome.message} for outcome in outcomes if not outcome.done]
    return json.dumps({"done": len(outcomes) - len(failed), "failed": failed}, indent=2)


def print_failures(outcomes: tuple[Outcome, ...]) -> int:
    """Print on standard error what failed and why; return the number of failures."""
    failures = [outcome for outcome in outcomes if not outcome.done]
    for outcome in failures:
        print(f"not done: {printable(outcome.path)}: {printable(outcome.message)}", file=sys.stderr)
    return len(failures)
