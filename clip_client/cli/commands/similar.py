"""``clip-client similar``: which photos look like this one?"""

from __future__ import annotations

import argparse
import asyncio
import heapq
import json
import os
from contextlib import aclosing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from clip_client.cli.errors import CommandFailed, need
from clip_client.cli.options.connection import add_model_options, connected, read_connection
from clip_client.cli.output.progress import progress_bars

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray

    from clip_client import ClipClient, ModelInfo
    from clip_client.cli.output.progress import ProgressBars
    from clip_client.dedup import FailedFile

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
        "--top", type=_count, default=_TOP, metavar="K", help=f"how many photos to list (default: {_TOP})"
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
        print(json.dumps(found.to_mapping(), indent=2))
    else:
        _print_table(found)
    return 0 if found.compared else 1


async def _search(arguments: argparse.Namespace, show: ProgressBars) -> _Found:
    from clip_client.cli.output.vector_folder import VectorFolder, is_vector_folder

    async with connected(read_connection(arguments)) as clip:
        batch = await clip.embed(arguments.photo)
        if batch.errors:
            raise CommandFailed(f"{arguments.photo} cannot be compared: {batch.errors[0].message}")
        # One more than requested, because the photo itself may be among them.
        nearest = _Nearest(batch.vectors[0], arguments.top + 1)
        failed: Sequence[FailedFile] = ()
        if is_vector_folder(arguments.folder):
            need("pyarrow.parquet")
            model = await clip.model()
            folder = VectorFolder(
                arguments.folder, model_id=model.id, vector_id=batch.vector_id, dimension=model.dimension
            )
            for paths, vectors in folder.vectors():
                nearest.add([os.fsdecode(path) for path in paths], vectors)
        else:
            failed = await _embed_photos(clip, arguments.folder, nearest, show)
        others = [(path, cosine) for cosine, path in nearest.best() if not _is_same(path, arguments.photo)]
        return _Found(
            photo=arguments.photo,
            model=await clip.model(),
            compared=nearest.compared,
            similar=others[: arguments.top],
            failed=failed,
        )


async def _embed_photos(clip: ClipClient, folder: Path, nearest: _Nearest, show: ProgressBars) -> Sequence[FailedFile]:
    from clip_client.dedup import FailedFile, scan

    found = scan([folder])
    failed = list(found.failed)
    done = 0
    async with aclosing(clip.embed_stream(found.photos, ordered=False)) as items:
        async for item in items:
            path = found.photos[item.index]
            if item.vector is not None:
                nearest.add([path], item.vector[None])
            elif item.error is not None:
                failed.append(FailedFile(path=path, code=item.error.code, message=item.error.message))
            done += 1
            show("embedding", done, len(found.photos))
    return sorted(failed, key=lambda failure: os.fsencode(failure.path))


class _Nearest:
    """The paths of the vectors nearest to one vector; any number of vectors can be added."""

    def __init__(self, vector: NDArray[np.float32], count: int) -> None:
        self._vector = vector
        self._count = count
        self._heap: list[tuple[float, bytes]] = []
        self.compared = 0

    def add(self, paths: Sequence[str], vectors: NDArray[np.float32]) -> None:
        """Compare vectors (n, D) of length 1."""
        self.compared += len(paths)
        cosines = vectors @ self._vector
        for row in cosines.argsort()[::-1][: self._count].tolist():
            heapq.heappush(self._heap, (float(cosines[row]), os.fsencode(paths[row])))
            if len(self._heap) > self._count:
                heapq.heappop(self._heap)

    def best(self) -> list[tuple[float, str]]:
        """Return cosine and path, the nearest first; equal cosines in the order of their paths."""
        ranked = sorted(self._heap, key=lambda entry: (-entry[0], entry[1]))
        return [(cosine, os.fsdecode(path)) for cosine, path in ranked]


@dataclass(frozen=True, kw_only=True)
class _Found:
    photo: str
    model: ModelInfo
    compared: int
    similar: Sequence[tuple[str, float]]
    failed: Sequence[FailedFile]

    def to_mapping(self) -> dict[str, object]:
        return {
            "photo": self.photo,
            "model": self.model.id,
            "vector_id": self.model.vector_id,
            "compared": self.compared,
            "similar": [{"path": path, "similarity": round(cosine, 6)} for path, cosine in self.similar],
            "failed": [
                {"path": failure.path, "code": failure.code, "message": failure.message} for failure in self.failed
            ],
        }


def _print_table(found: _Found) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from clip_client.dedup.text import counted, printable

    console = Console()
    table = Table(show_edge=False, pad_edge=False)
    table.add_column("cosine", justify="right", no_wrap=True)
    table.add_column("photo", overflow="fold")
    for path, cosine in found.similar:
        missing = "" if os.path.exists(path) else " (missing)"
        table.add_row(f"{cosine:.4f}", Text.assemble(printable(path), (missing, "yellow")))
    console.print(table)
    for failure in found.failed:
        console.print(
            Text.assemble((failure.code, "yellow"), f" {printable(failure.path)}: {failure.message}"), soft_wrap=True
        )
    console.print(
        f"{counted(found.compared, 'photo')} compared, {counted(len(found.failed), 'file')} not compared, "
        f"model {found.model.id}",
        markup=False,
        highlight=False,
        soft_wrap=True,
    )
    if found.model.is_random:
        console.print(
            "The weights of this model are random: it can only tell copies of a photo from other photos.",
            style="yellow",
            soft_wrap=True,
        )


def _is_same(path: str, photo: str) -> bool:
    with suppress(OSError, ValueError):
        return os.path.samefile(path, photo)
    return False


def _count(text: str) -> int:
    try:
        count = int(text)
    except ValueError:
        count = 0
    if count < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number of at least 1, got {text!r}")
    return count
