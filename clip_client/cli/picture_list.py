"""What ``search`` and ``similar`` do once it is known what to search for: search, and print the pictures."""

from __future__ import annotations

import argparse
import asyncio
import csv
import io
import os
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from anyio import to_thread

from clip_client._files import printable
from clip_client.cli.errors import CommandMisused, need
from clip_client.cli.options.connection import client_config, connected
from clip_client.cli.options.search import FILTERS
from clip_client.cli.output import STDOUT, ProgressBars, check_place, output, progress_bars, write_json
from clip_client.dedup.text import counted, date_and_time, escaped
from clip_client.dedup.types import is_random

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from clip_client.cli.options.place import Where
    from clip_client.dedup import Scan, Store
    from clip_client.dedup.files.directories import DirectorySet
    from clip_client.search.filters import Filter
    from clip_client.search.pictures import FoundPicture, FoundPictures, Place
    from clip_client.search.query import Term

_PREVIEW_COLUMNS: Final = 24
_PREVIEW_PIXELS: Final = 384
"""Longest side of a preview, enough for terminals with fine pixels."""


def search_and_print(
    arguments: argparse.Namespace, terms: list[Term], places: Where, *, without: Sequence[str] = ()
) -> int:
    """Search, and print the found photos, except the files ``without``; return 1 if no photo is found, else 0."""
    need("rich", "pyarrow", "faiss", "defusedxml", extras="cli,dedup")
    from clip_client.dedup.files.directories import DirectorySet
    from clip_client.search.filters import Filter
    from clip_client.search.query import QueryError

    try:
        wanted = Filter.of(**{name: getattr(arguments, name) for name in FILTERS})
    except QueryError as error:  # it begins with the name of the filter
        raise CommandMisused(f"--{error}") from None
    if arguments.preview:
        need("textual_image")
    if arguments.report is not None:
        need("jinja2")
        check_place(arguments.report)
    with places.opened_store() as store:
        with progress_bars() as show:
            photos = places.photos_in(store, show)
            search = _search(arguments, terms, places, wanted, DirectorySet(without), store, photos, show)
            found, place, about = asyncio.run(search)
        _print(arguments, found, place, about)
        if arguments.report is not None:
            from clip_client.dedup.features.preview import thumbnail
            from clip_client.search.pictures import write_page

            with output(arguments.report) as file:
                write_page(about, found, file, thumbnail=thumbnail)
            print(f"clip-client: written: {arguments.report}", file=sys.stderr)
    return 0 if found.pictures else 1


async def _search(
    arguments: argparse.Namespace,
    terms: list[Term],
    places: Where,
    wanted: Filter,
    without: DirectorySet,
    store: Store | None,
    photos: Scan | None,
    show: ProgressBars,
) -> tuple[FoundPictures, Place, dict[str, Any]]:
    """Return the found photos, the place, and the value of ``--json``."""
    from clip_client.search.query import query_vector

    async with connected(client_config(arguments), show=show) as clip:
        show("embedding the query", 0, None)  # the first text opens a tower of the model, which takes seconds
        query = await query_vector(clip, terms)  # first, because new photos may take hours
        show("embedding the query", len(terms), len(terms))
        model = await clip.model()
        place = replace(await places.opened(clip, store, photos, show), without=without)
        query.check(place.index.vector_id)
        found = await to_thread.run_sync(partial(place.find, query.vector, wanted, top=arguments.top))
    about = {
        "query": " ".join(arguments.parts),
        "model": model.id,
        "vector_id": place.index.vector_id,
        "compared": found.compared,
        "is_random": is_random(model.id),
        "gone": found.gone,
        "truncated": list(query.truncated),
        "photos": [picture.to_mapping() for picture in found.pictures],
        "failed": list(map(vars, place.failed)),
        "skipped": dict(place.skipped),
    }
    return found, place, about


def _print(arguments: argparse.Namespace, found: FoundPictures, place: Place, about: Mapping[str, Any]) -> None:
    """Print the pictures on standard output, and notes on standard error; in a terminal, both on standard output."""
    from rich.console import Console

    from clip_client.dedup.reporting.terminal import print_failed

    listed = [
        (picture, path)
        for picture in found.pictures
        for path in (picture.path, *(picture.copies if arguments.copies else ()))
    ]
    is_table = sys.stdout.isatty() and not (arguments.json == STDOUT or arguments.csv or arguments.null)
    notes = Console(stderr=not is_table, highlight=False, soft_wrap=True)
    for sentence in _warnings(about):
        notes.print(sentence, style="yellow", markup=False)
    if write_json(arguments.json, about):
        pass
    elif arguments.csv:
        _print_csv(listed)
    elif arguments.null:
        sys.stdout.buffer.write(b"".join(os.fsencode(path) + b"\0" for _, path in listed))
    elif is_table:
        # A serial line may say that it has no rows.
        preview = arguments.preview and os.get_terminal_size(sys.stdout.fileno()).lines > 0
        _print_table(found.pictures, notes, copies=arguments.copies, preview=preview)
    else:
        for picture, path in listed:
            score, taken, copies = f"{picture.score:.4f}", picture.taken, str(len(picture.copies))
            columns = (score, taken, copies) if path == picture.path else ("copy", "", "")
            print("\t".join((columns[0], escaped(path), *columns[1:])))
    sys.stdout.flush()
    print_failed(place.failed, place.skipped, notes)
    if about["gone"]:
        are_gone = counted(about["gone"], "nearer picture")
        notes.print(f"{are_gone} not listed, because the files are gone or have changed", markup=False)
    notes.print(f"{found.compared_in_words} compared, model {about['model']}", markup=False)


def _warnings(about: Mapping[str, Any]) -> Iterator[str]:
    """Yield sentences that a person should read before the list."""
    for text in about["truncated"]:
        yield f"The model has read only the beginning of: {printable(text)}"
    if about["is_random"]:
        yield "The weights of this model are random: the ranking means nothing, but copies of a photo are near it."
    if not about["compared"]:
        yield "There is no photo that fits."


def _print_csv(listed: Sequence[tuple[FoundPicture, str]]) -> None:
    writer = csv.writer(sys.stdout)
    writer.writerow(("score", "path", "taken", "camera", "width", "height", "format", "copies", "copy_of"))
    for picture, path in listed:
        camera = str(picture.facts.get("camera") or "")
        facts = [picture.facts.get(name) for name in ("width", "height", "format")]
        about = [picture.taken, printable(camera), *facts, len(picture.copies), ""]
        if path != picture.path:
            about = [*[""] * 6, printable(picture.path)]
        writer.writerow([f"{picture.score:.6f}", printable(path), *about])


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
    """Return a photo in the form that this terminal can draw; empty if it cannot be opened."""
    import logging

    from textual_image.renderable import Image  # asks the terminal what it can draw

    from clip_client.dedup.features.preview import thumbnail

    logging.getLogger("textual_image").setLevel(logging.CRITICAL)  # it warns of a terminal that does not answer
    jpeg = thumbnail(path, _PREVIEW_PIXELS)
    return Image(io.BytesIO(jpeg), width=_PREVIEW_COLUMNS, height="auto") if jpeg else ""
