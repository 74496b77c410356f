"""Progress bars on standard error, shown only in a terminal."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress, Task, TaskID


class ProgressBars:
    """One bar for each kind of work; call it with (what, done, total), with a total of None if it is unknown."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._bars: dict[str, TaskID] = {}

    def __call__(self, what: str, done: int, total: int | None) -> None:
        """Set the progress of one kind of work."""
        if what not in self._bars:
            self._bars[what] = self._progress.add_task(what, total=None)
        self._progress.update(self._bars[what], completed=done, total=total)

    def say(self, line: str) -> None:
        """Print a line on standard error, above the bars and without wrapping, so that a path in it can be copied."""
        if self._progress.disable:
            print(line, file=sys.stderr)
        else:
            self._progress.console.print(line, markup=False, highlight=False, soft_wrap=True)


@contextmanager
def progress_bars() -> Iterator[ProgressBars]:
    """Show bars while the block runs, with the rate and the remaining time; they disappear with the block.

    No bar is shown if standard error is not a terminal.
    """
    from rich.console import Console
    from rich.progress import BarColumn, Progress, ProgressColumn, TextColumn, TimeRemainingColumn
    from rich.table import Column
    from rich.text import Text

    class DoneColumn(ProgressColumn):
        def render(self, task: Task) -> Text:
            total = "" if task.total is None else f"/{task.total:,.0f}"
            done = f"{task.completed:,.0f}{total}" if total or task.completed else ""
            return Text(done, style="progress.download", justify="right")

    class RateColumn(ProgressColumn):
        def render(self, task: Task) -> Text:
            speed = task.finished_speed or task.speed
            rate = "" if speed is None else f"{speed:,.0f} photos/s" if speed >= 99.5 else f"{speed:.1f} photos/s"
            return Text(rate, style="progress.data.speed", justify="right")

    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=None),  # the width that the other columns leave
        DoneColumn(table_column=Column(no_wrap=True)),
        RateColumn(table_column=Column(no_wrap=True)),
        TimeRemainingColumn(elapsed_when_finished=True),
    )
    is_shown = console.is_terminal
    with Progress(*columns, console=console, transient=True, expand=True, disable=not is_shown) as progress:
        yield ProgressBars(progress)
