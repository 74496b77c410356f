"""From the quarantine to the system's trash: the one step that ``undo`` cannot take back."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from clip_client.dedup.act import Outcome, settle
from clip_client.dedup.hashing import Content, hash_file
from clip_client.dedup.journal import MOVED, PURGED, PURGING
from clip_client.dedup.quarantine import CannotMove, check_disk, forget_empty_folders

if TYPE_CHECKING:
    from collections.abc import Callable

    from clip_client.dedup.journal import Journal, Unit


def purge(
    journal: Journal,
    *,
    run: str | None = None,
    trash: Callable[[str], None] | None = None,
    on_progress: Callable[[str, int, int], None] | None = None,
) -> tuple[Outcome, ...]:
    """Send what lies in the quarantine to the system's trash: all, or what one run moved.

    A photo goes only while the one that was kept instead is there with the bytes that it had; where that one went to
    the quarantine itself later, the one that was kept instead of it counts. ``trash`` takes a path and defaults to
    ``send2trash.send2trash``. Raises StoreError where another process acts.
    """
    put_into_trash = trash or _system_trash()
    with journal.acting():
        settle(journal)
        units = journal.units((MOVED,), run=run)
        outcomes = []
        for done, unit in enumerate(units, start=1):
            outcomes.append(_purge(unit, journal, put_into_trash))
            if on_progress is not None:
                on_progress("purging", done, len(units))
    return tuple(outcomes)


def _system_trash() -> Callable[[str], None]:
    from send2trash import send2trash

    return send2trash


def _purge(unit: Unit, journal: Journal, trash: Callable[[str], None]) -> Outcome:
    path = unit.files[0].original
    try:
        check_disk(unit.files[0].quarantined)
    except CannotMove as error:
        return Outcome(path=path, done=False, message=str(error))
    if not _is_kept(unit, journal, frozenset()):
        message = f"The photo that was kept instead is no longer as it was: {unit.survivor}."
        return Outcome(path=path, done=False, message=message)
    journal.mark(unit, PURGING)
    for file in unit.files:
        try:
            if os.path.lexists(file.quarantined):
                trash(file.quarantined)
            forget_empty_folders(file.quarantined)
        except OSError as error:  # TrashPermissionError is one, too
            journal.mark(unit, MOVED)
            reason = error.strerror or str(error)
            return Outcome(path=path, done=False, message=f"The system's trash does not take it: {reason}.")
    journal.mark(unit, PURGED)
    return Outcome(path=path, done=True, message="In the system's trash.")


def _is_kept(unit: Unit, journal: Journal, seen: frozenset[int]) -> bool:
    content = hash_file(unit.survivor)
    if isinstance(content, Content) and content.sha256 == unit.survivor_sha256:
        return True
    return any(
        _is_kept(later, journal, seen | {unit.id})
        for later in journal.units((MOVED, PURGED), original=unit.survivor)
        if later.id not in seen and later.id != unit.id and later.files[0].sha256 == unit.survivor_sha256
    )
