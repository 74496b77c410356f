"""Move copies into the quarantine, and back: the journal first, then the files, one unit at a time.

A process may be killed between any two steps. Whoever acts next settles what it left: a unit that had not arrived
whole goes back whole, one that was on its way back arrives.
"""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from clip_client.dedup.actions.plan import NOT_THE_SAME_BYTES, another_companion
from clip_client.dedup.actions.quarantine import (
    CannotMove,
    bring_back,
    check_disk,
    forget_empty_folders,
    is_there,
    put_away,
    sync_folder,
)
from clip_client.dedup.actions.sidecars import check_sidecars, left_sidecars, remove_sidecars, write_sidecars
from clip_client.dedup.files.hashing import Content, hash_file
from clip_client.dedup.store.journal import (
    ABANDONED,
    IN_QUARANTINE,
    MOVED,
    PLANNED,
    PURGED,
    PURGING,
    RESTORED,
    RESTORING,
    MovedFile,
    Unit,
    new_run,
)
from clip_client.dedup.store.sqlite import StoreError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from clip_client.dedup.actions.plan import Plan, Removal
    from clip_client.dedup.store.journal import Journal
    from clip_client.dedup.types import FailedFile

QUARANTINE: Final = "quarantine"
HARDLINK: Final = "hardlink"
METHODS: Final = (QUARANTINE, HARDLINK)


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What became of one photo."""

    path: str
    done: bool
    message: str
    """One sentence for people; where it went, or why it did not."""


@dataclass(frozen=True, kw_only=True)
class Applied:
    """What one call of :func:`apply` did."""

    run: str
    """For ``undo --run``."""
    outcomes: tuple[Outcome, ...]
    """One for each removal of the plan, in its order."""


def apply(
    plan: Plan,
    journal: Journal,
    *,
    method: str = QUARANTINE,
    on_progress: Callable[[str, int, int], None] | None = None,
) -> Applied:
    """Carry out ``plan``. Every file is hashed again right before: what has changed or gone is skipped and reported.

    With ``method="hardlink"`` the name of an exact copy stays, as a hard link to the kept file; its own file goes to
    the quarantine all the same, so this can be undone, too. Raises StoreError where another process acts, and where
    the journal cannot be written.
    """
    if method not in METHODS:
        raise ValueError(f"there is no method {method!r}; the methods are {', '.join(METHODS)}")
    run = new_run()
    outcomes: list[Outcome] = []
    with journal.acting():
        settle(journal)
        for done, removal in enumerate(plan.removals, start=1):
            try:
                outcome = _remove(removal, journal, run=run, method=method)
            except (OSError, CannotMove) as error:
                outcome = Outcome(path=removal.victim.path, done=False, message=_sentence(error))
            except StoreError as error:
                moved = sum(outcome.done for outcome in outcomes)
                raise StoreError(
                    f"{error}; {moved} of {len(plan.removals)} photos were moved before, and come back with: "
                    "clip-client undo"
                ) from error
            outcomes.append(outcome)
            if on_progress is not None:
                on_progress("moving", done, len(plan.removals))
    return Applied(run=run, outcomes=tuple(outcomes))


def undo(journal: Journal, *, run: str | None = None, paths: Iterable[str] | None = None) -> tuple[Outcome, ...]:
    """Bring back what lies in the quarantine: all, what one run moved, or what was moved from ``paths``.

    The newest unit comes back first. What cannot come back, because another file has its name now, stays where it is,
    and can be tried again. Raises StoreError where another process acts.
    """
    with journal.acting():
        settle(journal)
        if paths is None:
            units = journal.units(IN_QUARANTINE, run=run)
        else:
            named = [journal.units(IN_QUARANTINE, run=run, original=os.path.abspath(path)) for path in paths]
            units = list({unit.id: unit for found in named for unit in found}.values())
        return tuple(_restore(unit, journal) for unit in sorted(units, key=lambda unit: -unit.id))


def settle(journal: Journal) -> None:
    """Bring order into what killed processes left; the caller holds :meth:`Journal.acting`.

    What lies on a disk that is not there waits for it.
    """
    for unit in journal.units((PLANNED, RESTORING, PURGING)):
        if why_out_of_reach(unit):
            continue  # until its disk is there again
        if unit.state == PURGING:
            is_there_still = _may_lie_there(unit)
            if not is_there_still:
                _forget_folders(unit)
            journal.mark(unit, MOVED if is_there_still else PURGED)
        else:
            _back(unit, journal, at_end=ABANDONED if unit.state == PLANNED else RESTORED)


def why_out_of_reach(unit: Unit) -> str:
    """Say that the disk of a unit is not there; empty where it is."""
    try:
        check_disk(unit.files[0], unit.survivor)
    except CannotMove as error:
        return str(error)
    return ""


def _remove(removal: Removal, journal: Journal, *, run: str, method: str) -> Outcome:
    victim, survivor = removal.victim, removal.survivor
    path = os.path.abspath(victim.path)
    if method == HARDLINK and victim.sha256 != survivor.sha256:
        raise CannotMove(NOT_THE_SAME_BYTES)
    # A hard link keeps the name, and what belongs to that name stays beside it.
    along = () if method == HARDLINK else removal.companions
    files = [_before(name, removal, run) for name in (path, *(os.path.abspath(companion.path) for companion in along))]
    if files[0].sha256 != victim.sha256:
        raise CannotMove("It has changed since it was compared.")
    kept = os.path.abspath(survivor.path)
    status = _check_survivor(kept, survivor.sha256, path)
    _check_companions(removal, files[1:])
    sidecars = check_sidecars(removal.sidecars, journal)
    unit = journal.plan(
        run=run,
        method=method,
        survivor=kept,
        survivor_sha256=survivor.sha256,
        files=files,
        sidecars=sidecars,
    )
    try:
        write_sidecars(removal.sidecars, unit)
        for file in files:
            put_away(file)
            _check_unchanged(file)
        # Somebody else may take the kept photo away, also a search with another store: whoever moves last sees it.
        _check_still_kept(kept, status)
        if method == HARDLINK:
            # Where the kept name is a link, a second name is wanted of the photo, and not of the link.
            os.link(os.path.realpath(kept), path)
            sync_folder(os.path.dirname(path))
    except (OSError, CannotMove) as error:
        _back(unit, journal, at_end=ABANDONED)
        raise CannotMove(_sentence(error)) from error
    journal.mark(unit, MOVED)
    return Outcome(path=victim.path, done=True, message=f"Moved to {files[0].quarantined}.")


def _before(path: str, removal: Removal, run: str) -> MovedFile:
    """Record a file as it is: the times first, because hashing it changes the time of access."""
    status = os.lstat(path)
    if not stat.S_ISREG(status.st_mode):
        raise CannotMove("It is no longer a regular file.")
    content = hash_file(path)
    if isinstance(content, Content):
        sha256 = content.sha256
    elif content.code == "EMPTY":  # a sidecar may be; a photo of that hash was never compared
        sha256 = ""
    else:
        raise CannotMove(content.message)
    return MovedFile(
        original=path,
        quarantined=removal.place.target(path, run),
        sha256=sha256,
        size_bytes=status.st_size,
        atime_ns=status.st_atime_ns,
        mtime_ns=status.st_mtime_ns,
    )


def _check_survivor(survivor: str, sha256: str, victim: str) -> os.stat_result:
    """Make sure that the kept photo is there, whole, and another file than the victim; return its status."""
    content = hash_file(survivor)
    if not isinstance(content, Content):
        raise CannotMove("The kept photo cannot be read any more.")
    if content.sha256 != sha256:
        raise CannotMove("The kept photo has changed since it was compared.")
    if os.path.samefile(survivor, victim):
        raise CannotMove("It is the kept photo itself under another name.")
    return os.stat(survivor)


def _check_still_kept(survivor: str, then: os.stat_result) -> None:
    """Make sure, once the victim is away, that the kept photo is the file that was looked at before."""
    try:
        now = os.stat(survivor)
    except OSError:
        now = None
    if now is None or _version(now) != _version(then):
        raise CannotMove("The kept photo went away or changed meanwhile, so this one is back.")


def _version(status: os.stat_result) -> tuple[int, ...]:
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def _check_companions(removal: Removal, files: list[MovedFile]) -> None:
    """Make sure that the kept photo has a file of the same bytes for each one that would go along."""
    for companion, file in zip(removal.companions, files, strict=False):
        beside = (hash_file(other.path) for other in removal.beside_survivor if other.kind == companion.kind)
        if not any(_is_copy(file, content) for content in beside):
            raise CannotMove(another_companion(companion.kind))


def _is_copy(file: MovedFile, content: Content | FailedFile) -> bool:
    if isinstance(content, Content):
        return content.sha256 == file.sha256
    return content.code == "EMPTY" and file.size_bytes == 0


def _check_unchanged(file: MovedFile) -> None:
    """Catch a program that wrote into the file between its hash and its move."""
    status = os.lstat(file.quarantined)
    if (status.st_size, status.st_mtime_ns) != (file.size_bytes, file.mtime_ns):
        raise CannotMove("It was changed while it was moved, and is back.")


def _restore(unit: Unit, journal: Journal) -> Outcome:
    path = unit.files[0].original
    message = why_out_of_reach(unit) or _back(journal.mark(unit, RESTORING), journal, at_end=RESTORED)
    left = "" if message else left_sidecars(unit, journal)
    return Outcome(path=path, done=not message, message=message or f"Back in its place. {left}".rstrip())


def _back(unit: Unit, journal: Journal, *, at_end: str) -> str:
    """Bring back each file of a unit; return why that was not possible, for one of them at least, or an empty text."""
    problems = []
    for file in unit.files:
        try:
            bring_back(file, replace_equal=unit.method == HARDLINK)
        except (OSError, CannotMove) as error:
            problems.append(_sentence(error))
    if out_of_reach := problems and why_out_of_reach(unit):
        return out_of_reach
    _forget_folders(unit)
    if not problems:
        remove_sidecars(unit, journal)
    # What could not come back still lies in the quarantine, where the next undo finds it; what somebody took out of
    # there is no longer in anybody's hands.
    journal.mark(unit, MOVED if problems and _may_lie_there(unit) else at_end)
    return problems[0] if problems else ""


def _forget_folders(unit: Unit) -> None:
    for file in unit.files:
        forget_empty_folders(file.quarantined)


def _may_lie_there(unit: Unit) -> bool:
    """Tell whether a file of the unit is in the quarantine, or nobody can tell."""
    try:
        return any(is_there(file.quarantined) for file in unit.files)
    except OSError:
        return True


def _sentence(error: OSError | CannotMove) -> str:
    if isinstance(error, OSError):
        return f"The system refuses: {error.strerror or error}."
    return str(error)
