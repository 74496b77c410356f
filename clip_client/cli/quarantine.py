"""The common parts of ``dedup --apply``, ``undo`` and ``purge``: entries of the quarantine, and their outcomes."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import Any, Final

from clip_client._files import printable
from clip_client.cli.errors import CommandFailed
from clip_client.dedup.actions.apply import Outcome
from clip_client.dedup.store.journal import IN_QUARANTINE, Journal, JournalEntry
from clip_client.dedup.text import counted

_TOGETHER: Final = 3  # photos with one reason, such as a full disk, that get one line


def quarantined(journal: Journal, run: str | None) -> list[JournalEntry]:
    """Return the entries in the quarantine, of ``run`` or of all runs. Raises CommandFailed if ``run`` has none."""
    entries = journal.entries(IN_QUARANTINE, run=run)
    if not entries and run is not None:
        raise CommandFailed(
            f"no run {run!r} of this store has photos in the quarantine; clip-client undo --list shows the runs, and "
            "clip-client undo --from FOLDER restores photos of other stores"
        )
    return entries


def size_of(entries: Iterable[JournalEntry]) -> int:
    """Return the size of photos and their companions, which two photos may share."""
    return sum({file.quarantined: file.size_bytes for entry in entries for file in entry.files}.values())


def outcomes_json(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    failed = [{"path": outcome.path, "message": outcome.message} for outcome in outcomes if not outcome.done]
    return {"done": len(outcomes) - len(failed), "failed": failed}


def print_failures(outcomes: tuple[Outcome, ...]) -> int:
    by_reason: dict[str, list[str]] = {}
    for outcome in outcomes:
        if not outcome.done:
            by_reason.setdefault(outcome.message, []).append(outcome.path)
    for message, paths in by_reason.items():
        named = [printable(path) for path in paths]
        if len(paths) >= _TOGETHER:
            named = [f"{counted(len(paths), 'photo')}, such as {named[0]}"]
        for name in named:
            print(f"not done: {name}: {printable(message)}", file=sys.stderr)
    return sum(map(len, by_reason.values()))
