"""Send the quarantine to the system's trash: the one step that ``undo`` cannot revert."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING

from clip_client.dedup.actions.apply import Outcome, recover, why_out_of_reach
from clip_client.dedup.actions.quarantine import is_there, remove_empty_folders
from clip_client.dedup.files.file_types import COMPANION_KINDS, PICTURES, suffix_of
from clip_client.dedup.files.hashing import has_sha256, sha256_of
from clip_client.dedup.store.journal import State

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from clip_client.dedup.store.journal import Journal, JournalEntry, MovedFile


def purge(
    journal: Journal,
    *,
    run: str | None = None,
    only: Collection[int] | None = None,
    trash: Callable[[str], None] | None = None,
    on_progress: Callable[[str, int, int], None] | None = None,
) -> tuple[Outcome, ...]:
    """Send the quarantine to the system's trash: everything, or what one run moved.

    ``only`` holds the ids (``JournalEntry.id``) that a person agreed to; other entries may have been added since. A
    photo is purged only if it is unchanged since its move, and if the photo that was kept instead still exists with the
    same bytes. If the kept photo was itself moved later, the photo that was kept instead of it counts. ``trash`` takes
    a path and defaults to ``send2trash.send2trash``. Raises StoreError if another process moves files with this
    journal.
    """
    if trash is None:
        from send2trash import send2trash

        trash = send2trash
    with journal.exclusive():
        recover(journal)
        entries = [entry for entry in journal.entries((State.MOVED,), run=run) if only is None or entry.id in only]
        outcomes = []
        for done, entry in enumerate(entries, start=1):
            outcomes.append(_purge(entry, journal, trash))
            if on_progress is not None:
                on_progress("purging", done, len(entries))
    return tuple(outcomes)


def _purge(entry: JournalEntry, journal: Journal, trash: Callable[[str], None]) -> Outcome:
    path = entry.files[0].original
    try:
        reason = why_out_of_reach(entry) or _why_it_stays(entry, journal)
    except OSError as error:
        reason = f"The system refuses: {error.strerror or error}."
    if reason:
        return Outcome(path=path, done=False, message=reason)
    journal.set_state(entry, State.PURGING)
    for file in entry.files:
        try:
            if is_there(file.quarantined):
                trash(file.quarantined)
            remove_empty_folders(file.quarantined)
        except OSError as error:  # includes TrashPermissionError
            journal.set_state(entry, State.MOVED)
            reason = error.strerror or str(error)
            return Outcome(path=path, done=False, message=f"The system's trash refuses it: {reason}.")
    journal.set_state(entry, State.PURGED)
    return Outcome(path=path, done=True, message="In the system's trash.")


def _why_it_stays(entry: JournalEntry, journal: Journal) -> str:
    if any(is_there(file.quarantined) and not _is_as_it_was_moved(file) for file in entry.files):
        return "It was changed after it was moved; restore it with: clip-client undo."
    kept = _kept_instead(entry, journal, frozenset({entry.id}))
    if not kept:
        return f"The photo that was kept instead is missing or changed: {entry.kept}."
    for sidecar in entry.sidecars:
        if not is_there(sidecar.path):
            return f"The sidecar with its metadata is no longer beside the kept photo: {sidecar.path}."
    for file in entry.files[1:]:
        kind = COMPANION_KINDS.get(suffix_of(file.original))
        if kind in PICTURES and not _has_beside(kept, kind, file):
            return f"The {kind} that was kept instead is no longer beside {kept}."
    return ""


def _is_as_it_was_moved(file: MovedFile) -> bool:
    status = os.lstat(file.quarantined)
    if status.st_size != file.size_bytes:
        return False
    # FAT timestamps shift with daylight saving, so another time alone does not mean that the file was changed.
    return status.st_mtime_ns == file.mtime_ns or sha256_of(file.quarantined) == file.sha256


def _kept_instead(entry: JournalEntry, journal: Journal, seen: frozenset[int]) -> str | None:
    """Return the path of the photo that was kept instead; None if it is missing. ``seen`` are ids not to go back to."""
    if has_sha256(entry.kept, entry.kept_sha256):
        return entry.kept
    later = (
        _kept_instead(later, journal, seen | {later.id})
        for later in journal.entries((State.MOVED, State.PURGED), original=entry.kept)
        if later.id not in seen and later.files[0].sha256 == entry.kept_sha256
    )
    return next(filter(None, later), None)


def _has_beside(kept: str, kind: str, lost: MovedFile) -> bool:
    """Tell whether the folder of the kept photo holds a file of this kind with the bytes of ``lost``."""
    with os.scandir(os.path.dirname(kept)) as entries:
        of_kind = [entry.path for entry in entries if COMPANION_KINDS.get(suffix_of(entry.name)) == kind]
    return any(_is_copy(path, lost) for path in of_kind)


def _is_copy(path: str, lost: MovedFile) -> bool:
    with suppress(OSError):  # such as a link that leads nowhere
        return os.stat(path).st_size == lost.size_bytes and sha256_of(path) == lost.sha256
    return False
