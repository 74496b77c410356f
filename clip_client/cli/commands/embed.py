"""``clip-client embed``: photos in, vectors out, into one file or into a folder of shards."""

from __future__ import annotations

import argparse
import asyncio
import os
import time
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from clip_client.cli.errors import CommandFailed, CommandMisused, need
from clip_client.cli.options.connection import add_model_options, add_timeout_option, connected, read_connection
from clip_client.cli.options.paths import add_walk_options, read_walk_options
from clip_client.cli.output.output_file import check_place, locked, replacing
from clip_client.cli.output.photo_file import PhotoFile, PhotoRow
from clip_client.cli.output.progress import progress_bars

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Sequence

    from clip_client import ClipClient
    from clip_client.cli.output.progress import ProgressBars
    from clip_client.dedup import FailedFile

_FILE_SUFFIXES: Final = (".parquet", ".npz")

_OUTAGE_S: Final = 300.0
"""A server that restarts, with a model that takes minutes to build, shall not end a run of a night."""

_ROWS_PER_SHARD: Final = 10_000
"""20 MB with vectors of 512 numbers: what is held in memory, and what a run loses at most when it is killed."""

_MOST_ROWS_PER_SHARD: Final = 1_000_000

_NOTHING: Final = "there is no photo to embed in what was named"
_NONE_EMBEDDED: Final = "none of the photos could be embedded"


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command's options."""
    parser = commands.add_parser(
        "embed",
        help="write the vectors of photos into a file or a folder",
        description="Write the CLIP vectors of photos into a file, or into a folder of Parquet files. A photo that "
        "fails gets a row without a vector, with the code and the reason. A folder is added to: a run that was "
        "stopped, or killed, is continued by the same command, and photos that are new or have changed since are "
        "embedded; where a photo has two rows, the later one counts.",
    )
    add_walk_options(parser)
    add_model_options(parser)
    add_timeout_option(parser, default_s=_OUTAGE_S, meaning="how long a photo may wait for a server that is away")
    parser.add_argument(
        "--output",
        required=True,
        type=_output_path,
        metavar="DIR|FILE.parquet|FILE.npz",
        help="the folder to add to, or the file to write; the ending chooses the format",
    )
    parser.add_argument(
        "--retry-failed", action="store_true", help="with a folder: also try the photos again that have failed before"
    )
    parser.add_argument(
        "--shard-rows",
        type=_rows,
        metavar="N",
        help=f"with a folder: photos in one file of it (default: {_ROWS_PER_SHARD:,}); a run that is killed loses the "
        "file that it was at",
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Embed, write, and say how it went."""
    into_file = arguments.output.suffix in _FILE_SUFFIXES and not os.path.isdir(arguments.output)
    if into_file and (arguments.retry_failed or arguments.shard_rows is not None):
        raise CommandMisused(
            f"--retry-failed and --shard-rows are for a folder, and {arguments.output} is to be a file"
        )
    need("rich", *(["pyarrow.parquet"] if arguments.output.suffix != ".npz" or not into_file else []))

    if into_file:
        check_place(arguments.output)
    walk = read_walk_options(arguments)
    with progress_bars() as show:
        tally = _Tally(show.say)
        found = walk.scan(show=show)
        show("looking for photos", len(found.photos), len(found.photos))
        embed = _into_file if into_file else _into_folder
        if found.photos:
            embed(found.photos, found.failed, arguments, show, tally)
        else:
            for failure in found.failed:
                tally.add_failure(failure)
    if found.skipped:
        from clip_client.dedup.text import skipped_files

        print(skipped_files(found.skipped))
    if tally.written == 0 and tally.there_before == 0:
        raise CommandFailed(_NONE_EMBEDDED if found.photos else _NOTHING)
    print(tally.summary(arguments.output))
    return 0


def _into_file(
    photos: Sequence[str],
    failed: Sequence[FailedFile],
    arguments: argparse.Namespace,
    show: ProgressBars,
    tally: _Tally,
) -> None:
    """Write a row for each photo, in order, then one for each thing that the walk could not read."""
    from clip_client.cli.output.vector_file import NpzFile, ParquetFile

    async def embed() -> None:
        async with connected(read_connection(arguments, timeout_s=arguments.timeout_s)) as clip:
            model = await clip.model()
            kind = NpzFile if arguments.output.suffix == ".npz" else ParquetFile
            about = {"model_id": model.id, "vector_id": clip.vector_id}
            with replacing(arguments.output) as file, kind(file, **about, dimension=model.dimension) as out:
                async with aclosing(_rows_from(clip, photos, ordered=True)) as rows:
                    async for row in rows:
                        out.add(row)
                        tally.add(row)
                        show("embedding", tally.seen, len(photos))
                for failure in failed:
                    row = _row_of(failure)
                    out.add(row)
                    tally.add(row)

    asyncio.run(embed())


def _into_folder(
    photos: Sequence[str],
    failed: Sequence[FailedFile],
    arguments: argparse.Namespace,
    show: ProgressBars,
    tally: _Tally,
) -> None:
    """Add shards with the rows of those that are not in one yet; whatever ends this, finished rows are kept."""
    from clip_client.cli.output.vector_shards import ShardWriter, check_vector_id, finished_keys, shards_in

    folder: Path = arguments.output

    def what_is_due() -> tuple[list[str], list[PhotoRow]]:
        show("looking what is done", 0, None)
        finished = finished_keys(shards_in(folder), with_failed=not arguments.retry_failed)
        due = [path for path in photos if PhotoFile.look_at(path).key not in finished]
        rows = [_row_of(failure) for failure in failed]
        tally.there_before = len(photos) - len(due)
        show("looking what is done", len(photos), len(photos))
        return due, [row for row in rows if row.file.key not in finished]

    async def embed() -> None:
        async with connected(read_connection(arguments, timeout_s=arguments.timeout_s)) as clip:
            model = await clip.model()
            with locked(folder):
                check_vector_id(folder, clip.vector_id)
                due, unreadable = what_is_due()
                writer = ShardWriter(
                    folder,
                    rows_per_shard=arguments.shard_rows or _ROWS_PER_SHARD,
                    model_id=model.id,
                    vector_id=clip.vector_id,
                    dimension=model.dimension,
                )
                try:
                    async with aclosing(_rows_from(clip, due, ordered=False)) as rows:
                        async for row in rows:
                            writer.add(row)
                            tally.add(row)
                            show("embedding", tally.seen, len(due))
                    for row in unreadable:
                        writer.add(row)
                        tally.add(row)
                finally:
                    writer.finish()
                    tally.shards = len(writer.written)

    try:
        asyncio.run(embed())
    except BaseException:
        if tally.shards:
            show.say(f"{tally.summary(folder)}; the same command continues from there")
        raise


async def _rows_from(clip: ClipClient, photos: Sequence[str], *, ordered: bool) -> AsyncGenerator[PhotoRow, None]:
    from clip_client.dedup import FailedFile

    # A generator and no list: each file is looked at when its turn comes, just before it is read.
    files = (PhotoFile.look_at(path) for path in photos)
    async with aclosing(clip.embed_stream(files, ordered=ordered)) as items:
        async for item in items:
            file = item.source
            assert isinstance(file, PhotoFile), "a stream gives back what it was given"
            error, failure = item.error, None
            if error is not None:
                failure = FailedFile(path=file.path, code=error.code, message=error.message)
            yield PhotoRow(file=file, vector=item.vector, failure=failure)


def _row_of(failure: FailedFile) -> PhotoRow:
    return PhotoRow(file=PhotoFile.never_seen(failure.path), failure=failure)


@dataclass
class _Tally:
    """Counts of one run. A failure is told when it happens, so that nobody has to hold a million of them."""

    say: Callable[[str], None]
    written: int = 0
    failed: int = 0
    there_before: int = 0
    shards: int = 0
    first_at: float | None = None
    last_at: float = 0.0

    @property
    def seen(self) -> int:
        return self.written + self.failed

    def add(self, row: PhotoRow) -> None:
        self.last_at = time.monotonic()
        if self.first_at is None:
            self.first_at = self.last_at
        if row.failure is None:
            self.written += 1
        else:
            self.add_failure(row.failure)

    def add_failure(self, failure: FailedFile) -> None:
        from clip_client.dedup.text import printable

        self.failed += 1
        self.say(f"{failure.code} {printable(failure.path)}: {failure.message}")

    def summary(self, output: Path) -> str:
        from clip_client.dedup.text import counted

        text = f"{counted(self.written, 'vector')} written to {output}"
        if self.shards:
            text += f" ({counted(self.shards, 'new file')})"
        text += f", {self.failed:,} failed"
        if self.there_before:
            text += f", {self.there_before:,} done before"
        elapsed_s = 0.0 if self.first_at is None else self.last_at - self.first_at
        # From the first answer to the last: over less than a second that says nothing about the server.
        return f"{text}, {self.seen / elapsed_s:,.1f} photos/s" if elapsed_s >= 1 else text


def _output_path(text: str) -> Path:
    path = Path(text)
    if os.path.isdir(path) or text.endswith(os.sep) or path.suffix in ("", *_FILE_SUFFIXES):
        return path
    raise argparse.ArgumentTypeError(
        f"the name of a file must end in .parquet or .npz, unlike {text!r}; that of a new folder with a dot in it in /"
    )


def _rows(text: str) -> int:
    try:
        rows = int(text)
    except ValueError:
        rows = 0
    if not 1 <= rows <= _MOST_ROWS_PER_SHARD:
        raise argparse.ArgumentTypeError(f"a whole number from 1 to {_MOST_ROWS_PER_SHARD:,} is needed, not {text!r}")
    return rows
