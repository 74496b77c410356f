"""The album of the tests of a review: two groups, their files, and their states."""

from __future__ import annotations

import asyncio
import os
import re
import time
from html import unescape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clip_client.dedup import Store
from clip_client.dedup.aligned import Match
from clip_client.dedup.report import DuplicateReport
from clip_client.dedup.types import BURST, SIMILAR
from clip_client.review.state.applying import Worker
from clip_client.review.state.session import READY, Session
from tests.fixtures.albums import member, report, write
from tests.fixtures.reviews import Review

if TYPE_CHECKING:
    from clip_client.review.state.session import Search

LOOKS_ALIKE = (Match(test="embedding", value=0.9, threshold=0.85),)


def found_in(album: Path) -> DuplicateReport:
    """Make exact copies, and three photos that look alike; the last is a frame of a burst."""
    copies = [write(album / f"{name}.jpg", b"copy") for name in ("a", "b")]
    alike = [write(album / f"{name}.jpg", name.encode()) for name in ("x", "y", "z")]
    looks: list[dict[str, Any]] = [
        {},
        {"tier": SIMILAR, "similarity": 0.9, "matches": LOOKS_ALIKE},
        {"tier": SIMILAR, "similarity": 0.9, "matches": LOOKS_ALIKE, "other_shot": BURST},
    ]
    return report(
        (member(copies[0]), member(copies[1], matches=(Match(test="bytes", value=1, threshold=1),))),
        tuple(member(path, **more) for path, more in zip(alike, looks, strict=True)),
    )


ALL_NAMES = {"a.jpg", "b.jpg", "x.jpg", "y.jpg", "z.jpg"}


def session_of(store: Store, root: Path, search: Search, kind: type[Session] = Session) -> Session:
    session = kind(store, [str(root)])
    asyncio.run(session.search(search))
    assert session.phase == READY, session.error
    return session


def done(review: Review, path: str, body: Any = None) -> dict[str, Any]:
    """Begin a job, wait for it, and return what it says."""
    answer = review.post(path, body)
    assert answer.status == 200, answer.text
    return finished(review)


def finished(review: Review) -> dict[str, Any]:
    """Wait for the job that is running, and return what it says."""
    while (job := review.get("/state").json["job"])["is_running"]:
        time.sleep(0.005)
    return dict(job)


def applied(review: Review) -> str:
    """Plan and apply everything; return the name of the run."""
    job = done(review, "/apply", {"plan": done(review, "/plan")["number"]})
    assert job["error"] == ""
    return str(job["run"])


def apply_all(session: Session) -> None:
    """Plan and apply everything without a server."""
    worker = Worker(session)
    worker.plan(merge_metadata=False)
    worker.join()
    assert worker.job is not None
    worker.apply(worker.job.number)
    worker.join()
    assert worker.job.error == ""


def plan_lines(review: Review) -> dict[str, list[tuple[int, str]]]:
    """Return title of a part of the plan page -> the group and the path of each photo in it."""
    above = os.path.dirname(review.session.roots[0])
    parts = review.get("/plan").text.split('<section class="after plan">\n<h2>')[1:]
    return {
        part.partition(" <")[0]: [
            (int(group), os.path.join(above, unescape(path)))
            for group, path in re.findall(r'<a href="groups/(\d+)"><bdi>(.*?)</bdi>', part)
        ]
        for part in parts
    }


def moving(review: Review) -> set[str]:
    return {path for _, path in plan_lines(review).get("To the quarantine", [])}


def names(album: Path) -> set[str]:
    return {path.name for path in album.glob("*.jpg")}


def states(review: Review) -> dict[str, str]:
    """Return tier -> state; each group has another tier."""
    return {total["tier"]: total["state"] for total in review.get("/state").json["totals"]}
