"""``clip-client similar``: which photos look like this one?"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
from collections.abc import Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from clip_client.cli.errors import CommandFailed, need
from clip_client.cli.options.connection import add_model_options, connected, read_config
from clip_client.cli.options.numbers import count
from clip_client.cli.output.progress import ProgressBars, progress_bars
from clip_client.cli.output.vector_folder import VectorFolder, is_vector_folder
from clip_client.dedup import FailedFile, scan
from clip_client.dedup.text import counted, printable
from clip_client.dedup.types import is_random

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from clip_client import ClipClient

_TOP: Final = 10


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command's options."""
    parser = commands.add_parser(
        "similar",
        help="find the photos most similar to a photo",
        description="Find the photos most similar to PHOTO. If DIR is a folder that `clip-client embed --output DIR` "
        "filled, its vectors are searched. Any other folder is searched for photos, with all its subfolders, and the "
        "photos are embedded first. PHOTO itself is not listed.",
    )
    parser.add_argument("photo", metavar="PHOTO", help="the photo to find similar ones for")
    parser.add_argument(
        "--in", dest="folder", required=True, type=Path, metavar="DIR", help="a folder of vectors or of photos"
    )
    add_model_options(parser)
    parser.add_argument(
        "--top", type=count, default=_TOP, metavar="K", help=f"how many photos to list (default: {_TOP})"
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Search, and print the most similar photos."""
    need("rich")
    if not os.path.isdir(arguments.folder):
        raise CommandFailed(f"there is no folder {arguments.folder}")
    with progress_bars() as show:
        found = asyncio.run(_search(arguments, show))
    if found.compared == 0 and not arguments.json:
        raise CommandFailed(f"there is no photo to compare with in {arguments.folder}")
    if arguments.json:
        print(json.dumps(asdict(found), indent=2))
    else:
        _print_table(found)
    return 0 if found.compared else 1


async def _search(arguments: argparse.Namespace, show: ProgressBars) -> _Found:
    async with connected(read_config(arguments)) as clip:
        batch = await clip.embed(arguments.photo)
        if batch.errors:
            raise CommandFailed(f"{arguments.photo} cannot be compared: {batch.errors[0].message}")
        model = await clip.model()
        # One more than requested, because the photo itself may be among them.
        nearest = Nearest(batch.vectors[0], arguments.top + 1)
        failed: Sequence[FailedFile] = ()
        skipped: Mapping[str, int] = {}
        if is_vector_folder(arguments.folder):
            need("pyarrow.parquet")
            for paths, vectors in VectorFolder(arguments.folder, model).vectors():
                nearest.add([os.fsdecode(path) for path in paths], vectors)
        else:
            failed, skipped = await _embed_photos(clip, arguments.folder, nearest, show)
    others = [_Similar(path, round(cosine, 6)) for cosine, path in nearest.best if not _is_same(path, arguments.photo)]
    return _Found(
        photo=arguments.photo,
        model=model.id,
        vector_id=model.vector_id,
        compared=nearest.compared,
        similar=others[: arguments.top],
        failed=failed,
        skipped=skipped,
    )


async def _embed_photos(
    clip: ClipClient, folder: Path, nearest: Nearest, show: ProgressBars
) -> tuple[Sequence[FailedFile], Mapping[str, int]]:
    """Compare the photos of a folder; return what could not be compared, and how many files of which kinds are none."""
    found = scan([folder])
    failed = list(found.failed)
    async with aclosing(clip.embed_stream(found.photos, ordered=False)) as items:
        async for item in items:
            path = found.photos[item.index]
            if item.vector is not None:
                nearest.add([path], item.vector[None])
            elif item.error is not None:
                failed.append(FailedFile(path=path, code=item.error.code, message=item.error.message))
            show("embedding", nearest.compared + len(failed) - len(found.failed), len(found.photos))
    return sorted(failed, key=lambda failure: os.fsencode(failure.path)), found.skipped


class Nearest:
    """The paths of the vectors nearest to one vector of length 1; any number of vectors can be added."""

    def __init__(self, vector: NDArray[np.float32], most: int) -> None:
        self.best: Sequence[tuple[float, str]] = ()
        """Cosine and path, at most ``most``, the nearest first; equal cosines in the order of their paths."""
        self.compared = 0
        self._vector = vector
        self._most = most

    def add(self, paths: Sequence[str], vectors: NDArray[np.float32]) -> None:
        """Compare vectors (n, D) of length 1."""
        self.compared += len(paths)
        cosines = vectors @ self._vector
        nearest = [(float(cosines[row]), paths[row]) for row in cosines.argsort()[::-1][: self._most]]
        by_cosine = sorted([*self.best, *nearest], key=lambda entry: (-entry[0], os.fsencode(entry[1])))
        self.best = by_cosine[: self._most]


@dataclass(frozen=True)
class _Similar:
    path: str
    similarity: float


@dataclass(frozen=True, kw_only=True)
class _Found:
    """The fields are the keys of the JSON form."""

    photo: str
    model: str
    vector_id: str
    compared: int
    similar: Sequence[_Similar]
    failed: Sequence[FailedFile]
    skipped: Mapping[str, int]


def _print_table(found: _Found) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from clip_client.dedup.reporting.terminal import print_failed, print_skipped

    console = Console()
    table = Table(show_edge=False, pad_edge=False)
    table.add_column("cosine", justify="right", no_wrap=True)
    table.add_column("photo", overflow="fold")
    for similar in found.similar:
        missing = "" if os.path.exists(similar.path) else " (missing)"
        table.add_row(f"{similar.similarity:.4f}", Text.assemble(printable(similar.path), (missing, "yellow")))
    console.print(table)
    print_failed(found.failed, console)
    print_skipped(found.skipped, console)
    console.print(
        f"{counted(found.compared, 'photo')} compared, {counted(len(found.failed), 'file')} not compared, "
        f"model {found.model}",
        markup=False,
        highlight=False,
        soft_wrap=True,
    )
    if is_random(found.model):
        console.print(
            "The weights of this model are random: it can only tell copies of a photo from other photos.",
            style="yellow",
            soft_wrap=True,
        )


def _is_same(path: str, photo: str) -> bool:
    with suppress(OSError, ValueError):
        return os.path.samefile(path, photo)
    return False
