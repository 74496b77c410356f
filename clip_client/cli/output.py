"""The output of commands: files that are written whole or not at all, folders with one writer, and progress."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Final

from clip_client._storage.lock import AlreadyLocked, exclusive_lock
from clip_client.cli.errors import CommandFailed, CommandMisused
from clip_client.dedup.files.file_types import COMPANION_KINDS, PHOTO_SUFFIXES, suffix_of
from preprocess_ensemble.command_line import user_path
from preprocess_ensemble.whole_file import whole_file

if TYPE_CHECKING:
    from rich.progress import Progress, Task, TaskID

STDOUT: Final = Path("-")
_RATE_AFTER_S: Final = 1.0  # what is known at the start, such as cached results, comes at once and tells no rate
_LINE_EVERY_S: Final = 10.0  # pause between lines of progress; a terminal shows bars


def _page_path(text: str) -> Path:
    if text.lower().endswith((".html", ".htm")):
        return user_path(text)
    raise argparse.ArgumentTypeError(f"the report is an HTML page: give it a name that ends in .html, not {text!r}")


_OUTPUTS: Final = {  # option -> metavar, type, help
    "json": ("FILE", user_path, "write {} as JSON; - writes only JSON to standard output"),
    "csv": ("FILE", user_path, "write {} as CSV; - writes only CSV to standard output"),
    "report": ("FILE.html", _page_path, "write an HTML page that shows {}"),
}


def add_output_options(parser: argparse._ActionsContainer, **contents: str) -> None:
    """Add the options of :data:`_OUTPUTS` that ``contents`` names, each with what it writes."""
    for name, content in contents.items():
        metavar, kind, meaning = _OUTPUTS[name]
        parser.add_argument(f"--{name}", type=kind, metavar=metavar, help=meaning.format(content))


def add_quiet_option(parser: argparse._ActionsContainer) -> None:
    parser.add_argument("--quiet", "-q", action="store_true", help="print only errors, and output that goes to -")


def read_outputs(arguments: argparse.Namespace) -> tuple[Path, ...]:
    outputs = tuple(path for name in _OUTPUTS if (path := getattr(arguments, name, None)) is not None)
    for path in outputs:
        check_place(path)
    if len(set(map(os.path.abspath, outputs))) < len(outputs):
        raise CommandMisused("--json, --csv and --report cannot write the same file: name different files")
    return outputs


def write_json(path: Path | None, value: object) -> bool:
    """Write a value as ASCII to the file of ``--json``, if any; tell whether that is standard output."""
    if path is not None:
        write_text(path, [json.dumps(value, indent=2), "\n"])
    return path == STDOUT


def write_text(path: Path, pieces: Iterable[str]) -> None:
    with output(path) as file:
        file.writelines(piece.encode() for piece in pieces)


def check_place(path: Path) -> None:
    """Raise CommandFailed if a file cannot be written, or CommandMisused if it is named like a photo or a sidecar."""
    if suffix_of(path.name) in PHOTO_SUFFIXES | COMPANION_KINDS.keys() - {".json"}:
        raise CommandMisused(f"{path} is named like a photo or its sidecar; choose another output file")
    if os.path.isdir(path):
        raise CommandFailed(f"cannot write {path}: it is a folder")
    if not os.path.isdir(path.parent):
        raise CommandFailed(f"cannot write {path}: there is no folder {path.parent}")


@contextmanager
def replacing(path: Path, *, final: Callable[[], Path] | None = None) -> Iterator[IO[bytes]]:
    """Open a new file that replaces ``path`` at the end of the block; if the block raises, ``path`` stays as it was.

    A ``path`` that is not a regular file, such as ``/dev/stdout``, is written directly. ``final`` is called at the end
    and returns the file to replace, in the same folder. Raises CommandFailed if the file cannot be written.
    """
    check_place(path)
    try:
        # Use os.path: the methods of Path raise if a folder above cannot be read.
        if os.path.exists(path) and not os.path.isfile(path):
            with open(path, "wb") as file:
                yield file
        else:
            with whole_file(path, final=final) as file:
                yield file
    except OSError as error:
        raise CommandFailed(f"cannot write {path}: {error.strerror or error}") from error


@contextmanager
def output(path: Path) -> Iterator[IO[bytes]]:
    if path != STDOUT:
        with replacing(path) as file:
            yield file
    else:
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Make ``folder``, and hold its lock for the block. Raises CommandFailed if another process or the disk refuses."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CommandFailed(f"cannot write into {folder}: {error.strerror}") from None
    try:
        lock = exclusive_lock(folder / ".lock")
    except AlreadyLocked:
        raise CommandFailed(f"another clip-client is writing into {folder}; wait for it, or stop it") from None
    except OSError as error:
        reason = error.strerror or error
        raise CommandFailed(f"cannot lock {folder}: {reason}; choose a folder on another disk") from None
    with lock:
        yield


class ProgressBars:
    """Shows (what, done, total or None) as bars if ``progress`` was started, and ``in_lines`` through ``say``."""

    def __init__(self, progress: Progress, say: Callable[[str], None], *, in_lines: bool) -> None:
        self.say = say
        self._progress = progress
        self._in_lines = in_lines
        self._said_at = progress.get_time()
        self._bars: dict[str, TaskID] = {}

    def __call__(self, what: str, done: int, total: int | None) -> None:
        if total == 0:
            return
        if what not in self._bars:
            self._bars[what] = self._progress.add_task(what, total=None)
        self._progress.update(self._bars[what], completed=done, total=total)
        now = self._progress.get_time()
        if self._in_lines and now - self._said_at >= _LINE_EVERY_S:
            self._said_at = now
            (task,) = (task for task in self._progress.tasks if task.id == self._bars[what])
            self.say(f"clip-client: {what}: {', '.join(_in_words(task, ' of '))}")


def _in_words(task: Task, of: str) -> list[str]:
    """Return the known parts of ``["1,200 of 5,000", "31.2 photos/s", "12 min left"]``, or ``["..."]``."""
    total = "" if task.total is None else f"{of}{task.total:,.0f}"
    said = [f"{task.completed:,.0f}{total}" if task.completed or total else "..."]
    if task.speed and not task.finished and (task.elapsed or 0) >= _RATE_AFTER_S:
        said.append(f"{task.speed:,.{0 if task.speed >= 100 else 1}f} photos/s")
        if (left_s := task.time_remaining) is not None:
            said.append(f"{_duration(left_s)} left")
    return said


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    return f"{seconds / 60:.0f} min" if seconds < 90 * 60 else f"{seconds / 3600:.1f} h"


@contextmanager
def progress_bars(*, quiet: bool = False) -> Iterator[ProgressBars]:
    """Show the progress of the block: bars in a terminal, else a line every ten seconds; nothing if ``quiet``."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, ProgressColumn, TextColumn
    from rich.table import Column
    from rich.text import Text

    class StateColumn(ProgressColumn):
        def render(self, task: Task) -> Text:
            done, *more = _in_words(task, "/")
            return Text("  ").join([Text(done, style="progress.download"), *(Text(one, style="cyan") for one in more)])

    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=None),  # fills the rest of the width
        StateColumn(table_column=Column(no_wrap=True, justify="right")),
    )
    progress = Progress(*columns, console=console, transient=True, expand=True)
    if quiet or not console.is_terminal:
        say = (lambda line: None) if quiet else partial(print, file=sys.stderr)
        yield ProgressBars(progress, say, in_lines=True)
        return
    with progress:
        # Print lines above the bars and without wrapping, so that a path in a line can be copied.
        say = partial(console.print, markup=False, highlight=False, soft_wrap=True)
        yield ProgressBars(progress, say, in_lines=False)
