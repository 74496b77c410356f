"""``clip-client purge``: sends the quarantine to the system's trash."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from typing import Final, TextIO

from clip_client._files import printable
from clip_client.cli.errors import CommandFailed, need
from clip_client.cli.options.paths import add_store_option, opened_store
from clip_client.cli.output import STDOUT, add_output_options, progress_bars, write_json
from clip_client.cli.quarantine import outcomes_json, print_failures, quarantined, size_of
from clip_client.dedup.actions.purge import purge
from clip_client.dedup.compare.proofs import prove_again
from clip_client.dedup.store.journal import JournalEntry
from clip_client.dedup.text import counted, human_bytes
from clip_client.dedup.types import QUARANTINE_NAME

_MOST_FOLDERS: Final = 20


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
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
    add_output_options(parser, json="the result")
    add_store_option(parser)


def run(arguments: argparse.Namespace) -> int:
    need("send2trash", extras="cli,dedup")
    with opened_store(arguments.store, has_moves=True) as store:
        entries = quarantined(store.journal, arguments.of_run)
        # With --json -, standard output is only for the result, so the summary goes to standard error.
        notes = sys.stderr if arguments.json == STDOUT else sys.stdout
        holds = f"the quarantine holds {counted(len(entries), 'photo')} of {human_bytes(size_of(entries))}"
        print(holds if entries else "this store knows of no photo in a quarantine", file=notes)
        if not entries:
            write_json(arguments.json, outcomes_json(()))
            return 0
        _print_folders(entries, notes)
        if not arguments.yes and not _agreed():
            print("nothing was changed", file=notes)
            return 0
        # Purge only these entries: another process may have moved more while the question was open.
        with progress_bars() as show:
            outcomes = purge(store.journal, prove=prove_again, only={entry.id for entry in entries}, on_progress=show)
    if not write_json(arguments.json, outcomes_json(outcomes)):
        sent = sum(outcome.done for outcome in outcomes)
        freed = "; the space is free once the trash is emptied" if sent else ""
        print(f"{counted(sent, 'photo')} in the system's trash{freed}")
    return 0 if print_failures(outcomes) == 0 else 1


def _print_folders(entries: Sequence[JournalEntry], notes: TextIO) -> None:
    folders: dict[str, list[JournalEntry]] = {}
    for entry in entries:
        folders.setdefault(os.path.dirname(entry.files[0].original), []).append(entry)
    by_size = sorted(folders.items(), key=lambda folder: (-size_of(folder[1]), folder[0]))
    for folder, inside in by_size[:_MOST_FOLDERS]:
        print(f"  {printable(folder)}: {counted(len(inside), 'photo')} of {human_bytes(size_of(inside))}", file=notes)
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
