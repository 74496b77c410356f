"""Progress bars on standard error, for people only."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rich.progress import TaskID


@contextmanager
def progress_bars() -> Iterator[Callable[[str, int, int], None]]:
    """Show a bar per kind of work while the block runs; the function given takes (what, done, total).

    Nothing is shown where standard error is not a terminal. The bars vanish with the block.
    """
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    bars: dict[str, TaskID] = {}
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:

        def show(what: str, done: int, total: int) -> None:
            if what not in bars:
                bars[what] = progress.add_task(what)
            progress.update(bars[what], completed=done, total=total)

        yield show
