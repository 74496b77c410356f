"""Progress on standard error: bars in a terminal, otherwise a line every ten seconds."""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from rich.progress import Progress, Task, TaskID

_LINE_EVERY_S: Final = 10.0

_WINDOW_S: Final = 30.0
"""The rate is that of the last half minute."""

_SHORTEST_S: Final = 1.0
"""Photos finish in batches: in less time than this, one batch looks like thousands a second."""


class Rate:
    """Photos per second over the last half minute, from the first second on."""

    def __init__(self, now: float, done: int) -> None:
        self._samples: deque[tuple[float, int]] = deque([(now, done)])

    def add(self, now: float, done: int) -> None:
        """Take the count at a time; samples closer than a fifth of a second replace each other."""
        if len(self._samples) > 1 and now - self._samples[-2][0] < 0.2:
            self._samples.pop()
        self._samples.append((now, done))
        while len(self._samples) > 2 and now - self._samples[1][0] >= _WINDOW_S:
            self._samples.popleft()

    def at(self, now: float) -> float | None:
        """Return the rate, or None if it is too early to tell; it falls while nothing arrives."""
        (since, before), (_, done) = self._samples[0], self._samples[-1]
        return (done - before) / (now - since) if done > before and now - since >= _SHORTEST_S else None

    def in_words(self, now: float, total: float | None) -> list[str]:
        """Return such as ``["31.2 photos/s", "12 min left"]``, as far as they are known."""
        rate = self.at(now)
        if rate is None:
            return []
        said = [f"{rate:,.0f} photos/s" if rate >= 99.5 else f"{rate:.1f} photos/s"]
        left = 0 if total is None else total - self._samples[-1][1]
        return [*said, f"{_duration(left / rate)} left"] if left > 0 else said


def _duration(seconds: float) -> str:
    """Write ``"40 s"``, ``"12 min"`` or ``"3.5 h"``."""
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    return f"{seconds / 60:.0f} min" if seconds < 90 * 60 else f"{seconds / 3600:.1f} h"


class ProgressBars:
    """Shows each kind of work; call it with (what, done, total), with a total of None if it is unknown.

    ``progress`` draws the bars. Without it, ``print_line`` gets a line every ten seconds.
    """

    def __init__(
        self,
        progress: Progress | None,
        print_line: Callable[[str], None],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._progress = progress
        self.say = print_line
        self._clock = clock
        self._said_at = clock()
        self._rates: dict[str, Rate] = {}
        self._bars: dict[str, TaskID] = {}

    def __call__(self, what: str, done: int, total: int | None) -> None:
        """Take the progress of one kind of work, and show it."""
        now = self._clock()
        rate = self._rates.setdefault(what, Rate(now, done))
        rate.add(now, done)
        if self._progress is not None and total != 0:
            if what not in self._bars:
                self._bars[what] = self._progress.add_task(what, total=None, rate=rate)
            self._progress.update(self._bars[what], completed=done, total=total)
        elif self._progress is None and now - self._said_at >= _LINE_EVERY_S:
            self._said_at = now
            parts = [f"{done:,}" + ("" if total is None else f" of {total:,}"), *rate.in_words(now, total)]
            self.say(f"clip-client: {what}: {', '.join(parts)}")


@contextmanager
def progress_bars(*, quiet: bool = False) -> Iterator[ProgressBars]:
    """Show progress while the block runs, with the rate and the remaining time; bars disappear with the block.

    If standard error is not a terminal, a line is printed every ten seconds; if ``quiet``, nothing is.
    """
    from rich.console import Console
    from rich.progress import BarColumn, Progress, ProgressColumn, TextColumn
    from rich.table import Column
    from rich.text import Text

    class StateColumn(ProgressColumn):
        def render(self, task: Task) -> Text:
            total = "" if task.total is None else f"/{task.total:,.0f}"
            done = f"{task.completed:,.0f}{total}" if total or task.completed else ""
            more = () if task.finished else task.fields["rate"].in_words(time.monotonic(), task.total)
            return Text("  ").join([Text(done, style="progress.download"), *(Text(one, style="cyan") for one in more)])

    console = Console(stderr=True)
    if quiet or not console.is_terminal:
        yield ProgressBars(None, (lambda line: None) if quiet else (lambda line: print(line, file=sys.stderr)))
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=None),  # the width that the other column leaves
        StateColumn(table_column=Column(no_wrap=True, justify="right")),
    )
    with Progress(*columns, console=console, transient=True, expand=True) as progress:
        # Above the bars and without wrapping, so that a path in it can be copied.
        yield ProgressBars(progress, partial(console.print, markup=False, highlight=False, soft_wrap=True))
