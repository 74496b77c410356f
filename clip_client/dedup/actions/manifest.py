"""The manifest in each run's folder of a quarantine, by which ``undo --from`` works without the journal.

Each line is JSON about files that move together. Paths are relative to the folder that has the quarantine, with ``/``,
so they hold wherever another computer mounts it. A line is on the disk before the first of its files moves.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path, PurePath
from typing import Any

from clip_client.dedup.actions.quarantine import MANIFEST, make_folder, run_folder, sync, sync_folder
from clip_client.dedup.store.journal import Folder, JournalEntry, MovedFile, Sidecar, State
from clip_client.dedup.types import QUARANTINE_NAME


def add_to_manifest(entry: JournalEntry) -> None:
    run = run_folder(entry)
    top = run.parent.parent

    def below(path: str) -> str:
        return PurePath(path).relative_to(top).as_posix() if PurePath(path).is_relative_to(top) else path

    line = {
        "at_ns": entry.at_ns,
        "kept": below(entry.kept),
        "files": [(below(file.original), *file[2:]) for file in entry.files],
        "sidecars": [(below(path), *rest) for path, *rest in entry.sidecars],
        "folders": [(below(path), *rest) for path, *rest in entry.folders],
    }
    make_folder(str(run), str(top), entry.folders)
    with open(run / MANIFEST, "ab") as file:
        is_new = file.tell() == 0
        # A line may follow half a line: the disk may have been full.
        file.write(f"\n{json.dumps(line)}\n".encode())
        file.flush()
        sync(file.fileno())
    if is_new:
        sync_folder(str(run))


def manifest_entries(folder: str) -> list[JournalEntry]:
    """Return the entries in the manifests of the absolute ``folder``, oldest first. Raises OSError."""
    found: list[JournalEntry] = []
    try:
        runs = sorted(Path(folder, QUARANTINE_NAME).iterdir())
    except FileNotFoundError:
        if os.listdir(folder):
            return found
        raise  # it may be a mount point without its disk
    for run in runs:
        with suppress(FileNotFoundError, NotADirectoryError), open(run / MANIFEST, "rb") as lines:
            for line in lines:
                with suppress(ValueError, KeyError, TypeError):
                    found.append(_entry(len(found), json.loads(line), run, folder))
    return found


def runs_near(folder: str) -> dict[str, set[str]]:
    """Return folder -> runs in its quarantine, for ``folder`` (absolute), all above it and those directly in it."""
    _, inside, _ = next(os.walk(folder), ("", [], []))
    found = {}
    here = Path(folder)
    for near in (here, *here.parents, *(here / name for name in sorted(inside))):
        with suppress(OSError):
            if runs := {path.parent.name for path in (near / QUARANTINE_NAME).glob(f"*/{MANIFEST}")}:
                found[str(near)] = runs
    return found


def _entry(number: int, said: dict[str, Any], run: Path, top: str) -> JournalEntry:
    """Read a line. Raises ValueError for a path that leads out of the folder, and other errors for other contents."""

    def at(name: str) -> str:
        return os.path.normpath(os.path.join(top, name))

    files = tuple(MovedFile(at(name), os.path.normpath(run / name), *rest) for name, *rest in said["files"])
    if not files or not all(PurePath(file.quarantined).is_relative_to(run) for file in files):
        raise ValueError(said["files"])
    return JournalEntry(
        id=number,
        run=run.name,
        at_ns=said["at_ns"],
        state=State.MOVED,
        kept=at(said["kept"]),
        files=files,
        sidecars=tuple(Sidecar(at(name), *rest) for name, *rest in said["sidecars"]),
        folders=tuple(Folder(at(name), *rest) for name, *rest in said["folders"]),
    )
