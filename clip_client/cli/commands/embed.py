"""``clip-client embed``: write the vectors of photos into one file or into a folder of Parquet files."""

from __future__ import annotations

import argparse
import asyncio
import io
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing, nullcontext, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TextIO

from clip_client import ClipClient
from clip_client._files import printable
from clip_client._storage.vector_file import FileVersion, VectorFolder, npz_file, parquet_file, vector_row
from clip_client._storage.vectors import VECTOR_SUFFIXES
from clip_client.cli.errors import CommandFailed, CommandMisused, need
from clip_client.cli.options.connection import (
    add_engine_options,
    add_model_options,
    add_timeout_option,
    client_config,
    cluster_config,
    connected,
    uses_ray,
)
from clip_client.cli.options.paths import add_walk_options, read_walk_options
from clip_client.cli.output import (
    STDOUT,
    ProgressBars,
    add_output_options,
    add_quiet_option,
    check_place,
    locked,
    progress_bars,
    replacing,
    write_json,
)
from clip_client.dedup import FailedFile, Scan
from clip_client.dedup.files.file_types import RAW_SUFFIXES
from clip_client.dedup.text import counted, skipped_files
from preprocess_ensemble.command_line import user_path

if TYPE_CHECKING:
    from clip_client.distributed import Partition

_OUTAGE_S: Final = 300.0
"""Default of ``--timeout``: a server that builds its model for minutes must not end a run of hours."""

_NOTHING: Final = "there is no photo to embed in the given paths"
_NONE_EMBEDDED: Final = "none of the photos could be embedded"


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "embed",
        usage="%(prog)s [options] --output DIR|FILE PATH ...",
        help="write the vectors of photos into a file or a folder",
        description="Write the CLIP vectors of photos into a file, or add them to a folder of Parquet files. A photo "
        "that fails gets a row with an error code and a reason instead of a vector. To continue a folder after a stop "
        "or a crash, run the same command again: it embeds only photos that are new or have changed. If a photo has "
        "two rows, the later row counts.",
    )
    add_walk_options(parser)
    add_model_options(parser)
    add_timeout_option(parser, default_s=_OUTAGE_S, meaning="longest wait of a photo for an absent server")
    add_engine_options(parser)
    group = parser.add_argument_group("sources of --engine ray")
    group.add_argument(
        "--source",
        choices=("photos", "parquet", "webdataset"),
        default="photos",
        help="content of each PATH: photos, Parquet files with a column of images, or WebDataset tars. A PATH and the "
        "output folder may be URLs, such as s3://bucket/photos (default: photos)",
    )
    group.add_argument(
        "--column",
        default="bytes",
        metavar="NAME",
        help="with --source parquet: the column with the image files, as bytes, paths or URLs (default: bytes)",
    )
    group.add_argument(
        "--path-column", metavar="NAME", help="with --source parquet: the column with the names of the images"
    )
    parser.add_argument(
        "--output",
        required=True,
        type=_output_path,
        metavar="DIR|FILE.parquet|FILE.npz",
        help="the folder to add to, or the file to write; the ending chooses the format",
    )
    parser.add_argument(
        "--retry-failed", action="store_true", help="with a folder: also retry the photos that failed before"
    )
    add_output_options(parser, json="the counts")
    add_quiet_option(parser)


def run(arguments: argparse.Namespace) -> int:
    if uses_ray(arguments):
        return _run_on_ray(arguments)
    if isinstance(arguments.output, str) or arguments.source != "photos":
        raise CommandMisused("--source parquet, --source webdataset and a URL as --output need --engine ray")
    return _run_here(arguments)


def _run_here(arguments: argparse.Namespace) -> int:
    into_file = arguments.output.suffix in VECTOR_SUFFIXES and not os.path.isdir(arguments.output)
    if into_file and arguments.retry_failed:
        raise CommandMisused(f"--retry-failed needs a folder as --output, and {arguments.output} is a file")
    need("rich", *(["pyarrow.parquet"] if arguments.output.suffix != ".npz" or not into_file else []))

    if into_file:
        check_place(arguments.output)
    walk = read_walk_options(arguments)
    with progress_bars(quiet=arguments.quiet) as show:
        counts = _Counts(show)
        found = walk.scan(show=show)
        show("looking for photos", len(found.photos), len(found.photos))
        if found.photos:
            try:
                asyncio.run(_embed_found(found, arguments, counts, into_file=into_file))
            except BaseException:
                if counts.partial is not None:
                    missing = counted(len(found.photos) - counts.seen, "photo")
                    show.say(f"{counts.summary(counts.partial)}, {missing} missing; {arguments.output} was not written")
                elif counts.new_files:
                    show.say(f"{counts.summary(arguments.output)}; run the same command to continue")
                raise
        else:
            for failure in found.failed:
                counts.add(failure)
    if not arguments.quiet:
        _tell_skipped(found.skipped, sys.stderr if arguments.json == STDOUT else sys.stdout)
    if counts.written == 0 and counts.there_before == 0:
        raise CommandFailed(_NONE_EMBEDDED if found.photos else _NOTHING)
    of_run = {"written": counts.written, "failed": counts.failed, "done_before": counts.there_before}
    result = {"output": str(arguments.output), **of_run, "skipped": dict(found.skipped)}
    if not write_json(arguments.json, result) and not arguments.quiet:
        print(counts.summary(arguments.output))
    return 0


def _tell_skipped(skipped: Mapping[str, int], notes: TextIO) -> None:
    raws = sum(number for kind, number in skipped.items() if kind in RAW_SUFFIXES)
    others = {kind: number for kind, number in skipped.items() if kind not in RAW_SUFFIXES}
    if raws:
        instead = "clip-client search and clip-client dedup embed the previews in them"
        print(f"{counted(raws, 'RAW file')} skipped, which this command cannot read; {instead}", file=notes)
    if others:
        print(skipped_files(others), file=notes)


async def _embed_found(found: Scan, arguments: argparse.Namespace, counts: _Counts, *, into_file: bool) -> None:
    config = client_config(arguments, timeout_s=arguments.timeout_s)
    async with connected(config, quiet=arguments.quiet, show=counts.show) as clip:
        await (_write_file if into_file else _add_to_folder)(found, arguments, counts, clip)


async def _write_file(found: Scan, arguments: argparse.Namespace, counts: _Counts, clip: ClipClient) -> None:
    """Write rows in the order of the photos; if that fails, into a ``.partial`` file, and ``--output`` stays."""
    output: Path = arguments.output
    opened = npz_file if output.suffix == ".npz" else parquet_file
    stopped: BaseException | None = None
    with replacing(output, final=lambda: counts.partial or output) as file, opened(file, await clip.model()) as add:
        try:
            await _embed(clip, found.photos, found.failed, add, counts, ordered=True)
        except BaseException as error:
            if counts.written == 0:
                raise
            stopped = error
            counts.partial = output.with_name(f"{output.stem}.partial{output.suffix}")
    if stopped is not None:
        raise stopped


async def _add_to_folder(found: Scan, arguments: argparse.Namespace, counts: _Counts, clip: ClipClient) -> None:
    with locked(arguments.output):
        vectors = VectorFolder(arguments.output, await clip.model())
        counts.show("checking what is done", 0, None)
        finished = vectors.finished_keys(with_failed=not arguments.retry_failed)
        photos = [path for path in found.photos if FileVersion.of(path).key not in finished]
        failed = [failure for failure in found.failed if _unread(failure).key not in finished]
        counts.there_before = len(found.photos) - len(photos)
        counts.show("checking what is done", len(found.photos), len(found.photos))
        vectors.remove_abandoned()
        try:
            await _embed(clip, photos, failed, vectors.add, counts, ordered=False)
        finally:
            vectors.flush()
            counts.new_files = len(vectors.written)


async def _embed(
    clip: ClipClient,
    photos: Sequence[str],
    failed: Sequence[FailedFile],
    add: Callable[[Mapping[str, Any]], None],
    counts: _Counts,
    *,
    ordered: bool,
) -> None:
    counts.begun_at = time.monotonic()
    counts.show("embedding", 0, len(photos))  # starts the measurement of the rate
    # Use a generator, so that each file is examined just before it is read.
    files = (FileVersion.of(path) for path in photos)
    async with aclosing(clip.embed_stream(files, ordered=ordered)) as items:
        async for item in items:
            file = item.source
            assert isinstance(file, FileVersion), "a stream gives back what it was given"
            error, failure = item.error, None
            if error is not None:
                failure = FailedFile(path=file.path, code=error.code, message=error.message)
            add(vector_row(file, item.vector, failure))
            counts.add(failure)
            counts.show("embedding", counts.seen, len(photos))
    for failure in failed:
        add(vector_row(_unread(failure), failure=failure))
        counts.add(failure)


def _unread(failure: FailedFile) -> FileVersion:
    return FileVersion(path=os.path.abspath(failure.path))


@dataclass
class _Counts:
    """Counts of one run. Failures are printed at once and not collected, to save memory."""

    show: ProgressBars
    written: int = 0
    failed: int = 0
    there_before: int = 0
    new_files: int = 0
    partial: Path | None = None  # finished rows of a run that was stopped while it wrote one file
    begun_at: float = 0.0  # time of the first photo that was sent, by the monotonic clock

    @property
    def seen(self) -> int:
        return self.written + self.failed

    def add(self, failure: FailedFile | None) -> None:
        if failure is None:
            self.written += 1
            return
        self.failed += 1
        self.show.say(f"{failure.code} {printable(failure.path)}: {failure.message}")

    def summary(self, output: Path) -> str:
        new = f" ({counted(self.new_files, 'new file')})" if self.new_files else ""
        before = f", {self.there_before:,} done before" if self.there_before else ""
        text = f"{counted(self.written, 'vector')} written to {output}{new}, {self.failed:,} failed{before}"
        elapsed_s = time.monotonic() - self.begun_at
        # Print the rate only after a second; a shorter time says nothing about the server.
        return f"{text}, {self.seen / elapsed_s:,.1f} photos/s" if self.seen and elapsed_s >= 1 else text


def _run_on_ray(arguments: argparse.Namespace) -> int:
    from clip_client.distributed import embed_partitions

    need("rich", "pyarrow.parquet")
    output: Path | str = arguments.output
    if isinstance(output, Path) and output.suffix in VECTOR_SUFFIXES:
        raise CommandMisused(f"--engine ray needs a folder as --output, and {output} is the name of a file")
    if arguments.retry_failed:
        raise CommandMisused("--retry-failed needs --engine local, which continues the same folder")
    config = cluster_config(arguments, client_config(arguments, timeout_s=arguments.timeout_s))
    started = time.monotonic()
    # Silence the thread of Ray that prints messages of its daemons, because standard output is for the counts.
    with redirect_stdout(io.StringIO()), progress_bars(quiet=arguments.quiet) as show:
        show("looking for photos", 0, None)
        partitions = _partitions(arguments)
        with locked(output) if isinstance(output, Path) else nullcontext():
            summary = embed_partitions(
                partitions,
                output=output,
                config=config,
                address=arguments.address,
                workers=arguments.workers,
                on_progress=lambda done, total: show("embedding", done, total),
            )
    if summary.images == summary.failed and not summary.partitions_before:
        raise CommandFailed(_NONE_EMBEDDED)
    written = summary.images - summary.failed
    counts = {"written": written, "failed": summary.failed, "partitions": summary.partitions}
    counts["partitions_done_before"] = summary.partitions_before
    if not write_json(arguments.json, {"output": summary.output, **counts}) and not arguments.quiet:
        done = f"{counted(written, 'vector')} written to {summary.output} ({counted(summary.partitions, 'partition')})"
        before = f", {counted(summary.partitions_before, 'partition')} done before" if summary.partitions_before else ""
        rate = f"{summary.images / (time.monotonic() - started):,.1f} photos/s, including the start of Ray"
        print(f"{done}, {summary.failed:,} failed{before}, {rate}")
    return 0


def _partitions(arguments: argparse.Namespace) -> Sequence[Partition]:
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
        raise CommandFailed(_NOTHING)
    return partitions


def _output_path(text: str) -> Path | str:
    from clip_client.distributed.storage import is_url

    if is_url(text):
        return text
    path = user_path(text)
    if os.path.isdir(path) or text.endswith(os.sep) or path.suffix in ("", *VECTOR_SUFFIXES):
        return path
    raise argparse.ArgumentTypeError(
        f"{text!r} is neither a folder nor a file of vectors: end the name of a folder with /, or of a file with "
        ".parquet or .npz"
    )
