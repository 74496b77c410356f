"""Sidecars that save a duplicate's metadata: written before it moves, removed when all such duplicates are back."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from contextlib import suppress

from clip_client.dedup.actions.quarantine import is_there, rename_new, sync, sync_folder
from clip_client.dedup.files.reading import sha256_of
from clip_client.dedup.judge.losses import SidecarToWrite, draft_of
from clip_client.dedup.judge.movable import CannotMove
from clip_client.dedup.store.journal import Journal, JournalEntry, Sidecar


def check_sidecars(sidecars: Sequence[SidecarToWrite], journal: Journal) -> tuple[Sidecar, ...]:
    records = []
    for sidecar in sidecars:
        sha256 = hashlib.sha256(sidecar.data).hexdigest()
        was_ours = any(one.is_ours and one.sha256 == sha256 for _, one in journal.sidecars(sidecar.path))
        if is_there(sidecar.path):
            if sha256_of(sidecar.path) != sha256 or (sidecar.is_ours and not was_ours):
                raise CannotMove(f"Another program has written the kept photo's sidecar: {sidecar.path}.")
        elif not sidecar.is_ours:
            raise CannotMove(f"The kept photo's sidecar is no longer there: {sidecar.path}.")
        records.append(Sidecar(path=sidecar.path, sha256=sha256, is_ours=sidecar.is_ours or was_ours))
    return tuple(records)


def write_sidecars(sidecars: Sequence[SidecarToWrite], entry: JournalEntry) -> None:
    for sidecar in sidecars:
        if is_there(sidecar.path):
            continue
        draft = draft_of(sidecar.path, entry.run)
        with open(draft, "xb") as file:
            file.write(sidecar.data)
            file.flush()
            sync(file.fileno())
        try:
            rename_new(draft, sidecar.path)
        except FileExistsError:
            raise CannotMove(f"Another program has just written {sidecar.path}.") from None


def remove_sidecars(entry: JournalEntry, journal: Journal) -> None:
    for sidecar in entry.sidecars:
        with suppress(OSError):
            os.unlink(draft_of(sidecar.path, entry.run))
        if _is_only_for(entry, sidecar, journal) and sha256_of(sidecar.path) == sidecar.sha256:
            with suppress(OSError):  # the photo is restored anyway
                os.unlink(sidecar.path)
                sync_folder(os.path.dirname(sidecar.path))


def remaining_sidecars(entry: JournalEntry, journal: Journal) -> str:
    paths = [one.path for one in entry.sidecars if _is_only_for(entry, one, journal) and os.path.lexists(one.path)]
    return f"Its sidecar was changed or cannot be removed, and stays: {', '.join(paths)}." if paths else ""


def _is_only_for(entry: JournalEntry, sidecar: Sidecar, journal: Journal) -> bool:
    return sidecar.is_ours and all(other == entry.id for other, _ in journal.sidecars(sidecar.path))
