"""The common part of ``search`` and ``similar``: searches for terms, and prints the pictures."""

from __future__ import annotations

import argparse
import asyncio
import csv
import io
import logging
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from clip_client._files import printable
from clip_client.cli.errors import CommandMisused, need
from clip_client.cli.options.connection import client_config, connected
from clip_client.cli.options.search import NamedPlaces
from clip_client.cli.output import STDOUT, output, progress_bars, write_json, write_text
from clip_client.dedup.features.preview import thumbnail
from clip_client.dedup.files.directories import DirectorySet
from clip_client.dedup.text import counted, date_and_time, escaped
from clip_client.search.filters import FILTERS, Wanted
from clip_client.search.find import find
from clip_client.search.pictures import FoundPicture, FoundPictures, write_page
from clip_client.search.query import QueryError, QueryVector, Term, query_vector
from clip_client.search.space import SearchSpace

_PREVIEW_COLUMNS: Final = 24
_PREVIEW_PIXELS: Final = 384  # longest side, enough for terminals with fine pixels


def find_and_print(
    arguments: argparse.Namespace, terms: list[Term], named: NamedPlaces, *, without: Sequence[str] = ()
) -> int:
    """Find photos, and print them, except the files ``without``; return 1 if no photo is found, else 0."""
    need("rich", "pyarrow", "defusedxml", extras="cli,dedup")
    if arguments.preview:
        need("textual_image")
    if arguments.report is not None:
        need("jinja2")
    try:
        wanted = Wanted.of({name: getattr(arguments, name) for name in FILTERS}, prefix="--")
    except QueryError as error:
        raise CommandMisused(str(error)) from None
    with named.opened_store() as store, progress_bars() as show:
        photos = named.photos_in(store, show)

        async def embed() -> tuple[QueryVector, SearchSpace]:
            async with connected(client_config(arguments), show=show) as clip:
                show("embedding the query", 0, None)  # the first text opens a tower of the model, which takes seconds
                query = await query_vector(clip, terms)  # first, because new photos may take hours
                show("embedding the query", len(terms), len(terms))
                return query, await named.opened(clip, store, photos, show)

        query, space = asyncio.run(embed())
        found = find(query, replace(space, without=DirectorySet(without)), wanted, top=arguments.top)
    _print(arguments, found, space)
    if arguments.report is not None:
        with output(arguments.report) as file:
            write_page(" ".join(arguments.parts), found, file, thumbnail=thumbnail)
        print(f"clip-client: written: {arguments.report}", file=sys.stderr)
    return 0 if found.pictures else 1


def _print(arguments: argparse.Namespace, found: FoundPictures, space: SearchSpace) -> None:
    from rich.console import Console

    from clip_client.dedup.pages.terminal import print_failed

    listed = [
        (picture, path)
        for picture in found.pictures
        for path in (picture.path, *(picture.copies if arguments.copies else ()))
    ]
    is_listed = STDOUT not in arguments.outputs and not arguments.null
    is_table = is_listed and sys.stdout.isatty()
    notes = Console(stderr=not is_table, highlight=False, soft_wrap=True)
    for sentence in _warnings(found):
        notes.print(sentence, style="yellow", markup=False)
    write_json(arguments.json, _as_json(arguments, found, space))
    if arguments.csv is not None:
        write_text(arguments.csv, [_as_csv(listed)])
    if arguments.null:
        sys.stdout.buffer.write(b"".join(os.fsencode(path) + b"\0" for _, path in listed))
    elif is_table:
        # Leave previews out on a serial line, which may report 0 rows.
        preview = arguments.preview and os.get_terminal_size(sys.stdout.fileno()).lines > 0
        _print_table(found.pictures, notes, copies=arguments.copies, preview=preview)
    elif is_listed:
        for picture, path in listed:
            columns = f"{picture.score:.4f}", escaped(path), picture.taken, str(len(picture.copies))
            print(*(columns if path == picture.path else ("copy", escaped(path), "", "")), sep="\t")
    sys.stdout.flush()
    print_failed(space.failed, space.skipped, notes)
    if found.gone:
        are_gone = counted(found.gone, "nearer picture")
        notes.print(f"{are_gone} not listed, because the files are gone or have changed", markup=False)
    for sentence in found.left_out:
        notes.print(sentence, markup=False)
    pictures = counted(len(found.pictures), "picture")
    notes.print(f"{pictures}, of {found.compared_in_words} compared, model {found.model_id}", markup=False)


def _as_json(arguments: argparse.Namespace, found: FoundPictures, space: SearchSpace) -> dict[str, Any]:
    return {
        "query": " ".join(arguments.parts),
        "model": found.model_id,
        "vector_id": space.index.vector_id,
        "compared": found.compared,
        "is_random": found.is_random,
        "gone": found.gone,
        "truncated": list(found.truncated),
        "photos": [picture.to_mapping() for picture in found.pictures],
        "failed": list(map(vars, space.failed)),
        "skipped": dict(space.skipped),
    }


def _warnings(found: FoundPictures) -> Iterator[str]:
    for text in found.truncated:
        yield f"The model has read only the beginning of: {printable(text)}"
    if found.is_random:
        yield "The weights of this model are random: the ranking means nothing, but copies of a photo are near it."
    if not found.compared:
        yield "There is no photo that fits."


def _as_csv(listed: Sequence[tuple[FoundPicture, str]]) -> str:
    buffer = io.StringIO(newline="")
    writer = csv.writer(buffer)
    writer.writerow(("score", "path", "taken", "camera", "width", "height", "format", "copies", "copy_of"))
    for picture, path in listed:
        camera = str(picture.facts.get("camera") or "")
        facts = [picture.facts.get(name) for name in ("width", "height", "format")]
        about = [picture.taken, printable(camera), *facts, len(picture.copies), ""]
        if path != picture.path:
            about = [*[""] * 6, printable(picture.path)]
        writer.writerow([f"{picture.score:.6f}", printable(path), *about])
    return buffer.getvalue()


def _print_table(pictures: Sequence[FoundPicture], console: Any, *, copies: bool, preview: bool) -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table(show_edge=False, pad_edge=False)
    table.add_column("score", justify="right", no_wrap=True)
    table.add_column("taken", no_wrap=True)
    table.add_column("photo", overflow="fold")
    if preview:
        table.add_column("", width=_PREVIEW_COLUMNS)
    for picture in pictures:
        # Most terminals open what is linked.
        name = Text(printable(picture.path), style=f"link {Path(os.path.abspath(picture.path)).as_uri()}")
        more = f" +{counted(len(picture.copies), 'copy', 'copies')}" if picture.copies else ""
        missing = "" if os.path.exists(picture.path) else " (missing)"
        lines = [Text.assemble(name, (more, "cyan"), (missing, "yellow"))]
        lines += [Text(f"  {printable(path)}", style="dim") for path in picture.copies if copies]
        cells: list[Any] = [f"{picture.score:.4f}", date_and_time(picture.taken), Text("\n").join(lines)]
        table.add_row(*cells, *([_preview(picture.path)] if preview else []))
    console.print(table, soft_wrap=False)


def _preview(path: str) -> Any:
    from textual_image.renderable import Image  # asks the terminal what it can draw

    logging.getLogger("textual_image").setLevel(logging.CRITICAL)  # it warns of a terminal that does not answer
    jpeg = thumbnail(path, _PREVIEW_PIXELS)
    return Image(io.BytesIO(jpeg), width=_PREVIEW_COLUMNS, height="auto") if jpeg else ""
