"""``clip-client embed --engine ray``: write the vectors of photos into a folder, on a cluster."""

from __future__ import annotations

import argparse
import io
import json
import time
from collections.abc import Sequence
from contextlib import nullcontext, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING

from clip_client._vectors.files import VECTOR_SUFFIXES
from clip_client.cli.errors import CommandFailed, CommandMisused, need
from clip_client.cli.options.connection import read_config
from clip_client.cli.options.paths import read_walk_options
from clip_client.cli.output.output_file import locked
from clip_client.cli.output.progress import progress_bars
from clip_client.dedup.text import counted

if TYPE_CHECKING:
    from clip_client.cli.options.engine import EngineOptions
    from clip_client.distributed import Partition


def add_source_options(parser: argparse.ArgumentParser) -> None:
    """Add what only this engine can read."""
    group = parser.add_argument_group("sources of --engine ray")
    group.add_argument(
        "--source",
        choices=("photos", "parquet", "webdataset"),
        default="photos",
        help="what each PATH is or holds: photos, Parquet files with a column of images, or WebDataset tars. A PATH "
        "and the output folder may be URLs, such as s3://bucket/photos (default: photos)",
    )
    group.add_argument(
        "--column",
        default="bytes",
        metavar="NAME",
        help="with --source parquet: the column with the bytes of the image files, or with their paths or URLs "
        "(default: bytes)",
    )
    group.add_argument(
        "--path-column", metavar="NAME", help="with --source parquet: the column with the names of the images"
    )


def run(arguments: argparse.Namespace, engine: EngineOptions) -> int:
    """Embed, and print the counts."""
    from clip_client.distributed import embed_partitions

    need("rich", "pyarrow.parquet")
    output: Path | str = arguments.output
    if isinstance(output, Path) and output.suffix in VECTOR_SUFFIXES:
        raise CommandMisused(f"--engine ray writes into a folder, and {output} is the name of a file")
    if arguments.retry_failed or arguments.shard_rows is not None:
        raise CommandMisused("--retry-failed and --shard-rows need --engine local, which can continue the same folder")
    config = engine.servers(read_config(arguments, timeout_s=arguments.timeout_s), quiet=arguments.quiet)
    started = time.monotonic()
    # A thread of Ray prints what its daemons say, such as that a worker has died; standard output is for the counts.
    with redirect_stdout(io.StringIO()), progress_bars(quiet=arguments.quiet) as show:
        show("looking for photos", 0, None)
        partitions = _partitions(arguments)
        with locked(output) if isinstance(output, Path) else nullcontext():
            summary = embed_partitions(
                partitions,
                output=output,
                config=config,
                address=engine.address,
                workers=engine.workers,
                on_progress=lambda done, total: show("embedding", done, total),
            )
    if summary.images == summary.failed and not summary.partitions_before:
        raise CommandFailed("none of the photos could be embedded")
    written = summary.images - summary.failed
    if arguments.json:
        counts = {"written": written, "failed": summary.failed, "partitions": summary.partitions}
        counts["partitions_done_before"] = summary.partitions_before
        print(json.dumps({"output": summary.output, **counts}, indent=2))
    elif not arguments.quiet:
        done = f"{counted(written, 'vector')} written to {summary.output} ({counted(summary.partitions, 'partition')})"
        before = f", {counted(summary.partitions_before, 'partition')} done before" if summary.partitions_before else ""
        rate = f"{summary.images / (time.monotonic() - started):,.1f} photos/s, including the start of Ray"
        print(f"{done}, {summary.failed:,} failed{before}, {rate}")
    return 0


def _partitions(arguments: argparse.Namespace) -> Sequence[Partition]:
    """Raises CommandFailed if there is nothing to embed, and DistributedError for what cannot be read."""
    from clip_client.distributed import image_files, images_below, parquet_images, webdataset_images
    from clip_client.distributed.storage import is_url

    partitions: list[Partition]
    if arguments.source == "parquet":
        partitions = parquet_images(*arguments.paths, column=arguments.column, path_column=arguments.path_column)
    elif arguments.source == "webdataset":
        partitions = webdataset_images(*arguments.paths)
    else:
        urls = [path for path in arguments.paths if is_url(path)]
        partitions = images_below(*urls)
        arguments.paths = [path for path in arguments.paths if not is_url(path)]
        if arguments.paths or arguments.files_from is not None or not urls:
            found = read_walk_options(arguments).scan()
            partitions += image_files([*found.photos, *(failure.path for failure in found.failed)])
    if not partitions:
        raise CommandFailed("there is no photo to embed in the given paths")
    return partitions
