"""The states of choices: a choice waits, was carried out by a run, or was taken back.

The journal and the decisions say what was done. A process may be killed before it records that with the choices.
:func:`settle` therefore compares them, before and after choices are carried out.
"""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from typing import TYPE_CHECKING, NamedTuple

from clip_client.dedup.actions.apply import HARDLINK, undo
from clip_client.dedup.store.choices import BEGUN, DONE, KEEP, UNDONE, WAITING
from clip_client.dedup.store.journal import IN_QUARANTINE, State

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from clip_client.dedup.actions.apply import Outcome
    from clip_client.dedup.store.choices import Choice, ChosenPhoto
    from clip_client.dedup.store.decisions import Decisions
    from clip_client.dedup.store.store import Store

    _Decision = tuple[str, frozenset[tuple[str, int]]]
    """(what was decided, the contents that it is about and the number of files of each)."""
    _Moves = Mapping[tuple[str, str], tuple[str, str]]
    """(run, old path) -> state and method of the move."""


class TakenBack(NamedTuple):
    """The result of :func:`take_back`."""

    outcomes: tuple[Outcome, ...]
    """One outcome for each photo that was in the quarantine."""
    decisions: int
    """Number of groups that are no longer declared different, or all wanted."""


def settle(store: Store, *, taken_back: Collection[str] = ()) -> None:
    """Bring the states of the choices in ``store`` up to date; the caller holds :meth:`.Journal.exclusive`.

    ``taken_back`` holds the paths of photos that a person now restores, whichever run moved them.

    - A choice that waits is undone if it would move a photo of ``taken_back``.
    - A choice that a killed process had begun is done if the journal has moves of it. Otherwise it waits again.
    - A choice that is done is undone if the journal or the decisions no longer have it, or if all its photos are back.
    """
    # Read before anything is written: SQLite does not say what a change means for rows that are still being read.
    choices = [choice for choice in store.choices.all() if choice.state != UNDONE]
    moves = {(run, original): (state, method) for run, original, state, method in store.journal.moves()}
    declared = _recorded(store.decisions)
    changed: defaultdict[str, list[int]] = defaultdict(list)
    for choice in choices:
        state = _state(choice, moves, declared, taken_back)
        if state != choice.state:
            changed[state].append(choice.id)
    for state, ids in changed.items():
        store.choices.set_state(ids, state)


def record(decisions: Decisions, declared: Iterable[tuple[str, Sequence[ChosenPhoto]]]) -> None:
    """Record ``declared``, pairs of (what, photos), except the pairs that a killed process has already recorded."""
    recorded = _recorded(decisions)
    for what, photos in declared:
        if _decision(what, photos) not in recorded:
            decisions.add(what, [photo.sha256 for photo in photos])


def take_back(
    store: Store,
    *,
    run: str | None = None,
    paths: Collection[str] | None = None,
    only: Collection[int] | None = None,
) -> TakenBack:
    """Restore photos as :func:`~.apply.undo` does, and mark the choices that moved them as undone.

    Everything in the quarantine is restored; ``run``, ``paths`` (where the photos were) and ``only`` (ids of entries)
    limit this. With ``run`` alone, the groups that the run declared different or all wanted are taken back, too. Raises
    StoreError if another process moves files with this store.
    """
    with store.journal.exclusive():
        originals = [None] if paths is None else map(os.path.abspath, paths)
        entries = [one for path in originals for one in store.journal.entries(IN_QUARANTINE, run=run, original=path)]
        moved = {one.id: one.files[0].original for one in entries if only is None or one.id in only}
        # Settle first: if this process is killed, a photo that it has restored must not move again.
        settle(store, taken_back=set(moved.values()))
        outcomes = undo(store.journal, only=moved.keys())
        is_whole_run = run is not None and paths is None and only is None
        declared = declared_by(store, run) if is_whole_run else []
        if declared:
            recorded = _recorded(store.decisions)
            # If this process is killed here, the run still has its line in the history.
            store.decisions.remove(
                [one for choice in declared for one in recorded[_decision(choice.what, choice.photos)]]
            )
            store.choices.set_state([choice.id for choice in declared], UNDONE)
        settle(store)
    return TakenBack(outcomes, len(declared))


def declared_by(store: Store, run: str | None) -> list[Choice]:
    """Return the choices that declared photos different or all wanted and still hold: those of ``run``, or all."""
    return [choice for choice in store.choices.all(run=run) if choice.what != KEEP and choice.state == DONE]


def _state(choice: Choice, moves: _Moves, declared: Collection[_Decision], taken_back: Collection[str]) -> str:
    """Return the state of a choice according to the journal, the decisions and the disk."""
    if choice.what != KEEP:
        if choice.state == BEGUN:
            return WAITING  # to record it a second time changes nothing
        is_gone = choice.state == DONE and _decision(choice.what, choice.photos) not in declared
        return UNDONE if is_gone else choice.state
    moving = [photo.path for photo in choice.photos if photo.moves]
    by_run = [moves[choice.run, path] for path in moving if (choice.run, path) in moves]
    states = {state for state, _ in by_run}
    if State.RESTORED in states or (choice.state != DONE and not set(moving).isdisjoint(taken_back)):
        return UNDONE
    if choice.state == BEGUN:
        if State.MOVED in states or State.PURGED in states:
            return DONE
        # Recovery leaves only moves on a disk that is not connected unfinished.
        return BEGUN if states & set(IN_QUARANTINE) else WAITING
    # A hard link has the path of the copy that it replaced.
    is_back = HARDLINK not in {method for _, method in by_run} and all(
        os.path.lexists(one.path) for one in choice.photos
    )
    return UNDONE if choice.state == DONE and is_back else choice.state


def _recorded(decisions: Decisions) -> Mapping[_Decision, list[int]]:
    """Return decision -> its ids in the store."""
    found: defaultdict[_Decision, list[int]] = defaultdict(list)
    for one in decisions.all():
        found[one.what, frozenset(one.files.items())].append(one.id)
    return found


def _decision(what: str, photos: Sequence[ChosenPhoto]) -> _Decision:
    return what, frozenset(Counter(photo.sha256 for photo in photos).items())
