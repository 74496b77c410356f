"""``clip-client undo``: bring back what ``dedup --apply`` moved."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from clip_client.cli.errors import CommandFailed
from clip_client.cli.options.store import add_store_option, opened_store

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from clip_client.dedup.actions.apply import Outcome
    from clip_client.dedup.store.journal import Journal


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command's options."""
    parser = commands.add_parser(
        "undo",
        help="bring back what dedup --apply moved",
        description="Bring photos back from the quarantine to where they were, with the times that they had. "
        "Without a PATH or --run all come back.",
    )
    parser.add_argument("paths", nargs="*", metavar="PATH", help="where a photo was; only these come back")
    parser.add_argument("--run", dest="of_run", metavar="RUN", help="only what one run moved; --list names the runs")
    parser.add_argument("--list", action="store_true", help="only list what lies in the quarantine")
    add_store_option(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Bring back, and say what did not come."""
    from clip_client.dedup.actions.apply import undo, why_out_of_reach
    from clip_client.dedup.store.journal import IN_QUARANTINE
    from clip_client.dedup.text import counted, printable

    with opened_store(arguments.store) as store:
        if arguments.list:
            wanted = set(map(os.path.abspath, arguments.paths))
            for entry in store.journal.entries(IN_QUARANTINE, run=arguments.of_run):
                if wanted and wanted.isdisjoint(file.original for file in entry.files):
                    continue
                reach = f"  out of reach: {printable(why)}" if (why := why_out_of_reach(entry)) else ""
                print(f"{entry.run}  {printable(entry.files[0].original)}  kept: {printable(entry.kept)}{reach}")
            return 0
        # Asked before: what belongs to a photo comes back with it, and is told by the name of the photo.
        unknown = _unknown(arguments.paths, store.journal, arguments.of_run)
        outcomes = undo(store.journal, run=arguments.of_run, paths=arguments.paths or None) + unknown
    if not outcomes and arguments.of_run is not None:
        raise CommandFailed(
            f"nothing in the quarantine was moved by a run {arguments.of_run!r}; clip-client undo --list names the runs"
        )
    done = sum(outcome.done for outcome in outcomes)
    print(f"{counted(done, 'photo')} back in place")
    return 0 if print_failures(outcomes) == 0 else 1


def _unknown(paths: Sequence[str], journal: Journal, run: str | None) -> tuple[Outcome, ...]:
    """Return a failure for each path that was named and from which nothing was moved."""
    from clip_client.dedup.actions.apply import Outcome
    from clip_client.dedup.store.journal import IN_QUARANTINE

    message = "Nothing in the quarantine came from there; clip-client undo --list tells what did."
    return tuple(
        Outcome(path=path, done=False, message=message)
        for path in paths
        if not journal.entries(IN_QUARANTINE, run=run, original=os.path.abspath(path))
    )


def print_failures(outcomes: tuple[Outcome, ...]) -> int:
    """Say on standard error what was not done, and why; return how many those are."""
    from clip_client.dedup.text import printable

    failures = [outcome for outcome in outcomes if not outcome.done]
    for outcome in failures:
        print(f"left: {printable(outcome.path)}: {printable(outcome.message)}", file=sys.stderr)
    return len(failures)
