"""``clip-client purge``: from the quarantine to the system's trash."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from clip_client.cli.failure import CommandFailed, need
from clip_client.cli.store_options import add_store_option, opened_store
from clip_client.cli.undo_command import print_failures

if TYPE_CHECKING:
    import argparse


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command's options."""
    parser = commands.add_parser(
        "purge",
        help="send the quarantine to the system's trash",
        description="Send what lies in the quarantine to the system's trash. Undo cannot bring it back from there. "
        "A photo stays where the one that was kept instead is no longer as it was.",
    )
    parser.add_argument("--run", dest="of_run", metavar="RUN", help="only what one run moved")
    parser.add_argument("--yes", action="store_true", help="do not ask")
    add_store_option(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Sum up, ask, and send."""
    need("send2trash", extra="dedup")
    from clip_client.dedup.journal import IN_QUARANTINE
    from clip_client.dedup.purge import purge
    from clip_client.dedup.table import counted, human_bytes

    with opened_store(arguments.store) as store:
        units = store.journal.units(IN_QUARANTINE, run=arguments.of_run)
        size = sum(file.size_bytes for unit in units for file in unit.files)
        print(f"{counted(len(units), 'photo')} of {human_bytes(size)} in the quarantine")
        if not units:
            return 0
        if not arguments.yes and not _agreed():
            print("nothing was changed")
            return 0
        outcomes = purge(store.journal, run=arguments.of_run)
    print(f"{counted(sum(outcome.done for outcome in outcomes), 'photo')} in the system's trash")
    return 0 if print_failures(outcomes) == 0 else 1


def _agreed() -> bool:
    if not sys.stdin.isatty():
        raise CommandFailed("nobody is there to agree; say --yes to purge without a question")
    return input("Send them to the system's trash, where undo does not reach? [y/N] ").strip().lower() in ("y", "yes")
