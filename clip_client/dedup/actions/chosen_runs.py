"""Choices besides their moves: runs record decisions, and choices are taken back with the photos that they moved."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable
from itertools import chain

from clip_client.dedup.actions.apply import Outcome, undo
from clip_client.dedup.store.choices import DONE, KEEP, WAITING, Choice
from clip_client.dedup.store.journal import HARDLINK, IN_QUARANTINE, State
from clip_client.dedup.store.store import Store


def notice_put_back(store: Store) -> None:
    done = store.choices.all(what=KEEP, state=DONE)
    back = [choice for choice in done if all(os.path.lexists(photo.path) for photo in choice.photos)]
    # A hard link has the path of the copy that it replaced, also after the copy was purged.
    linked = {
        entry.choice
        for photo in chain.from_iterable(choice.photos for choice in back)
        for entry in store.journal.entries((*IN_QUARANTINE, State.PURGED), original=photo.path)
        if entry.method == HARDLINK
    }
    store.choices.take_back([choice.id for choice in back if choice.id not in linked])


def declare(store: Store, choices: Iterable[Choice], run: str) -> None:
    for choice in choices:
        with store.choices.transaction():
            if store.choices.finish([choice.id], run):
                store.decisions.add(choice.what, [photo.sha256 for photo in choice.photos], choice=choice.id)


def take_back(
    store: Store, *, run: str | None = None, only: Collection[int] | None = None
) -> tuple[tuple[Outcome, ...], int]:
    """Restore photos as :func:`~.apply.undo` does, and undo the choices that moved them or would move them.

    With ``run`` and without ``only`` (ids of entries), the groups that the run declared different or all wanted are
    taken back, too; their number is returned.
    """
    with store.journal.exclusive():
        entries = store.journal.entries(IN_QUARANTINE, run=run)
        moved = {one.id: one.files[0].original for one in entries if only is None or one.id in only}
        # If this process is killed, a photo that it has restored must not move again, whatever moved it first.
        restored, waiting = set(moved.values()), store.choices.all(state=WAITING)
        again = [one.id for one in waiting if any(photo.moves and photo.path in restored for photo in one.photos)]
        store.choices.take_back(again)
        outcomes = undo(store.journal, only=moved.keys())
        is_whole_run = run is not None and only is None
        declared = {choice.id for choice in declared_by(store, run)} if is_whole_run else set()
        with store.choices.transaction():
            store.decisions.remove([one.id for one in store.decisions.all() if one.choice in declared])
            store.choices.take_back(declared)  # also those whose decision was forgotten
    return outcomes, len(declared)


def declared_by(store: Store, run: str | None) -> list[Choice]:
    done = store.choices.all(state=DONE, **({} if run is None else {"run": run}))
    return [choice for choice in done if choice.what != KEEP]
