"""A server that is killed while it applies choices: nothing is lost, and the next one continues."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING

from clip_client.dedup import Store
from clip_client.dedup.store.decisions import KEEP_ALL
from clip_client.dedup.store.journal import State
from clip_client.review.state.applying import Worker
from clip_client.review.state.session import READY, Session
from tests.fixtures.albums import files, searched, write
from tests.fixtures.crashes import contents, die_before
from tests.unit.review.albums import apply_all

if TYPE_CHECKING:
    from pathlib import Path

    from clip_client.dedup.report import DuplicateReport
    from clip_client.dedup.types import OnProgress
    from tests.fixtures.crashes import Kills

STRIDE = 7
"""Of about 80 steps, the kills come before each of these."""


def opened(store: Store, root: Path, found: DuplicateReport | None = None) -> Session:
    """A session after its search."""
    session = Session(store, [str(root)])

    async def search(_on_progress: OnProgress) -> DuplicateReport:
        return found if found is not None else await asyncio.to_thread(searched, root)

    asyncio.run(session.search(search))
    assert session.phase == READY, session.error
    return session


def apply_killed(root: Path, place: Path, found: DuplicateReport, step: int) -> None:
    with Store(place) as store:
        session = opened(store, root, found)
        die_before(step)
        apply_all(session)


def test_a_kill_while_choices_are_applied_loses_nothing_and_the_next_session_continues(kills: Kills) -> None:
    moved_before = set()
    for folder in kills.every(STRIDE):
        root, place = folder / "root", folder / "store"
        for number in range(3):
            for name in ("a", "b"):
                write(root / f"{number}{name}.nef", b"copy %d" % number)
        before, photos, found = files(root), contents(root), searched(root)
        with Store(place) as store:
            session = opened(store, root, found)
            session.choose(1, "keep", keep=0, move=[1])
            session.choose(2, KEEP_ALL)
            session.choose(3, "keep", keep=1, move=[0])
        kills.kill(apply_killed, root, place, found, kills.step, before_step=sys.maxsize)
        assert contents(root) == photos
        with Store(place) as store:
            unfinished = store.journal.entries([State.PLANNED])
            session = opened(store, root)
            assert bool(session.notice) == bool(unfinished)
            # What was moved before the kill is gone from the search; the other choices wait as they were.
            moved = {entry.files[0].original for entry in store.journal.entries(["moved"])}
            moved_before.add(len(moved))
            waiting = {photo.path for choice in store.choices.all() if not choice.run for photo in choice.photos}
            assert waiting.isdisjoint(moved)
            apply_all(session)
            runs = sorted(store.journal.runs(), reverse=True)
            assert sorted(path.name for path in root.glob("*.nef")) == ["0a.nef", "1a.nef", "1b.nef", "2b.nef"]
            assert [one.what for one in store.decisions.all()] == [KEEP_ALL]
            assert all(choice.run for choice in store.choices.all())
            worker = Worker(session)
            for run in runs:
                worker.restore(run)
                worker.join()
        assert files(root) == before, f"killed before step {kills.step}"
    assert kills.step > 5 * STRIDE
    assert moved_before == {0, 1, 2}
