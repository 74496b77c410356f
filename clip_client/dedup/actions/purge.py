"""Send the quarantine to the system's trash, the only step that ``undo`` cannot revert."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from typing import Final, TypeAlias

from clip_client._storage.sqlite import StoreError
from clip_client.dedup.actions.apply import Outcome, recover
from clip_client.dedup.actions.quarantine import (
    folders_now,
    give_back_times,
    is_copy,
    is_there,
    may_be_quarantined,
    remedy,
    remove_empty_folders,
    sentence,
    why_out_of_reach,
)
from clip_client.dedup.files.companions import companions
from clip_client.dedup.files.file_types import RESOURCE_FORK, SIDECAR, companion_kind, suffix_of
from clip_client.dedup.files.reading import has_sha256, sha256_of
from clip_client.dedup.judge.losses import lost_since
from clip_client.dedup.judge.movable import CannotMove
from clip_client.dedup.store.journal import PROOF, Journal, JournalEntry, MovedFile, State
from clip_client.dedup.store.store import store_option
from clip_client.dedup.text import counted
from clip_client.dedup.types import PROVED_TIERS, QUARANTINE_NAME

Prove: TypeAlias = Callable[[str, str], str]
"""``prove(kept, moved)``, two paths: the tier in which ``kept`` is proved to show all of ``moved``, or empty."""

_IS_BACK: Final = "Its move was interrupted, so it is back in its folder."


def purge(
    journal: Journal,
    *,
    prove: Prove | None = None,
    only: Collection[int] | None = None,
    trash: Callable[[str], None] | None = None,
    on_progress: Callable[[str, int, int], None] | None = None,
) -> tuple[Outcome, ...]:
    """Send everything in the quarantine to the system's trash, or only the entries with the ids in ``only``.

    A photo is purged if it is unchanged since its move, if the photo that was kept instead still exists with the same
    bytes, or one that a proved later move kept instead of it, and if the sidecars that saved its metadata still hold
    it. What a version with another :data:`~.journal.PROOF` moved is proved again with ``prove``, unless a person chose
    its move. Raises StoreError if another process moves files with this journal, or if the journal cannot be written.
    """
    if trash is None:
        from send2trash import send2trash

        trash = send2trash
    with journal.exclusive():
        outcomes = [replace(one, done=False, message=_IS_BACK) for one in recover(journal)]
        entries = [entry for entry in journal.entries((State.MOVED,)) if only is None or entry.id in only]
        for done, entry in enumerate(entries, start=1):
            try:
                outcomes.append(_purge(entry, journal, prove, trash))
            except StoreError as error:
                sent = sum(outcome.done for outcome in outcomes) + (not may_be_quarantined(entry))
                raise StoreError(
                    f"{error}; {sent} of {counted(len(entries), 'photo')} went to the system's trash before that"
                ) from error
            if on_progress is not None:
                on_progress("purging", done, len(entries))
    return tuple(outcomes)


def suspects(
    journal: Journal,
    *,
    prove: Prove | None = None,
    run: str | None = None,
    on_progress: Callable[[str, int, int], None] | None = None,
) -> list[JournalEntry]:
    """Return the moved photos, on connected disks, for which no remaining photo is proved to show the same picture."""
    found, entries = [], journal.entries((State.MOVED,), run=run)
    for done, entry in enumerate(entries, start=1):
        if not why_out_of_reach(entry) and not _kept_instead(entry, journal, prove)[0]:
            found.append(entry)
        if on_progress is not None:
            on_progress("proving", done, len(entries))
    return found


def _purge(entry: JournalEntry, journal: Journal, prove: Prove | None, trash: Callable[[str], None]) -> Outcome:
    path, done = entry.files[0].original, False
    try:
        reason = why_out_of_reach(entry) or _why_it_stays(entry, journal, prove)
    except (OSError, CannotMove) as error:
        reason = sentence(error)
    if reason:
        return Outcome(path=path, done=False, message=reason)
    entry = journal.set_state(entry, State.PURGING, folders_now(entry.files, entry.sidecars))
    for file in entry.files:
        try:
            if is_there(file.quarantined) and not journal.is_shared(entry, file):
                trash(file.quarantined)
                done = True
        except OSError as error:  # includes TrashPermissionError
            journal.set_state(entry, State.MOVED)
            reason = (error.strerror or str(error)).removesuffix(f": {file.quarantined}")
            return Outcome(path=path, done=False, message=f"The system's trash refuses it: {reason}{remedy(error)}.")
    remove_empty_folders(entry)
    give_back_times(entry.folders)
    journal.set_state(entry, State.PURGED)
    message = "In the system's trash." if done else "It was no longer in the quarantine."
    return Outcome(path=path, done=done, message=message)


def _why_it_stays(entry: JournalEntry, journal: Journal, prove: Prove | None) -> str:
    how_to_restore = _how_to_restore(entry, journal)
    away = [file for file in entry.files if is_there(file.quarantined)]  # a person took others out, or they are back
    if not all(map(_is_as_it_was_moved, away)):
        return f"It was changed after it was moved; {how_to_restore}."
    kept, reason = _kept_instead(entry, journal, prove)
    if reason:
        return reason
    for sidecar in entry.sidecars:
        if not is_there(sidecar.path):
            return f"The sidecar with its metadata is no longer beside the kept photo: {sidecar.path}."
    sidecars = [one.path for one in entry.sidecars]
    if rewritten := [one.path for one in entry.sidecars if sha256_of(one.path) != one.sha256]:
        is_same_shot = entry.tier in PROVED_TIERS and not entry.is_chosen
        if lost := lost_since(entry.files[0].quarantined, kept, sidecars, is_same_shot=is_same_shot):
            return (
                f"The sidecar beside the kept photo was changed and lacks its {lost} now: {rewritten[0]}; "
                f"{how_to_restore}."
            )
    moved_along = [file for file in away if file is not entry.files[0]]
    for file in moved_along:
        kind, form = _form(file.original)
        with os.scandir(os.path.dirname(kept)) as entries:
            of_kind = [entry.path for entry in entries if companion_kind(entry.name) == kind]
        if any(is_copy(path, file) for path in of_kind):
            continue
        # Programs write to the kept photo's sidecar, so its bytes may differ. Those of a RAW file or a film must not.
        forms = [_form(one.path) for one in companions([kept]).get(kept, ())]
        alike = [one for one in moved_along if _form(one.original) == (kind, form)]
        if kind not in (SIDECAR, RESOURCE_FORK) or forms.count((kind, form)) < len(alike):
            return f"The {kind} that was kept instead is no longer beside {kept}."
    return ""


def _form(path: str) -> tuple[str, str]:
    return companion_kind(path), suffix_of(path)


def _is_as_it_was_moved(file: MovedFile) -> bool:
    status = os.lstat(file.quarantined)
    # FAT timestamps shift with daylight saving time, so a file with another time is compared by its bytes.
    is_unchanged = (status.st_size, status.st_mtime_ns) == (file.size_bytes, file.mtime_ns)
    return is_unchanged or is_copy(file.quarantined, file)


def _kept_instead(entry: JournalEntry, journal: Journal, prove: Prove | None) -> tuple[str, str]:
    left = list(_left_instead(entry, journal, frozenset({entry.id})))
    all_such = f"clip-client undo --suspects{store_option(journal.directory)}"
    remedy = f"{_how_to_restore(entry, journal)}, or all such photos with: {all_such}"
    if not left:
        return "", f"The photo that was kept instead is missing or changed: {entry.kept}; {remedy}."
    # A person's choice replaces the proof of this move, but not the proofs of later moves.
    if entry.proof == PROOF or entry.is_chosen or _has_same_bytes(entry):
        for path, is_proved in left:
            if is_proved:
                return path, ""
    for path, _ in left:
        if prove is not None and (tier := prove(path, entry.files[0].quarantined)):
            if path == entry.kept:
                journal.set_proved(entry, tier)
            return path, ""
    path = left[0][0]
    why = f"An earlier version moved it for {path}"
    if path != entry.kept:
        why = f"The photo that was kept instead, {entry.kept}, was moved itself for {path}"
    return "", f"{why}, which is not proved to show all of it; {remedy}."


def _left_instead(entry: JournalEntry, journal: Journal, seen: frozenset[int]) -> Iterator[tuple[str, bool]]:
    """Yield each photo that is left instead of a moved one, and whether the later moves that lead to it are proved."""
    is_itself_quarantined = QUARANTINE_NAME in os.path.realpath(entry.kept).split(os.sep)  # through a link
    if not is_itself_quarantined and has_sha256(entry.kept, entry.kept_sha256):
        yield entry.kept, True
        return
    for later in journal.entries((State.MOVED, State.PURGED), original=entry.kept):
        if later.id not in seen and later.files[0].sha256 == entry.kept_sha256:
            is_later_proved = _has_same_bytes(later) or (
                later.proof == PROOF and later.tier in PROVED_TIERS and not later.is_chosen
            )
            for path, is_proved in _left_instead(later, journal, seen | {later.id}):
                yield path, is_proved and is_later_proved


def _has_same_bytes(entry: JournalEntry) -> bool:
    return entry.files[0].sha256 == entry.kept_sha256


def _how_to_restore(entry: JournalEntry, journal: Journal) -> str:
    return f"restore it with: clip-client undo {shlex.quote(entry.files[0].original)}{store_option(journal.directory)}"
