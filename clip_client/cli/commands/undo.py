"""``clip-client undo``: restores what ``dedup --apply`` moved."""

from __future__ import annotations

import argparse
import os
import shlex
import sqlite3
import sys
from collections.abc import Collection, Iterable, Iterator, Sequence, Set
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path, PurePath
from typing import Final

from clip_client._files import printable
from clip_client._storage.sqlite import StoreError
from clip_client.cli.errors import CommandFailed, CommandMisused
from clip_client.cli.options.paths import add_store_option, opened_store
from clip_client.cli.output import add_output_options, progress_bars, write_json
from clip_client.cli.quarantine import outcomes_json, print_failures, quarantined, size_of
from clip_client.dedup.actions.apply import Outcome, undo_from
from clip_client.dedup.actions.chosen_runs import declared_by, take_back
from clip_client.dedup.actions.manifest import manifest_entries, runs_near
from clip_client.dedup.actions.purge import suspects
from clip_client.dedup.actions.quarantine import why_out_of_reach
from clip_client.dedup.compare.proofs import prove_again
from clip_client.dedup.store.choices import Choice
from clip_client.dedup.store.journal import IN_QUARANTINE, Journal, JournalEntry, State
from clip_client.dedup.store.store import Store, default_directory, store_option
from clip_client.dedup.text import counted, human_bytes
from clip_client.dedup.types import QUARANTINE_NAME
from preprocess_ensemble.command_line import user_path

_UNKNOWN_TO_STORE: Final = (
    "this store knows of no photo in a quarantine; if another computer or a lost store moved them: clip-client undo "
    "--from FOLDER, the folder that was searched"
)
_NOT_NAMED: Final = "nothing in the quarantine belongs to this run or came from this path"
_UNKNOWN: Final = "Nothing in the quarantine came from this path; --list shows what is there."


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "undo",
        usage="%(prog)s [options] [PATH ...]",
        help="restore the photos that dedup --apply moved",
        description="Move photos from the quarantine back to where they were, with their timestamps. Without a PATH or "
        "--run, restore all of them.",
    )
    parser.add_argument(
        "paths",
        nargs="*",
        metavar="PATH",
        help="restore only the photo that was at this path, or those that were below this folder",
    )
    parser.add_argument(
        "--run",
        dest="of_run",
        metavar="RUN",
        help="undo only the moves and decisions of one run; --list shows the runs",
    )
    parser.add_argument(
        "--suspects", action="store_true", help="restore only photos that no remaining file is proved to show"
    )
    parser.add_argument(
        "--from",
        dest="from_folder",
        type=user_path,
        metavar="FOLDER",
        help=f"restore from {QUARANTINE_NAME} in FOLDER, the folder that was searched. This needs no store, so it also "
        "works on another computer, or after FOLDER was renamed",
    )
    parser.add_argument(
        "--list",
        "--dry-run",
        action="store_true",
        help="only list the photos in the quarantine and the decisions of runs",
    )
    add_output_options(parser, json="the result")
    add_store_option(parser)


def run(arguments: argparse.Namespace) -> int:
    if "" in arguments.paths:
        raise CommandMisused("a PATH is empty; . is the current folder")
    paths = dict.fromkeys(os.path.abspath(os.path.expanduser(path)) for path in arguments.paths)
    if arguments.suspects and paths:
        raise CommandMisused("--suspects chooses the photos itself; leave out the PATH")
    of_run = arguments.of_run
    if arguments.from_folder is not None:
        return _run_from(arguments, paths)
    with opened_store(arguments.store, has_moves=True) as store:
        declared = [] if arguments.suspects else declared_by(store, of_run)
        entries = store.journal.entries(IN_QUARANTINE, run=of_run) if declared else quarantined(store.journal, of_run)
        if arguments.suspects:
            with progress_bars() as show:
                entries = suspects(store.journal, prove=prove_again, run=of_run, on_progress=show)
            if not (entries or arguments.json):
                print("for each photo in the quarantine, a remaining photo is proved to show the same picture")
                return 0
        unknown: list[Outcome] = []
        if paths:
            entries, unknown = _from_paths(entries, paths)
            known_runs = store.journal.runs().keys()
            unknown = [_with_other_store(one, known_runs) for one in unknown]
            declared = [one for one in declared if any(_at_or_above(photo.path, paths) for photo in one.photos)]
        only = {entry.id for entry in entries} if arguments.suspects or paths else None
        if arguments.list:
            others = dict.fromkeys(one.message for one in unknown if one.message != _UNKNOWN)
            nothing = "\n".join(others) or (_NOT_NAMED if paths else _UNKNOWN_TO_STORE)
            return _list(arguments, entries, declared, store_option(store.journal.directory), nothing)
        outcomes, decisions = take_back(store, run=of_run, only=only)
        still_hold = 0 if of_run or only is not None else len(declared_by(store, None))
        runs = set() if only is not None else {entry.run for entry in entries}
        purged = sum(len(store.journal.entries((State.PURGED,), run=run)) for run in runs)
    return _print_result(
        arguments,
        (*outcomes, *unknown),
        nothing=_UNKNOWN_TO_STORE,
        decisions=decisions,
        still_hold=still_hold,
        purged=purged,
    )


def _run_from(arguments: argparse.Namespace, paths: Collection[str]) -> int:
    if arguments.suspects:
        raise CommandMisused("--suspects needs the store that moved the photos; leave out --from")
    folder = os.path.abspath(arguments.from_folder)
    if os.path.basename(folder) == QUARANTINE_NAME:
        folder = os.path.dirname(folder)
    if QUARANTINE_NAME in PurePath(folder).parts:
        raise CommandMisused(f"--from takes the folder that has {QUARANTINE_NAME}, and no folder in it")
    place = os.path.join(folder, QUARANTINE_NAME)
    is_all = not paths and arguments.of_run is None
    nothing = "there is nothing in the quarantine to restore" if is_all else _NOT_NAMED
    if not os.path.lexists(place):
        if near := runs_near(folder):
            raise CommandFailed(f"there is no quarantine in {printable(folder)}; did you mean: {_undo_from(near)}")
        nothing = f"{printable(place)} is not there: all is restored, or another folder has the quarantine"
    unknown: list[Outcome] = []
    try:
        entries = [entry for entry in manifest_entries(folder) if arguments.of_run in (None, entry.run)]
        if paths:
            entries, unknown = _from_paths(entries, paths)
        if arguments.list:
            return _list(arguments, entries, [], f" --from {shlex.quote(folder)}", nothing)
        with _journal_of(arguments.store, {entry.run for entry in entries}) as journal:
            outcomes = undo_from(folder, only=None if is_all else {entry.id for entry in entries}, journal=journal)
    except OSError as error:
        raise CommandFailed(
            f"{printable(place)} cannot be read: {error.strerror}; name the folder that has the quarantine"
        ) from None
    return _print_result(arguments, (*outcomes, *unknown), nothing=nothing)


@contextmanager
def _journal_of(store: Path | None, runs: Set[str]) -> Iterator[Journal | None]:
    """Yield the journal of the store, locked, if it has one of ``runs``; None if not, or if there is no store."""
    folder, journal = store or default_directory(), None
    with ExitStack() as held:
        with suppress(StoreError, sqlite3.Error):  # it may be damaged, and the manifests are enough
            if os.path.isfile(folder / "history.sqlite"):
                found = held.enter_context(Store(folder)).journal
                journal = None if runs.isdisjoint(found.runs()) else found
        if journal is not None:
            held.enter_context(journal.exclusive())
        yield journal


def _from_paths(entries: Sequence[JournalEntry], paths: Collection[str]) -> tuple[list[JournalEntry], list[Outcome]]:
    found, known = [], set[str]()
    for entry in entries:
        if named := {path for file in entry.files for path in _at_or_above(file.original, paths)}:
            found.append(entry)
            known |= named
    return found, [Outcome(path=path, done=False, message=_UNKNOWN) for path in paths if path not in known]


def _with_other_store(failure: Outcome, known_runs: Set[str]) -> Outcome:
    others = [folder for folder, runs in runs_near(failure.path).items() if not runs <= known_runs]
    if not others:
        return failure
    found = "Nothing in the quarantine of this store came from this path; there is a quarantine of another store:"
    return replace(failure, message=f"{found} {_undo_from(others)}")


def _undo_from(folders: Iterable[str]) -> str:
    return ", or: ".join(f"clip-client undo --from {printable(shlex.quote(folder))}" for folder in folders)


def _at_or_above(path: str, paths: Collection[str]) -> set[str]:
    return {one for one in (path, *map(str, PurePath(path).parents)) if one in paths}


def _print_result(
    arguments: argparse.Namespace,
    outcomes: tuple[Outcome, ...],
    *,
    decisions: int = 0,
    still_hold: int = 0,
    purged: int = 0,
    nothing: str,
) -> int:
    if not write_json(arguments.json, outcomes_json(outcomes)):
        if outcomes:
            back = sum(outcome.was_back for outcome in outcomes)
            already = f"; {counted(back, 'photo')} {'was' if back == 1 else 'were'} back already" if back else ""
            print(f"{counted(sum(outcome.done for outcome in outcomes) - back, 'photo')} restored{already}")
        if decisions:
            print(f"{counted(decisions, 'decision')} undone")
        elif not outcomes and not purged:
            print(nothing)
        if purged:
            print(f"{counted(purged, 'photo')} of the same runs went to the system's trash, where undo does not look")
        if still_hold:
            apply = "applies" if still_hold == 1 else "apply"
            print(f"{counted(still_hold, 'decision')} of these runs still {apply}; clip-client undo --list shows them")
    for outcome in outcomes:
        if outcome.left_behind:
            print(f"{printable(outcome.path)}: {printable(outcome.message)}", file=sys.stderr)
    return 0 if print_failures(outcomes) == 0 else 1


def _list(
    arguments: argparse.Namespace, entries: Sequence[JournalEntry], declared: Sequence[Choice], where: str, nothing: str
) -> int:
    listed = [
        {
            "run": entry.run,
            "path": entry.files[0].original,
            "kept": entry.kept,
            "size_bytes": size_of([entry]),
            "out_of_reach": why_out_of_reach(entry) or None,
        }
        for entry in entries
    ]
    listed_decisions = [
        {"run": one.run, "what": one.what, "paths": [photo.path for photo in one.photos]} for one in declared
    ]
    if write_json(arguments.json, {"entries": listed, "decisions": listed_decisions}):
        return 0
    for name in sorted({entry.run for entry in entries} | {choice.run for choice in declared}):
        moved = [entry for entry in entries if entry.run == name]
        decided = [choice for choice in declared if choice.run == name]
        photos = f"{counted(len(moved), 'photo')}, {human_bytes(size_of(moved))}" if moved else ""
        decisions = counted(len(decided), "decision") if decided else ""
        what, verb = "; ".join(filter(None, (photos, decisions))), "restore" if moved else "undo"
        print(f"{name}  {what}; {verb} with: clip-client undo --run {name}{where}")
    if entries or declared:
        print()
    for entry in entries:
        reach = f"  out of reach: {printable(why)}" if (why := why_out_of_reach(entry)) else ""
        print(f"{entry.run}  {printable(entry.files[0].original)}  kept: {printable(entry.kept)}{reach}")
    for choice in declared:
        print(f"{choice.run}  {choice.what}: {', '.join(printable(photo.path) for photo in choice.photos)}")
    if not entries and not declared:
        print(nothing)
    return 0
