"""``clip-client undo``: restore what ``dedup --apply`` moved."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from clip_client.cli.errors import CommandFailed
from clip_client.cli.options.store import add_store_option, opened_store
from clip_client.dedup.store.journal import IN_QUARANTINE, Journal
from clip_client.dedup.text import counted, printable

if TYPE_CHECKING:
    from clip_client.dedup.actions.apply import Outcome


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command's options."""
    parser = commands.add_parser(
        "undo",
        help="restore what dedup --apply moved",
        description="Move photos from the quarantine back to where they were, with their old times. Without a PATH or "
        "--run, restore all of them.",
    )
    parser.add_argument("paths", nargs="*", metavar="PATH", help="restore only the photo that was at this path")
    parser.add_argument(
        "--run", dest="of_run", metavar="RUN", help="restore only what one run moved; --list shows the runs"
    )
    parser.add_argument("--list", action="store_true", help="list what is in the quarantine, and restore nothing")
    add_store_option(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Restore, and print what could not be restored."""
    from clip_client.dedup.actions.apply import undo, why_out_of_reach

    with opened_store(arguments.store) as store:
        if arguments.list:
            wanted = set(map(os.path.abspath, arguments.paths))
            for entry in store.journal.entries(IN_QUARANTINE, run=arguments.of_run):
                if wanted and wanted.isdisjoint(file.original for file in entry.files):
                    continue
                reach = f"  out of reach: {printable(why)}" if (why := why_out_of_reach(entry)) else ""
                print(f"{entry.run}  {printable(entry.files[0].original)}  kept: {printable(entry.kept)}{reach}")
            return 0
        # Before undo: a companion is restored with its photo, and the outcome names only the photo.
        unknown = _unknown(arguments.paths, store.journal, arguments.of_run)
        outcomes = undo(store.journal, run=arguments.of_run, paths=arguments.paths or None) + unknown
    if not outcomes and arguments.of_run is not None:
        raise CommandFailed(
            f"nothing in the quarantine was moved by a run {arguments.of_run!r}; clip-client undo --list shows the runs"
        )
    done = sum(outcome.done for outcome in outcomes)
    print(f"{counted(done, 'photo')} restored")
    return 0 if print_failures(outcomes) == 0 else 1


def _unknown(paths: Sequence[str], journal: Journal, run: str | None) -> tuple[Outcome, ...]:
    """Return a failure for each given path from which nothing was moved."""
    from clip_client.dedup.actions.apply import Outcome

    message = "Nothing in the quarantine came from this path; see clip-client undo --list."
    return tuple(
        Outcome(path=path, done=False, message=message)
        for path in paths
        if not journal.entries(IN_QUARANTINE, run=run, original=os.path.abspath(path))
    )


def print_failures(outcomes: tuple[Outcome, ...]) -> int:
    """Print on standard error what failed and why; return the number of failures."""
    failures = [outcome for outcome in outcomes if not outcome.done]
    for outcome in failures:
        print(f"not done: {printable(outcome.path)}: {printable(outcome.message)}", file=sys.stderr)
    return len(failures)
