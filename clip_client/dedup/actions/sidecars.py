"""Sidecars that save what a copy says: written before the copy moves, and removed if all such copies are back.

A sidecar beside a kept photo may save the fields of several copies. Each of their units names it in the journal. It is
written under a name of its own first, so a killed process leaves either nothing or a whole sidecar beside the photo.
"""

from __future__ import annotations

import hashlib
import os
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from clip_client.dedup.actions.quarantine import CannotMove, is_there, rename_new, sync_folder
from clip_client.dedup.files.hashing import sha256_of
from clip_client.dedup.store.journal import Sidecar

if TYPE_CHECKING:
    from collections.abc import Sequence

    from clip_client.dedup.store.journal import Journal, Unit


@dataclass(frozen=True, kw_only=True)
class SidecarToWrite:
    """A sidecar of the kept photo that a copy must not leave without, and its content."""

    path: str
    """Absolute."""
    data: bytes
    is_ours: bool
    """It is written for copies; else it is there already."""


def check_sidecars(sidecars: Sequence[SidecarToWrite], journal: Journal) -> tuple[Sidecar, ...]:
    """Return what the journal is to note. Raises CannotMove if another program has written or removed one meanwhile."""
    records = []
    for sidecar in sidecars:
        sha256 = hashlib.sha256(sidecar.data).hexdigest()
        was_ours = any(one.is_ours and one.sha256 == sha256 for _, one in journal.sidecars(sidecar.path))
        if is_there(sidecar.path):
            if sha256_of(sidecar.path) != sha256 or (sidecar.is_ours and not was_ours):
                raise CannotMove(f"Another program has written the kept photo's sidecar meanwhile: {sidecar.path}.")
        elif not sidecar.is_ours:
            raise CannotMove(f"The kept photo's sidecar is no longer there: {sidecar.path}.")
        records.append(Sidecar(path=sidecar.path, sha256=sha256, is_ours=sidecar.is_ours or was_ours))
    return tuple(records)


def write_sidecars(sidecars: Sequence[SidecarToWrite], unit: Unit) -> None:
    """Write what is not there yet; on the disk when this returns. Raises OSError and CannotMove."""
    for sidecar in sidecars:
        if is_there(sidecar.path):
            continue
        draft = _draft(sidecar.path, unit)
        with open(draft, "xb") as file:
            file.write(sidecar.data)
            file.flush()
            os.fsync(file.fileno())
        try:
            rename_new(draft, sidecar.path)
        except FileExistsError:
            raise CannotMove(f"Another program has just written {sidecar.path}.") from None


def remove_sidecars(unit: Unit, journal: Journal) -> None:
    """Remove the sidecars that were written for a unit whose files are back.

    One that another moved photo needs stays, and so does one that was changed.
    """
    for sidecar in unit.sidecars:
        with suppress(OSError):
            os.unlink(_draft(sidecar.path, unit))
        if _is_only_for(unit, sidecar, journal) and sha256_of(sidecar.path) == sidecar.sha256:
            with suppress(OSError):  # the photo is back all the same
                os.unlink(sidecar.path)
                sync_folder(os.path.dirname(sidecar.path))


def left_sidecars(unit: Unit, journal: Journal) -> str:
    """Say which sidecars of a unit whose files are back stay although nothing needs them; empty if none."""
    left = [one.path for one in unit.sidecars if _is_only_for(unit, one, journal) and os.path.lexists(one.path)]
    return f"Its sidecar was changed or cannot be removed, and stays: {', '.join(left)}." if left else ""


def _is_only_for(unit: Unit, sidecar: Sidecar, journal: Journal) -> bool:
    return sidecar.is_ours and all(other == unit.id for other, _ in journal.sidecars(sidecar.path))


def _draft(path: str, unit: Unit) -> str:
    return f"{path}.{unit.run}.part"
