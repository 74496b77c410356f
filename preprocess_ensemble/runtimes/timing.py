"""Which of two sessions of one model is faster on this processor, measured while the model is loaded."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from preprocess_ensemble.contract import EMBEDDING, PIXELS, STATUS, TOKENS
from preprocess_ensemble.cores import usable_cores

if TYPE_CHECKING:
    import numpy.typing as npt

    from preprocess_ensemble.runtimes.agreement import Rows
    from preprocess_ensemble.runtimes.model import Session

ROWS: Final = (1, 8)
"""Sizes of the batches that are timed: one caller, and a server with some."""

_PAUSE_S: Final = 0.1
"""Rest before a session's turn. A thread of ONNX Runtime spins for 45 ms after a run, on a core that the other session
needs: on two cores of an AMD EPYC, OpenVINO then took 44 ms for a row instead of 27 ms."""

_TURN_S: Final = 0.1
"""A session repeats a batch for this long in each turn; the fastest run counts, because other work only slows it."""

_LIMIT_S: Final = 2.0
"""Two sessions that are about equally fast share this time: about one second each."""

_LEAST_TURNS: Final = 2
_CLEAR: Final = 1.25
"""Ratio of two speeds after which no further turn is needed."""

_LONG_S: Final = 1.0
"""If a larger batch would take longer, only one row is timed: large models keep all cores busy with that."""

CONTENDED: Final = 0.2
"""Share of the time for which this process's threads wait for a core, per core, above which other work decides the
result. On two cores it was 0.12 when the ratios came out right to a tenth, and 0.65 to 0.85 at a load average of 13,
where bf16, which was twice as fast, came out at 0.8 to 2.4."""

_TASKS: Final = Path("/proc/self/task")


def _waited_s() -> float:
    """Return how long the threads of this process have waited for a core so far, per core; 0 where Linux is not."""
    waited_ns = 0
    for file in _TASKS.glob("*/schedstat"):
        with suppress(OSError):  # the thread has ended
            waited_ns += int(file.read_text(encoding="ascii").split()[1])
    return waited_ns / 1e9 / usable_cores()


@dataclass(frozen=True, kw_only=True)
class Timer:
    """A clock, a way to wait, and how long threads have waited for a core; all in seconds. Tests have their own."""

    now: Callable[[], float] = time.perf_counter
    wait: Callable[[float], None] = time.sleep
    waited: Callable[[], float] = _waited_s


@dataclass(frozen=True, kw_only=True)
class Timing:
    """How fast a session is."""

    speed: float
    """How many times as fast as the reference: the geometric mean over the sizes of ROWS."""
    waiting: float
    """Share of the time for which threads waited for a core; more than CONTENDED makes ``speed`` doubtful."""


def time_against(session: Session, reference: Session, sample: Rows, timer: Timer) -> Timing:
    """Time a session and ``reference``.

    ``sample`` is the model's input: pixels (8, H, W, 3) uint8, or token ids (8, L) int32. The sessions take turns, so
    that both meet the same other work on the machine. Raises what they raise.
    """
    start, waited = timer.now(), timer.waited()
    feeds: list[Mapping[str, npt.NDArray[Any]]] = [
        {PIXELS if sample.ndim == 4 else TOKENS: sample[:rows], STATUS: np.zeros((rows, 1), np.int32)} for rows in ROWS
    ]
    # The first run prepares memory and kernels, and so is never the fastest.
    row_s = max(_run_s(one, feeds[0], timer) for one in (session, reference))
    if row_s * ROWS[-1] > _LONG_S:
        feeds = feeds[:1]
    fastest_s = np.full((2, len(feeds)), math.inf)
    turns = 0
    while True:
        turns += 1
        for number, one in enumerate((session, reference)):
            timer.wait(_PAUSE_S)
            for size, feed in enumerate(feeds):
                fastest_s[number, size] = min(fastest_s[number, size], _fastest_run_s(one, feed, timer))
        speed = float(np.exp(np.log(fastest_s[1] / fastest_s[0]).mean()))
        is_clear = not 1 / _CLEAR <= speed <= _CLEAR
        spent_s = timer.now() - start
        if turns >= _LEAST_TURNS and (is_clear or spent_s >= _LIMIT_S):
            return Timing(speed=speed, waiting=(timer.waited() - waited) / spent_s)


def _fastest_run_s(session: Session, feed: Mapping[str, npt.NDArray[Any]], timer: Timer) -> float:
    end = timer.now() + _TURN_S
    fastest = _run_s(session, feed, timer)
    while timer.now() < end:
        fastest = min(fastest, _run_s(session, feed, timer))
    return fastest


def _run_s(session: Session, feed: Mapping[str, npt.NDArray[Any]], timer: Timer) -> float:
    start = timer.now()
    session.run([EMBEDDING], feed)
    return timer.now() - start
