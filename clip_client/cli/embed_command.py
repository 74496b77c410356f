"""``clip-client embed``: photos in, one file of vectors out."""

from __future__ import annotations

import argparse
import asyncio
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from clip_client.cli.connection import add_url_option, connected
from clip_client.cli.failure import CommandFailed, need
from clip_client.cli.output_file import check_place, replacing
from clip_client.cli.progress import progress_bars
from clip_client.cli.walk_options import add_walk_options

if TYPE_CHECKING:
    from collections.abc import Callable

    from clip_client.dedup import FailedFile, Scan

_PHOTOS_PER_CALL: Final = 256
"""One row group of a Parquet file each."""


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command's options."""
    parser = commands.add_parser(
        "embed",
        help="write the vectors of photos into a file",
        description="Write the CLIP vectors of photos into one file. A photo that fails gets a row without a vector, "
        "with the code and the reason.",
    )
    add_walk_options(parser)
    add_url_option(parser)
    parser.add_argument(
        "--output",
        required=True,
        type=_vector_path,
        metavar="FILE.parquet|FILE.npz",
        help="the file to write; the ending chooses the format",
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Embed, write, and say how it went."""
    need("rich", *(["pyarrow.parquet"] if arguments.output.suffix == ".parquet" else []))
    from clip_client.dedup import scan
    from clip_client.dedup.report import printable
    from clip_client.dedup.table import counted

    check_place(arguments.output)
    found = scan(arguments.paths, include_hidden=arguments.hidden, follow_links=arguments.follow_links)
    with progress_bars() as show:
        failed = asyncio.run(_embed(found, arguments, show)) if found.photos else list(found.failed)
    for failure in failed:
        print(f"{failure.code} {printable(failure.path)}: {failure.message}", file=sys.stderr)
    written = len(found.photos) + len(found.failed) - len(failed)
    if written == 0:
        raise CommandFailed("there is no photo to embed in what was named")
    print(f"{counted(written, 'vector')} written to {arguments.output}, {counted(len(failed), 'file')} failed")
    return 0


async def _embed(found: Scan, arguments: argparse.Namespace, show: Callable[[str, int, int], None]) -> list[FailedFile]:
    """Write a row for each photo, then one for each thing that the walk could not read; return what failed."""
    from clip_client.cli.vector_file import NpzFile, ParquetFile
    from clip_client.dedup import FailedFile

    failed: list[FailedFile] = []
    async with connected(arguments.url) as clip:
        model = await clip.model()
        vector_id = clip.vector_id
        with replacing(arguments.output) as file:
            kind = ParquetFile if arguments.output.suffix == ".parquet" else NpzFile
            with kind(file, model_id=model.id, vector_id=vector_id, dimension=model.dimension) as rows:
                for start in range(0, len(found.photos), _PHOTOS_PER_CALL):
                    paths = found.photos[start : start + _PHOTOS_PER_CALL]
                    batch = await clip.embed(paths)
                    if batch.vector_id != vector_id:
                        raise CommandFailed(
                            f"the server changed its model from {vector_id} to {batch.vector_id} meanwhile; start again"
                        )
                    errors = {
                        index: FailedFile(path=paths[index], code=error.code, message=error.message)
                        for index, error in batch.errors.items()
                    }
                    rows.write(paths, batch.vectors, errors)
                    failed.extend(errors.values())
                    show("embedding", start + len(paths), len(found.photos))
                rows.write_failed(found.failed)
    return [*failed, *found.failed]


def _vector_path(text: str) -> Path:
    path = Path(text)
    if path.suffix not in (".parquet", ".npz"):
        raise argparse.ArgumentTypeError(f"the name of the file must end in .parquet or .npz, unlike {text!r}")
    return path
