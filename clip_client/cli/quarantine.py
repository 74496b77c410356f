"""The common parts of ``dedup --apply``, ``undo`` and ``purge``: entries of the quarantine, and their outcomes."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, Final

from clip_client._files import printable
from clip_client.cli.errors import CommandFailed
from clip_client.dedup.actions.apply import Outcome
from clip_client.dedup.store.journal import IN_QUARANTINE, Journal, JournalEntry
from clip_client.dedup.text import counted

_TOGETHER: Final = 2  # photos of one missing folder that get one line


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
    failures = [outcome for outcome in outcomes if not outcome.done]
    of_folders = Counter(outcome.message for outcome in failures if outcome.is_out_of_reach)
    for outcome in failures:
        if of_folders[outcome.message] < _TOGETHER:
            print(f"not done: {printable(outcome.path)}: {printable(outcome.message)}", file=sys.stderr)
    for message, number in of_folders.items():
        if number >= _TOGETHER:
            print(f"not done: {counted(number, 'photo')}: {printable(message)}", file=sys.stderr)
    return len(failures)
