"""How long does a person wait for the next group on the review pages?

Reports of 100 to 100,000 groups of three photos that do not exist are served by the real server, one report in each
process. Every time is that of a whole HTTP request without pictures: the first page after the search has ended, other
pages of the list, group after group, a decision, and how much keep rules would choose for all groups: the first rules
that are tried, others that keep the same photos, and others that keep another photo of every group. Memory is that of
the process after the requests, compared with the same process before there was a report.
"""

from __future__ import annotations

import asyncio
import gc
import json
import queue
import re
import tempfile
import time
from contextlib import ExitStack, closing
from dataclasses import replace
from html import unescape
from http.client import HTTPConnection
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

import psutil
from anyio.from_thread import start_blocking_portal

from benchmarks.harness.experiment import Run, experiment, option
from benchmarks.harness.meters import in_new_process
from benchmarks.harness.results import percentiles, show
from clip_client.dedup import Store, thresholds_for
from clip_client.dedup.aligned import Alignment, Match
from clip_client.dedup.group import DuplicateGroup, Member, Verdict
from clip_client.dedup.photo import ImageFeatures, Photo
from clip_client.dedup.report import DuplicateReport
from clip_client.dedup.types import BY_DEFAULT, EXACT, RE_ENCODED, CaptureTime, Metadata
from clip_client.review.server import serve
from clip_client.review.state.session import Session

if TYPE_CHECKING:
    from clip_client.dedup.types import OnProgress

_MODEL: Final = "ViT-B-32/laion2b_s34b_b79k@00000000"
_REQUESTS: Final = 200
_RULES: Final = {"first": "pixels", "same": "bytes", "other": "smallest"}
_ALIGNED: Final = Alignment(
    tier=RE_ENCODED, changes=("half the size",), lost=(), transform=(2, 0, 0, 0, 2, 0),
    residual=0.02, region=None, region_share=0,
)  # fmt: skip
_MATCHES: Final = (Match(test="alignment", value=1, threshold=1, alignment=_ALIGNED),)


def group(number: int) -> DuplicateGroup:
    """Return a photo and two smaller copies, with the metadata that a camera writes."""
    metadata = Metadata(taken="2024-05-17T12:30:05", lens="RF24-105mm F4 L IS USM", has_exposure=True)
    features = ImageFeatures(
        width=6000, height=4000, format="JPEG", metadata=metadata,
        capture_time=CaptureTime(taken_ms=number * 1000, camera="Canon Canon EOS R5", fields=60),
    )  # fmt: skip
    photos = [
        Photo(
            path=f"/photos/{number // 1000:03d}/copy {place}/IMG_{number:07d}.jpg",
            sha256=f"{number:032x}{place:032x}",
            size_bytes=8_000_000 // (place + 1) + number,
            features=replace(features, width=6000 // (place + 1), height=4000 // (place + 1)),
        )
        for place in range(3)
    ]
    verdict = Verdict(kept=photos[0].path, tier=RE_ENCODED, moves=BY_DEFAULT)
    copies = (
        Member(photo=photo, similarity=0.99, tier=RE_ENCODED, matches=_MATCHES, verdict=verdict) for photo in photos[1:]
    )
    return DuplicateGroup(
        tier=RE_ENCODED,
        min_similarity=0.99,
        reason="most pixels: 6000x4000, next 3000x2000",
        members=(Member(photo=photos[0], similarity=1.0, tier=EXACT), *copies),
    )


class Browser:
    """One connection to the server at its secret address."""

    def __init__(self, address: str) -> None:
        url = urlsplit(address)
        self._connection = HTTPConnection(url.netloc, timeout=300)
        self._headers = {"Origin": f"http://{url.netloc}"}
        self._secret = url.path.rstrip("/")
        self.close = self._connection.close

    def answer(self, path: str, body: Any = None) -> bytes:
        """Send a request; return its answer."""
        data = None if body is None else json.dumps(body)
        self._connection.request("GET" if body is None else "POST", self._secret + path, data, self._headers)
        response = self._connection.getresponse()
        answer = response.read()
        assert response.status == 200, answer
        return answer

    def ms(self, path: str, body: Any = None) -> float:
        """Send a request, and again while its answer says how to go on; return the milliseconds that this took."""
        started, query = time.perf_counter(), ""
        while goes_on := re.search(rb'data-goes-on="([^"]*)"', self.answer(path + query, body)):
            query = "&" + unescape(goes_on[1].decode())
        return (time.perf_counter() - started) * 1000


def memory_mb() -> float:
    gc.collect()
    return float(psutil.Process().memory_info().rss / 1e6)


def measure_one(groups: int) -> dict[str, Any]:
    """Serve a report of ``groups`` groups, and time the requests of one person."""
    addresses: queue.Queue[str] = queue.Queue()
    found_at = 0.0

    async def search(_on_progress: OnProgress) -> DuplicateReport:
        nonlocal found_at
        await asyncio.sleep(0.2)  # until the memory before has been read
        found = await asyncio.to_thread(lambda: tuple(map(group, range(groups))))
        found_at = time.perf_counter()
        thresholds = thresholds_for(_MODEL)
        return DuplicateReport(model=_MODEL, thresholds=thresholds, compared=3 * groups, groups=found, failed=())

    with ExitStack() as stack:
        store = stack.enter_context(Store(stack.enter_context(tempfile.TemporaryDirectory())))
        portal = stack.enter_context(start_blocking_portal())
        session = Session(store, ["/photos"])
        running = portal.start_task_soon(lambda: serve(session, search, say=addresses.put))
        browser = stack.enter_context(closing(Browser(addresses.get().partition(": ")[2])))
        browser.answer("/")
        before_mb = memory_mb()
        while json.loads(browser.answer("/state"))["phase"] == "scanning":
            time.sleep(0.01)
        browser.answer("/")
        first_s = time.perf_counter() - found_at
        numbers = range(1, groups + 1, max(1, groups // _REQUESTS))[:_REQUESTS]
        choice = {"what": "keep", "keep": 0, "move": [1, 2]}
        result = {
            "groups": groups,
            "first_s": first_s,
            "pages_ms": [browser.ms(f"/?start={number}") for number in numbers],
            "next_ms": [browser.ms(f"/groups/{number}?state=open") for number in numbers],
            "decision_ms": [browser.ms(f"/groups/{number}/choice", choice) for number in numbers],
            "rules_s": {name: browser.ms(f"/rules/count?rule={rule}") / 1000 for name, rule in _RULES.items()},
            "memory_mb": memory_mb() - before_mb,
        }
        running.cancel()
    return result


@experiment(
    option("--groups", type=int, nargs="+", default=[100, 1_000, 10_000, 100_000], help="numbers of groups"),
)
def measure(run: Run) -> dict[str, Any]:
    results = [in_new_process(measure_one, groups) for groups in run.options.groups]
    rows = {}
    for one in results:
        times = {name: percentiles(one[name]) for name in ("pages_ms", "next_ms", "decision_ms")}
        rows[f"{one['groups']:,} groups"] = {
            "first page, s": one["first_s"],
            **{f"{name}, {share}": of[share] for name, of in times.items() for share in ("p50", "p95")},
            **{f"{name} rules, s": seconds for name, seconds in one["rules_s"].items()},
            "memory, MB": one["memory_mb"],
        }
    show("Review pages: requests without pictures", rows)
    return {"review": results}
