"""Progress bars on standard error, for people only."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rich.progress import Task, TaskID

    Show: TypeAlias = Callable[[str, int, int | None], None]
    """Takes (what, done, total); the total is None where it is not known yet."""


@contextmanager
def progress_bars() -> Iterator[Show]:
    """Show a bar per kind of work while the block runs, with the rate and the time that is left.

    Nothing is shown where standard error is not a terminal. The bars vanish with the block. What is printed meanwhile
    appears above them.
    """
    from rich.console import Console
    from rich.progress import BarColumn, Progress, ProgressColumn, TextColumn, TimeRemainingColumn
    from rich.text import Text

    class DoneColumn(ProgressColumn):
        def render(self, task: Task) -> Text:
            return Text(_done(task), style="progress.download", justify="right")

    class RateColumn(ProgressColumn):
        def render(self, task: Task) -> Text:
            return Text(_rate(task.finished_speed or task.speed), style="progress.data.speed", justify="right")

    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DoneColumn(),
        RateColumn(),
        TimeRemainingColumn(elapsed_when_finished=True),
    )
    bars: dict[str, TaskID] = {}
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:

        def show(what: str, done: int, total: int | None) -> None:
            if what not in bars:
                bars[what] = progress.add_task(what, total=None)
            progress.update(bars[what], completed=done, total=total)

        yield show


def _done(task: Task) -> str:
    return "" if task.total is None else f"{task.completed:,.0f}/{task.total:,.0f}"


def _rate(per_second: float | None) -> str:
    if per_second is None:
        return ""
    return f"{per_second:,.0f}/s" if per_second >= 99.5 else f"{per_second:.1f}/s"
