"""``clip-client similar``: which photos look like this one?"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from clip_client._vectors.nearest import Nearest
from clip_client.cli.errors import CommandFailed, need
from clip_client.cli.options.connection import add_model_options, connected, read_config
from clip_client.cli.options.place import holds_vectors
from clip_client.cli.output.progress import ProgressBars, progress_bars
from clip_client.cli.parser import count, user_path
from clip_client.dedup import FailedFile, scan
from clip_client.dedup.files.directories import is_same_file
from clip_client.dedup.text import counted, escaped, printable
from clip_client.dedup.types import is_random

if TYPE_CHECKING:
    from clip_client import ClipClient

_TOP: Final = 10


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command's options."""
    parser = commands.add_parser(
        "similar",
        usage="%(prog)s [options] PHOTO --in DIR|FILE",
        help="find the photos most similar to a photo",
        description="Find the photos most similar to PHOTO. If DIR is a folder or a file that `clip-client embed` "
        "wrote, its vectors are searched. Any other folder is searched for photos, with all its subfolders, and the "
        "photos are embedded first. PHOTO itself is not listed.",
        epilog="If the output goes to a file or another program, each line is a cosine, a tab and a path.",
    )
    parser.add_argument("photo", type=os.path.expanduser, metavar="PHOTO", help="the photo to find similar ones for")
    parser.add_argument(
        "--in",
        dest="folder",
        required=True,
        type=user_path,
        metavar="DIR|FILE",
        help="a folder of photos, or what embed wrote",
    )
    add_model_options(parser)
    parser.add_argument(
        "--top", type=count, default=_TOP, metavar="K", help=f"how many photos to list (default: {_TOP})"
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")


def run(arguments: argparse.Namespace) -> int:
    """Search, and print the most similar photos."""
    need("rich")
    if os.path.isdir(arguments.photo):
        raise CommandFailed(f"{arguments.photo} is a folder; name the photo to find similar ones for")
    if not os.path.isdir(arguments.folder) and not holds_vectors(arguments.folder):
        raise CommandFailed(f"there is no folder or file of vectors {arguments.folder}")
    with progress_bars() as show:
        found = asyncio.run(_search(arguments, show))
    if arguments.json:
        print(json.dumps(found, indent=2))
        return 0 if found["compared"] else 1
    if not found["compared"]:
        raise CommandFailed(f"there is no photo to compare with in {arguments.folder}")
    _print(found)
    return 0


async def _search(arguments: argparse.Namespace, show: ProgressBars) -> dict[str, Any]:
    """Return what ``--json`` prints."""
    async with connected(read_config(arguments)) as clip:
        batch = await clip.embed(arguments.photo)
        if batch.errors:
            raise CommandFailed(f"{arguments.photo} cannot be compared: {batch.errors[0].message}")
        # One more than requested, because the photo itself may be among them.
        nearest = Nearest(batch.vectors, arguments.top + 1, vector_id=batch.vector_id)
        failed: Sequence[FailedFile] = ()
        skipped: Mapping[str, int] = {}
        if holds_vectors(arguments.folder):
            if arguments.folder.suffix != ".npz":
                need("pyarrow.parquet")
            nearest.add_all(arguments.folder)
        else:
            failed, skipped = await _embed_photos(clip, arguments.folder, nearest, show)
    others = [
        {"path": found.path, "similarity": round(found.cosine, 6)}
        for found in nearest.best[0]
        if found.path is not None and not _is_same(found.path, arguments.photo)
    ]
    return {
        "photo": arguments.photo,
        "model": batch.model_id,
        "vector_id": batch.vector_id,
        "compared": nearest.compared,
        "similar": others[: arguments.top],
        "failed": list(map(asdict, failed)),
        "skipped": skipped,
    }


async def _embed_photos(
    clip: ClipClient, folder: Path, nearest: Nearest, show: ProgressBars
) -> tuple[Sequence[FailedFile], Mapping[str, int]]:
    """Compare the photos of a folder; return what could not be compared, and how many files of which kinds are none."""
    found = scan([folder])
    failed = list(found.failed)
    show("embedding", 0, len(found.photos))  # the rate counts from here
    async with aclosing(clip.embed_stream(found.photos, ordered=False)) as items:
        async for item in items:
            path = found.photos[item.index]
            if item.vector is not None:
                nearest.add(item.vector[None], [path])
            elif item.error is not None:
                failed.append(FailedFile(path=path, code=item.error.code, message=item.error.message))
            show("embedding", nearest.compared + len(failed) - len(found.failed), len(found.photos))
    return sorted(failed, key=lambda failure: os.fsencode(failure.path)), found.skipped


def _print(found: Mapping[str, Any]) -> None:
    """Print a table in a terminal; elsewhere lines of cosine, tab and path, and the notes on standard error."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from clip_client.dedup.reporting.terminal import print_failed, print_skipped

    is_terminal = sys.stdout.isatty()
    console = Console(stderr=not is_terminal, highlight=False, soft_wrap=True)
    table = Table(show_edge=False, pad_edge=False)
    table.add_column("cosine", justify="right", no_wrap=True)
    table.add_column("photo", overflow="fold")
    for similar in found["similar"]:
        cosine, path = f"{similar['similarity']:.4f}", similar["path"]
        if is_terminal:
            missing = "" if os.path.exists(path) else " (missing)"
            table.add_row(cosine, Text.assemble(printable(path), (missing, "yellow")))
        else:
            print(f"{cosine}\t{escaped(path)}")
    if is_terminal:
        console.print(table, soft_wrap=False)
    sys.stdout.flush()
    failed = [FailedFile(**failure) for failure in found["failed"]]
    print_failed(failed, console)
    print_skipped(found["skipped"], console)
    not_compared = counted(len(failed), "file")
    compared = counted(found["compared"], "photo")
    console.print(f"{compared} compared, {not_compared} not compared, model {found['model']}", markup=False)
    if is_random(found["model"]):
        console.print(
            "The weights of this model are random: it can only tell copies of a photo from other photos.",
            style="yellow",
        )


def _is_same(path: str, photo: str) -> bool:
    with suppress(OSError, ValueError):
        return is_same_file(path, photo)
    return False
