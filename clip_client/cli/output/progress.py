"""Progress on standard error: bars in a terminal, otherwise a line every ten seconds."""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
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


def format_rate(rate: float) -> str:
    """Write ``"1,200 photos/s"`` or ``"31.2 photos/s"``."""
    return f"{rate:,.0f} photos/s" if rate >= 99.5 else f"{rate:.1f} photos/s"


def format_left(seconds: float) -> str:
    """Write ``"40 s"``, ``"12 min"`` or ``"3.5 h"``."""
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    return f"{seconds / 60:.0f} min" if seconds < 90 * 60 else f"{seconds / 3600:.1f} h"


class ProgressLines:
    """Says every ten seconds how far the work is; call it with (what, done, total), with a total of None if unknown."""

    def __init__(self, say: Callable[[str], None], *, clock: Callable[[], float] = time.monotonic) -> None:
        self._say = say
        self._clock = clock
        self._said_at = clock()
        self._rates: dict[str, Rate] = {}

    def __call__(self, what: str, done: int, total: int | None) -> None:
        """Take the progress of one kind of work, and print it if it is time."""
        now = self._clock()
        self._rates.setdefault(what, Rate(now, done)).add(now, done)
        if now - self._said_at < _LINE_EVERY_S:
            return
        self._said_at = now
        rate = self._rates[what].at(now)
        parts = [f"{what}: {done:,}" + ("" if total is None else f" of {total:,}")]
        if rate is not None:
            parts.append(format_rate(rate))
            if total is not None and total > done:
                parts.append(f"{format_left((total - done) / rate)} left")
        self._say(f"clip-client: {', '.join(parts)}")


class ProgressBars:
    """Shows each kind of work; call it with (what, done, total), with a total of None if it is unknown."""

    def __init__(self, progress: Progress, *, quiet: bool = False) -> None:
        self._progress = progress
        self._quiet = quiet
        self._bars: dict[str, TaskID] = {}
        self._rates: dict[str, Rate] = {}
        self._lines = ProgressLines(self.say)

    def __call__(self, what: str, done: int, total: int | None) -> None:
        """Set the progress of one kind of work."""
        if self._progress.disable:
            self._lines(what, done, total)
            return
        if total == 0:
            return  # there is nothing to do
        now = time.monotonic()
        if what not in self._bars:
            self._rates[what] = Rate(now, done)
            self._bars[what] = self._progress.add_task(what, total=None, rate=self._rates[what])
        self._rates[what].add(now, done)
        self._progress.update(self._bars[what], completed=done, total=total)

    def say(self, line: str) -> None:
        """Print a line on standard error, above the bars and without wrapping, so that a path in it can be copied."""
        if self._quiet:
            return
        if self._progress.disable:
            print(line, file=sys.stderr)
        else:
            self._progress.console.print(line, markup=False, highlight=False, soft_wrap=True)


@contextmanager
def progress_bars(*, quiet: bool = False) -> Iterator[ProgressBars]:
    """Show progress while the block runs, with the rate and the remaining time; bars disappear with the block.

    If standard error is not a terminal, a line is printed every ten seconds; if ``quiet``, nothing is.
    """
    from rich.console import Console
    from rich.progress import BarColumn, Progress, ProgressColumn, TextColumn
    from rich.table import Column
    from rich.text import Text

    class DoneColumn(ProgressColumn):
        def render(self, task: Task) -> Text:
            total = "" if task.total is None else f"/{task.total:,.0f}"
            done = f"{task.completed:,.0f}{total}" if total or task.completed else ""
            return Text(done, style="progress.download", justify="right")

    class RateColumn(ProgressColumn):
        def render(self, task: Task) -> Text:
            rate = None if task.finished else task.fields["rate"].at(time.monotonic())
            return Text("" if rate is None else format_rate(rate), style="progress.data.speed", justify="right")

    class LeftColumn(ProgressColumn):
        def render(self, task: Task) -> Text:
            rate = None if task.finished else task.fields["rate"].at(time.monotonic())
            if rate is None or task.total is None:
                return Text("")
            return Text(f"{format_left((task.total - task.completed) / rate)} left", style="progress.remaining")

    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=None),  # the width that the other columns leave
        DoneColumn(table_column=Column(no_wrap=True)),
        RateColumn(table_column=Column(no_wrap=True)),
        LeftColumn(table_column=Column(no_wrap=True)),
    )
    is_shown = console.is_terminal and not quiet
    with Progress(*columns, console=console, transient=True, expand=True, disable=not is_shown) as progress:
        yield ProgressBars(progress, quiet=quiet)
