"""From the quarantine to the system's trash: the one step that ``undo`` cannot take back."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING

from clip_client.dedup.actions.apply import Outcome, settle, why_out_of_reach
from clip_client.dedup.actions.quarantine import forget_empty_folders, is_there
from clip_client.dedup.files.file_types import COMPANION_KINDS, PICTURES, suffix_of
from clip_client.dedup.files.hashing import Content, hash_file
from clip_client.dedup.store.journal import MOVED, PURGED, PURGING

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from clip_client.dedup.store.journal import Journal, MovedFile, Unit


def purge(
    journal: Journal,
    *,
    run: str | None = None,
    only: Collection[int] | None = None,
    trash: Callable[[str], None] | None = None,
    on_progress: Callable[[str, int, int], None] | None = None,
) -> tuple[Outcome, ...]:
    """Send what lies in the quarantine to the system's trash: all, or what one run moved.

    ``only`` names the units (``Unit.id``) that a person has agreed to; others may have come since. A photo goes only
    as it was moved, and while the one that was kept instead is there with the bytes that it had; where that one went to
    the quarantine itself later, the one that was kept instead of it counts. ``trash`` takes a path and defaults to
    ``send2trash.send2trash``. Raises StoreError where another process acts.
    """
    put_into_trash = trash or _system_trash()
    with journal.acting():
        settle(journal)
        units = [unit for unit in journal.units((MOVED,), run=run) if only is None or unit.id in only]
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
        reason = why_out_of_reach(unit) or _why_it_stays(unit, journal)
    except OSError as error:
        reason = f"The system refuses: {error.strerror or error}."
    if reason:
        return Outcome(path=path, done=False, message=reason)
    journal.mark(unit, PURGING)
    for file in unit.files:
        try:
            if is_there(file.quarantined):
                trash(file.quarantined)
            forget_empty_folders(file.quarantined)
        except OSError as error:  # TrashPermissionError is one, too
            journal.mark(unit, MOVED)
            reason = error.strerror or str(error)
            return Outcome(path=path, done=False, message=f"The system's trash does not take it: {reason}.")
    journal.mark(unit, PURGED)
    return Outcome(path=path, done=True, message="In the system's trash.")


def _why_it_stays(unit: Unit, journal: Journal) -> str:
    if any(is_there(file.quarantined) and not _is_as_it_was_moved(file) for file in unit.files):
        return "It was changed after it was moved; bring it back with: clip-client undo."
    kept = _kept_instead(unit, journal, frozenset())
    if not kept:
        return f"The photo that was kept instead is no longer as it was: {unit.survivor}."
    for sidecar in unit.sidecars:
        if not is_there(sidecar.path):
            return f"The sidecar that says what it said is no longer beside the kept photo: {sidecar.path}."
    for file in unit.files[1:]:
        kind = COMPANION_KINDS.get(suffix_of(file.original), "")
        if kind in PICTURES and not _has_beside(kept, kind, file):
            return f"The {kind} that was kept instead is no longer beside {kept}."
    return ""


def _is_as_it_was_moved(file: MovedFile) -> bool:
    status = os.lstat(file.quarantined)
    if (status.st_size, status.st_mtime_ns) == (file.size_bytes, file.mtime_ns):
        return True
    content = hash_file(file.quarantined)  # some disks tell other times once the clock of the house has changed
    return isinstance(content, Content) and content.sha256 == file.sha256


def _kept_instead(unit: Unit, journal: Journal, seen: frozenset[int]) -> str:
    """Return where the photo is that was kept instead; empty where it is nowhere."""
    content = hash_file(unit.survivor)
    if isinstance(content, Content) and content.sha256 == unit.survivor_sha256:
        return unit.survivor
    later = (
        _kept_instead(later, journal, seen | {unit.id})
        for later in journal.units((MOVED, PURGED), original=unit.survivor)
        if later.id not in seen and later.id != unit.id and later.files[0].sha256 == unit.survivor_sha256
    )
    return next(filter(None, later), "")


def _has_beside(kept: str, kind: str, lost: MovedFile) -> bool:
    """Tell whether a file of this kind and of the bytes of ``lost`` is in the folder of the kept photo."""
    with suppress(OSError), os.scandir(os.path.dirname(kept)) as entries:
        for entry in entries:
            if COMPANION_KINDS.get(suffix_of(entry.name)) == kind and os.stat(entry.path).st_size == lost.size_bytes:
                content = hash_file(entry.path)
                if isinstance(content, Content) and content.sha256 == lost.sha256:
                    return True
    return False
