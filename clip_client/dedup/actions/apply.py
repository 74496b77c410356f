"""Move duplicates into the quarantine and back: the journal first, then the files, one entry at a time.

A process may be killed between any two steps. The next process that moves files recovers: an entry that did not arrive
whole goes back whole, and one that was on its way back is restored.
"""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from clip_client.dedup.actions.quarantine import (
    CannotMove,
    check_disk,
    is_there,
    quarantine,
    remove_empty_folders,
    restore,
    sync_folder,
)
from clip_client.dedup.actions.sidecars import check_sidecars, remaining_sidecars, remove_sidecars, write_sidecars
from clip_client.dedup.actions.verdicts import NOT_THE_SAME_BYTES, another_companion
from clip_client.dedup.files.hashing import Content, hash_file
from clip_client.dedup.store.journal import IN_QUARANTINE, JournalEntry, MovedFile, State
from clip_client.dedup.store.sqlite import StoreError
from clip_client.dedup.types import FailedFile

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

    from clip_client.dedup.actions.plan import Move, Plan
    from clip_client.dedup.store.journal import Journal

QUARANTINE: Final = "quarantine"
HARDLINK: Final = "hardlink"
METHODS: Final = (QUARANTINE, HARDLINK)


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What happened to one photo."""

    path: str
    done: bool
    message: str
    """One sentence for people: where the photo went, or why it stayed."""


@dataclass(frozen=True, kw_only=True)
class Applied:
    """The result of one call of :func:`apply`."""

    run: str
    """For ``undo --run``."""
    outcomes: tuple[Outcome, ...]
    """One for each move of the plan, in the plan's order."""


def apply(
    plan: Plan,
    journal: Journal,
    *,
    method: str = QUARANTINE,
    run: str | None = None,
    on_progress: Callable[[str, int, int], None] | None = None,
) -> Applied:
    """Carry out ``plan``.

    Each file is hashed again right before it moves; a file that changed or disappeared is skipped and reported.
    With ``method="hardlink"`` a hard link to the kept file replaces an exact copy. The copy itself still goes to the
    quarantine, so this can be undone, too. ``run`` names the run (default: a new name).

    Raises StoreError if another process moves files with this journal, or if the journal cannot be written.
    """
    if method not in METHODS:
        raise ValueError(f"unknown method {method!r}; the methods are {', '.join(METHODS)}")
    outcomes: list[Outcome] = []
    with journal.exclusive():
        recover(journal)
        run = run or journal.new_run()
        for done, move in enumerate(plan.moves, start=1):
            try:
                outcome = _move(move, journal, run=run, method=method)
            except (OSError, CannotMove) as error:
                outcome = Outcome(path=move.duplicate.path, done=False, message=_sentence(error))
            except StoreError as error:
                moved = sum(outcome.done for outcome in outcomes)
                raise StoreError(
                    f"{error}; {moved} of {len(plan.moves)} photos were moved before that; restore them with: "
                    "clip-client undo"
                ) from error
            outcomes.append(outcome)
            if on_progress is not None:
                on_progress("moving", done, len(plan.moves))
    return Applied(run=run, outcomes=tuple(outcomes))


def undo(
    journal: Journal,
    *,
    run: str | None = None,
    paths: Iterable[str] | None = None,
    only: Collection[int] | None = None,
) -> tuple[Outcome, ...]:
    """Restore what is in the quarantine: everything, what one run moved, or what was moved from ``paths``.

    ``only`` holds the ids (``JournalEntry.id``) of the entries to restore. The newest entry is restored first. If
    another file has taken the name of a file, that file stays in the quarantine, and you can try again later. Raises
    StoreError if another process moves files with this journal.
    """
    with journal.exclusive():
        recover(journal)
        entries = in_quarantine(journal, run=run, paths=paths, only=only)
        return tuple(_undo(entry, journal) for entry in sorted(entries, key=lambda entry: -entry.id))


def in_quarantine(
    journal: Journal,
    *,
    run: str | None = None,
    paths: Iterable[str] | None = None,
    only: Collection[int] | None = None,
) -> list[JournalEntry]:
    """Return the entries that :func:`undo` would restore."""
    if paths is None:
        entries = journal.entries(IN_QUARANTINE, run=run)
    else:
        named = [journal.entries(IN_QUARANTINE, run=run, original=os.path.abspath(path)) for path in paths]
        entries = list({entry.id: entry for found in named for entry in found}.values())
    return entries if only is None else [entry for entry in entries if entry.id in only]


def recover(journal: Journal) -> None:
    """Finish or revert the moves of killed processes; the caller holds :meth:`Journal.exclusive`.

    An entry on a disk that is not connected stays as it is.
    """
    for entry in journal.entries((State.PLANNED, State.RESTORING, State.PURGING)):
        if why_out_of_reach(entry):
            continue
        if entry.state == State.PURGING:
            is_there_still = _may_be_quarantined(entry)
            if not is_there_still:
                _remove_empty_folders(entry)
            journal.set_state(entry, State.MOVED if is_there_still else State.PURGED)
        else:
            _restore_files(entry, journal, at_end=State.ABANDONED if entry.state == State.PLANNED else State.RESTORED)


def why_out_of_reach(entry: JournalEntry) -> str:
    """Say that the disk of an entry is not connected; empty if it is."""
    try:
        check_disk(entry.files[0], entry.kept)
    except CannotMove as error:
        return str(error)
    return ""


def _move(move: Move, journal: Journal, *, run: str, method: str) -> Outcome:
    duplicate, kept = move.duplicate, move.kept
    path, kept_path = os.path.abspath(duplicate.path), os.path.abspath(kept.path)
    if method == HARDLINK and duplicate.sha256 != kept.sha256:
        raise CannotMove(NOT_THE_SAME_BYTES)
    # A hard link keeps the name, so companions of that name stay beside it.
    companions = () if method == HARDLINK else move.companions
    paths = (path, *(os.path.abspath(companion.path) for companion in companions))
    files = [_record_file(name, move, run) for name in paths]
    if files[0].sha256 != duplicate.sha256:
        raise CannotMove("It has changed since it was compared.")
    status = _check_kept_photo(kept_path, kept.sha256, path)
    _check_companions(move, files[1:])
    sidecars = check_sidecars(move.sidecars, journal)
    entry = journal.plan(
        run=run,
        method=method,
        kept=kept_path,
        kept_sha256=kept.sha256,
        tier=move.tier,
        is_chosen=move.is_chosen,
        files=files,
        sidecars=sidecars,
    )
    try:
        write_sidecars(move.sidecars, entry)
        for file in files:
            quarantine(file)
            _check_unchanged(file)
        # A search with another store may move the kept photo at the same time: the process that moves last notices.
        _check_still_kept(kept_path, status)
        if method == HARDLINK:
            # If the kept path is a symbolic link, link to the photo and not to the link.
            os.link(os.path.realpath(kept_path), path)
            sync_folder(os.path.dirname(path))
    except (OSError, CannotMove) as error:
        _restore_files(entry, journal, at_end=State.ABANDONED)
        raise CannotMove(_sentence(error)) from error
    journal.set_state(entry, State.MOVED)
    return Outcome(path=duplicate.path, done=True, message=f"Moved to {files[0].quarantined}.")


def _record_file(path: str, move: Move, run: str) -> MovedFile:
    """Record a file as it is; the times first, because hashing changes the access time."""
    status = os.lstat(path)
    if not stat.S_ISREG(status.st_mode):
        raise CannotMove("It is no longer a regular file.")
    content = hash_file(path)
    if isinstance(content, FailedFile) and content.code != "EMPTY":
        raise CannotMove(content.message)
    return MovedFile(
        original=path,
        quarantined=move.target.path_for(path, run),
        # A sidecar may be empty; an empty photo is never compared.
        sha256=content.sha256 if isinstance(content, Content) else "",
        size_bytes=status.st_size,
        atime_ns=status.st_atime_ns,
        mtime_ns=status.st_mtime_ns,
    )


def _check_kept_photo(kept: str, sha256: str, duplicate: str) -> os.stat_result:
    """Check that the kept photo exists, is unchanged, and is another file than the duplicate; return its status."""
    content = hash_file(kept)
    if not isinstance(content, Content):
        raise CannotMove("The kept photo can no longer be read.")
    if content.sha256 != sha256:
        raise CannotMove("The kept photo has changed since it was compared.")
    if os.path.samefile(kept, duplicate):
        raise CannotMove("It is the kept photo itself under another name.")
    return os.stat(kept)


def _check_still_kept(kept: str, before: os.stat_result) -> None:
    """Check, after the duplicate has moved, that the kept photo is still the file that was checked before."""
    try:
        is_same = _version(os.stat(kept)) == _version(before)
    except OSError:
        is_same = False
    if not is_same:
        raise CannotMove("The kept photo disappeared or changed during the move, so this one is back.")


def _version(status: os.stat_result) -> tuple[int, ...]:
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def _check_companions(move: Move, files: list[MovedFile]) -> None:
    """Check that the kept photo has a file of the same bytes for each companion that would move."""
    for companion, file in zip(move.companions, files, strict=False):
        if not any(_is_copy(file, other.path) for other in move.kept.companions if other.kind == companion.kind):
            raise CannotMove(another_companion(companion.kind))


def _is_copy(file: MovedFile, path: str) -> bool:
    content = hash_file(path)
    if isinstance(content, Content):
        return content.sha256 == file.sha256
    return content.code == "EMPTY" and file.size_bytes == 0


def _check_unchanged(file: MovedFile) -> None:
    """Notice a program that wrote into the file between its hash and its move."""
    status = os.lstat(file.quarantined)
    if (status.st_size, status.st_mtime_ns) != (file.size_bytes, file.mtime_ns):
        raise CannotMove("It changed during the move, and is back.")


def _undo(entry: JournalEntry, journal: Journal) -> Outcome:
    problem = why_out_of_reach(entry) or _restore_files(
        journal.set_state(entry, State.RESTORING), journal, at_end=State.RESTORED
    )
    message = problem or f"Restored. {remaining_sidecars(entry, journal)}".rstrip()
    return Outcome(path=entry.files[0].original, done=not problem, message=message)


def _restore_files(entry: JournalEntry, journal: Journal, *, at_end: str) -> str:
    """Restore each file of an entry; return the first problem, or an empty text."""
    problems = []
    for file in entry.files:
        try:
            restore(file, replace_equal=entry.method == HARDLINK)
        except (OSError, CannotMove) as error:
            problems.append(_sentence(error))
    if out_of_reach := problems and why_out_of_reach(entry):
        return out_of_reach
    _remove_empty_folders(entry)
    if not problems:
        remove_sidecars(entry, journal)
    # A file that could not be restored is still in the quarantine, where the next undo finds it. The journal forgets a
    # file that a person took out of the quarantine.
    journal.set_state(entry, State.MOVED if problems and _may_be_quarantined(entry) else at_end)
    return problems[0] if problems else ""


def _remove_empty_folders(entry: JournalEntry) -> None:
    for file in entry.files:
        remove_empty_folders(file.quarantined)


def _may_be_quarantined(entry: JournalEntry) -> bool:
    """Tell whether a file of the entry is in the quarantine; True if this cannot be found out."""
    try:
        return any(is_there(file.quarantined) for file in entry.files)
    except OSError:
        return True


def _sentence(error: OSError | CannotMove) -> str:
    if isinstance(error, OSError):
        return f"The system refuses: {error.strerror or error}."
    return str(error)
