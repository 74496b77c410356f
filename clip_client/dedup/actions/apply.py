"""Moves duplicates into the quarantine and back. A process may be killed at any step; the next one recovers."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import PurePath
from types import MappingProxyType
from typing import Final

from clip_client._files import FailedFile, stored_ns
from clip_client._storage.sqlite import StoreError
from clip_client.dedup.actions.manifest import add_to_manifest, manifest_entries
from clip_client.dedup.actions.plan import Move, Plan
from clip_client.dedup.actions.quarantine import (
    MANIFEST,
    check_old_path,
    folders_now,
    give_back_times,
    is_copy,
    may_be_quarantined,
    quarantine,
    remove_empty_folders,
    remove_folder,
    restore,
    sentence,
    why_out_of_reach,
)
from clip_client.dedup.actions.sidecars import check_sidecars, remaining_sidecars, remove_sidecars, write_sidecars
from clip_client.dedup.files.directories import is_same_file
from clip_client.dedup.files.reading import has_sha256, hash_file
from clip_client.dedup.judge.movable import CannotMove, quarantined_path
from clip_client.dedup.judge.verdicts import another_companion
from clip_client.dedup.store.contents import FileIndex
from clip_client.dedup.store.journal import HARDLINK, IN_QUARANTINE, Journal, JournalEntry, MovedFile, State
from clip_client.dedup.store.store import store_option
from clip_client.dedup.types import QUARANTINE_NAME

_UNNAMED: Final = "No manifest names it; move it back by hand: its path in the folder of the run is its old path."


@dataclass(frozen=True, kw_only=True)
class Outcome:
    path: str
    done: bool
    message: str
    was_back: bool = False
    """True if the photo was at its old path already."""
    left_behind: str = ""
    """Sentence of the message about sidecars that stay, although the photo is back."""


def apply(
    plan: Plan,
    journal: Journal,
    *,
    run: str | None = None,
    files: FileIndex | None = None,
    choices: Mapping[str, int] = MappingProxyType({}),
    on_progress: Callable[[str, int, int], None] | None = None,
) -> tuple[Outcome, ...]:
    """Carry out ``plan``; return one outcome for each of its moves, in their order.

    ``files`` forgets the files of a move that fails, so that the next search reads them again. ``choices`` maps the
    absolute path of a photo to the id of the choice that moves it, if that still waits. Raises StoreError if another
    process moves files with this journal, or if the journal cannot be written.
    """
    outcomes: list[Outcome] = []
    with journal.exclusive():
        recover(journal)
        run = run or journal.new_run()
        for done, move in enumerate(plan.moves, start=1):
            try:
                outcome = _move(move, journal, run=run, choice=choices.get(os.path.abspath(move.duplicate.path)))
            except (OSError, CannotMove) as error:
                outcome = Outcome(path=move.duplicate.path, done=False, message=sentence(error))
                if files is not None:
                    beside = [one.path for one in (*move.companions, *move.kept.companions)]
                    files.forget([move.duplicate.path, move.kept.path, *beside])
            except StoreError as error:
                moved = sum(outcome.done for outcome in outcomes)
                raise StoreError(
                    f"{error}; {moved} of {len(plan.moves)} photos were moved before that; restore with: "
                    f"clip-client undo{store_option(journal.directory)}"
                ) from error
            outcomes.append(outcome)
            if on_progress is not None:
                on_progress("moving", done, len(plan.moves))
    return tuple(outcomes)


def undo(journal: Journal, *, only: Collection[int] | None = None) -> tuple[Outcome, ...]:
    """Restore everything in the quarantine, or only the entries with the ids in ``only``; the newest first.

    Entries that a killed process was moving or restoring are restored in any case. Raises StoreError if another process
    moves files with this journal.
    """
    with journal.exclusive():
        recovered = recover(journal)
        entries = journal.entries(IN_QUARANTINE)
        undone = (_undo(entry, journal) for entry in reversed(entries) if only is None or entry.id in only)
        return (*recovered, *undone)


def undo_from(
    folder: str, *, only: Collection[int] | None = None, journal: Journal | None = None
) -> tuple[Outcome, ...]:
    """Restore what the quarantine of ``folder`` holds, as its manifests say; another computer may have moved it.

    ``only`` holds the ids of :func:`~.manifest.manifest_entries`; None also reports the files that no manifest names.
    Entries of ``journal`` about the same moves become restored; the caller holds :meth:`Journal.exclusive`. Sidecars
    that save metadata stay. A killed call can be repeated. Raises OSError if the quarantine cannot be read.
    """
    outcomes = []
    folder = os.path.abspath(folder)
    entries = manifest_entries(folder)
    known = {_as_moved(one): one for one in journal.entries(IN_QUARANTINE)} if journal else {}
    for entry in reversed(entries):
        if only is not None and entry.id not in only:
            continue
        was_there, around = may_be_quarantined(entry), folders_now(entry.files, ())
        problems = _bring_back(entry) if was_there else []
        own = known.get(_as_moved(entry))
        # A quarantine that is still at the old path holds other files: this folder is a copy.
        if journal and own and not problems and (was_there or _is_back(entry)) and not may_be_quarantined(own):
            # Before the manifest goes: after a kill, the next call needs its line.
            journal.set_state(own, State.ABANDONED if own.state == State.PLANNED else State.RESTORED)
        remove_empty_folders(entry)
        give_back_times(around)
        if problems:
            outcomes.append(Outcome(path=entry.files[0].original, done=False, message=problems[0]))
        elif was_there:
            stay = ", ".join(one.path for one in entry.sidecars if one.is_ours)
            outcomes.append(_restored(entry, f"The sidecar with its metadata stays: {stay}." if stay else ""))
    named = {file.quarantined for entry in entries for file in entry.files}
    for above, _, names in os.walk(os.path.join(folder, QUARANTINE_NAME), topdown=False):
        paths = (os.path.join(above, name) for name in names if name != MANIFEST and only is None)
        outcomes += [Outcome(path=path, done=False, message=_UNNAMED) for path in paths if path not in named]
        with suppress(OSError):  # it is not empty
            remove_folder(PurePath(above))
    return tuple(outcomes)


def _as_moved(entry: JournalEntry) -> tuple[object, ...]:
    """Return what a manifest and the journal say alike about a move, wherever the quarantine is now."""
    photo = entry.files[0]
    return entry.at_ns, photo.quarantined.rpartition(f"{os.sep}{QUARANTINE_NAME}{os.sep}")[2], *photo[2:]


def recover(journal: Journal) -> tuple[Outcome, ...]:
    """Settle what killed processes left unfinished; return the photos that this brought back.

    A move is reverted and an undo is completed. A purge counts as done if its photo has left the quarantine, else as
    not begun. Photos on disks that are not connected wait. The caller holds :meth:`Journal.exclusive`.
    """
    outcomes = []
    for entry in journal.entries((State.PLANNED, State.RESTORING, State.PURGING)):
        if why_out_of_reach(entry):
            continue
        if entry.state == State.PURGING:
            is_there_still = may_be_quarantined(entry)
            if not is_there_still:
                remove_empty_folders(entry)
                give_back_times(entry.folders)
            journal.set_state(entry, State.MOVED if is_there_still else State.PURGED)
        else:
            was_there = may_be_quarantined(entry)
            at_end = State.ABANDONED if entry.state == State.PLANNED else State.RESTORED
            if not _restore_files(entry, journal, at_end=at_end) and was_there:
                outcomes.append(_restored(entry))
    return tuple(outcomes)


def _move(move: Move, journal: Journal, *, run: str, choice: int | None) -> Outcome:
    duplicate, kept = move.duplicate, move.kept
    path, kept_path = os.path.abspath(duplicate.path), os.path.abspath(kept.path)
    # A companion that belongs to several photos moves with the last of these photos.
    along = [one for one in move.companions if not any(map(os.path.lexists, one.others))]
    left_behind = [os.path.abspath(one.path) for one in move.companions if one not in along]
    names = (path, *(os.path.abspath(companion.path) for companion in along))
    files = [_record_file(name, move, run) for name in names]
    if files[0].sha256 != duplicate.sha256:
        raise CannotMove("It has changed since it was compared.")
    kept_version = _version(kept_path)
    if kept_version is None or not has_sha256(kept_path, kept.sha256):
        raise CannotMove("The kept photo has changed or can no longer be read.")
    if is_same_file(kept_path, path):
        raise CannotMove("It is the kept photo itself under another name.")
    for companion, file in zip(along, files[1:], strict=True):
        if not any(is_copy(other.path, file) for other in kept.companions if other.kind == companion.kind):
            raise CannotMove(another_companion(companion.kind))
    sidecars = check_sidecars(move.sidecars, journal)
    with journal.transaction():
        if choice is not None and not journal.choices.may_move(choice, run):
            raise CannotMove("Its choice was undone.")
        facts = JournalEntry(
            run=run,
            kept=kept_path,
            kept_sha256=kept.sha256,
            tier=move.tier,
            is_chosen=move.is_chosen,
            choice=choice,
            files=tuple(files),
            sidecars=sidecars,
            folders=folders_now(files, sidecars),
        )
        entry = journal.plan(facts, left_behind)
    try:
        write_sidecars(move.sidecars, entry)
        add_to_manifest(entry)
        for file in files:
            quarantine(file, entry.folders)
            status = os.lstat(file.quarantined)
            if (status.st_size, stored_ns(status.st_mtime_ns)) != (file.size_bytes, file.mtime_ns):
                raise CannotMove("It changed during the move, and is back.")
        # A search with another store may move the kept photo at the same time: the process that moves last notices.
        if _version(kept_path) != kept_version:
            raise CannotMove("The kept photo disappeared or changed during the move, so its copy is back.")
    except (OSError, CannotMove) as error:
        _restore_files(entry, journal, at_end=State.ABANDONED)
        raise CannotMove(sentence(error)) from error
    give_back_times(entry.folders)
    journal.set_state(entry, State.MOVED)
    return Outcome(path=duplicate.path, done=True, message=f"Moved to {files[0].quarantined}.")


def _record_file(path: str, move: Move, run: str) -> MovedFile:
    """Record a file as it is. Its times are read first, because hashing changes the access time."""
    status = os.lstat(path)
    if not stat.S_ISREG(status.st_mode):
        raise CannotMove("It is no longer a regular file.")
    found = hash_file(path)
    if isinstance(found, FailedFile) and found.code != "EMPTY":
        raise CannotMove(found.message)
    return MovedFile(
        original=path,
        quarantined=quarantined_path(move.folder, run, path),
        # A sidecar may be empty; an empty photo is never compared.
        sha256="" if isinstance(found, FailedFile) else found[1],
        size_bytes=status.st_size,
        atime_ns=stored_ns(status.st_atime_ns),
        mtime_ns=stored_ns(status.st_mtime_ns),
    )


def _version(path: str) -> tuple[int, ...] | None:
    """Return numbers that change if a file is replaced or written to; None if there is no file."""
    with suppress(OSError):
        status = os.stat(path)
        return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns
    return None


def _undo(entry: JournalEntry, journal: Journal) -> Outcome:
    was_there = may_be_quarantined(entry)
    problem = why_out_of_reach(entry)
    if not problem:
        entry = journal.set_state(entry, State.RESTORING, folders_now(entry.files, entry.sidecars))
        problem = _restore_files(entry, journal, at_end=State.RESTORED)
    if not (problem or was_there or _is_back(entry)):
        problem = "It was no longer in the quarantine, and another file has its name."
    if problem:
        return Outcome(path=entry.files[0].original, done=False, message=problem)
    return _restored(entry, remaining_sidecars(entry, journal), was_back=not was_there)


def _restored(entry: JournalEntry, left_behind: str = "", *, was_back: bool = False) -> Outcome:
    message = f"{'It was back already.' if was_back else 'Restored.'} {left_behind}".rstrip()
    return Outcome(path=entry.files[0].original, done=True, message=message, was_back=was_back, left_behind=left_behind)


def _is_back(entry: JournalEntry) -> bool:
    if not all(is_copy(file.original, file) for file in entry.files):
        return False
    return entry.method != HARDLINK or _version(entry.files[0].original) != _version(entry.kept)  # else our hard link


def _restore_files(entry: JournalEntry, journal: Journal, *, at_end: str) -> str:
    """Restore all files of an entry, or none if a name is taken; return the first problem, or an empty text."""
    problems = _bring_back(entry)
    if out_of_reach := problems and why_out_of_reach(entry):
        return out_of_reach
    remove_empty_folders(entry)
    if not problems:
        remove_sidecars(entry, journal)
    give_back_times(entry.folders)
    # The next undo finds what could not be restored; the journal forgets what a person took out of the quarantine.
    journal.set_state(entry, State.MOVED if problems and may_be_quarantined(entry) else at_end)
    return problems[0] if problems else ""


def _bring_back(entry: JournalEntry) -> list[str]:
    # Check all names first: a sidecar must not come back beside another photo that has taken its photo's name.
    return _problems(check_old_path, entry) or _problems(partial(restore, folders=entry.folders), entry)


def _problems(step: Callable[..., None], entry: JournalEntry) -> list[str]:
    problems = []
    for file in entry.files:
        try:
            step(file, replace_equal=entry.method == HARDLINK)
        except (OSError, CannotMove) as error:
            is_photo = file is entry.files[0]
            problems.append(sentence(error) if is_photo else f"{sentence(error).rstrip('.')}: {file.original}.")
    return problems
