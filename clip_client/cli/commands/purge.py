"""``clip-client purge``: from the quarantine to the system's trash."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Final

from clip_client.cli.commands.undo import print_failures
from clip_client.cli.errors import CommandFailed, need
from clip_client.cli.options.store import add_store_option, opened_store

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from clip_client.dedup.store.journal import JournalEntry

_MOST_FOLDERS: Final = 20


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
    from clip_client.dedup.actions.purge import purge
    from clip_client.dedup.store.journal import IN_QUARANTINE
    from clip_client.dedup.text import counted, human_bytes

    with opened_store(arguments.store) as store:
        entries = store.journal.entries(IN_QUARANTINE, run=arguments.of_run)
        if not entries and arguments.of_run is not None:
            raise CommandFailed(
                f"nothing in the quarantine was moved by a run {arguments.of_run!r}; "
                "clip-client undo --list names the runs"
            )
        print(f"{counted(len(entries), 'photo')} of {human_bytes(sum(map(_size, entries)))} in the quarantine")
        if not entries:
            return 0
        _print_folders(entries)
        if not arguments.yes and not _agreed():
            print("nothing was changed")
            return 0
        # No others: a search in another window may have moved more while the question waited.
        outcomes = purge(store.journal, only={entry.id for entry in entries})
    print(f"{counted(sum(outcome.done for outcome in outcomes), 'photo')} in the system's trash")
    return 0 if print_failures(outcomes) == 0 else 1


def _print_folders(entries: Sequence[JournalEntry]) -> None:
    """Say which folders the photos came from, those with most to lose first."""
    from clip_client.dedup.text import counted, human_bytes, printable

    folders: dict[str, list[JournalEntry]] = {}
    for entry in entries:
        folders.setdefault(os.path.dirname(entry.files[0].original), []).append(entry)
    by_size = sorted(folders.items(), key=lambda folder: (-sum(map(_size, folder[1])), folder[0]))
    for folder, inside in by_size[:_MOST_FOLDERS]:
        print(f"  {printable(folder)}: {counted(len(inside), 'photo')} of {human_bytes(sum(map(_size, inside)))}")
    if len(by_size) > _MOST_FOLDERS:
        print(f"  and {counted(len(by_size) - _MOST_FOLDERS, 'folder')} more; all photos: clip-client undo --list")


def _size(entry: JournalEntry) -> int:
    """Return the size of a photo and what belongs to it."""
    return sum(file.size_bytes for file in entry.files)


def _agreed() -> bool:
    if not sys.stdin.isatty():
        raise CommandFailed("nobody is there to agree; say --yes to purge without a question")
    return input("Send them to the system's trash, where undo does not reach? [y/N] ").strip().lower() in ("y", "yes")
