"""``clip-client search``, and ``similar``, which searches for one photo."""

from __future__ import annotations

import argparse
import asyncio
import csv
import io
import os
import re
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from anyio import to_thread

from clip_client._vectors.files import VECTOR_SUFFIXES
from clip_client.cli.errors import CommandFailed, CommandMisused, need
from clip_client.cli.options.connection import add_model_options, client_config, connected
from clip_client.cli.options.paths import meant, refuse_url
from clip_client.cli.options.place import Where, add_place_options
from clip_client.cli.output import (
    STDOUT,
    ProgressBars,
    add_json_option,
    check_place,
    output,
    progress_bars,
    write_json,
)
from clip_client.dedup.text import counted, escaped, moment, printable
from clip_client.dedup.types import is_random
from preprocess_ensemble.command_line import count, user_path

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from clip_client.dedup import Scan, Store
    from clip_client.dedup.files.directories import DirectorySet
    from clip_client.search.filters import Filter
    from clip_client.search.pictures import FoundPicture, FoundPictures, Place
    from clip_client.search.query import Term

TOP: Final = 20
_PREVIEW_COLUMNS: Final = 24
_PREVIEW_PIXELS: Final = 384
"""Longest side of a preview, enough for terminals with fine pixels."""
_PATH: Final = re.compile(r"(~|\.{0,2})/|\.{1,2}$|~$")
"""Beginning of a word that is meant as a path, even if there is no such file."""

FILTERS: Final = {
    "since": ("DATE", "taken in this year, month or day, or later: 2019, 2019-05 or 2019-05-03"),
    "until": ("DATE", "taken in this year, month or day, or earlier"),
    "in_folder": ("DIR", "in this folder or below it"),
    "camera": ("NAME", "taken with a camera whose make and model contain NAME"),
    "format": ("NAME", "in this format: JPEG, PNG, HEIC, RAW, ..."),
    "min_pixels": ("N", "with at least N pixels: 2000000 or 2M"),
    "near": ("LAT,LON,KM", "taken within KM kilometres of this place: 47.37,8.54,10"),
}
"""Argument of :meth:`~clip_client.search.filters.Filter.of` -> (metavar of its option, meaning)."""

_EPILOG: Final = """\
examples:
  clip-client search dog on the beach ~/Pictures     all words are one text; a word with a / is a path
  clip-client search horse + stripes - 2:grass       add and subtract, the last one with twice the weight
  clip-client search ./cat.jpg + at night --since 2021
  clip-client search sunset --null --top 100 | xargs -0 -I {} cp {} ~/sunsets

A WORD with a / or a dot that names an existing file is a photo to search for. A WORD with a / that names a folder, or
the output of `clip-client embed`, is a place to search, like --in. Write ./beach for a folder or file whose name is a
word. Without a place, all photos in the store are searched: those of `clip-client dedup` and of earlier searches.

If the output goes to a file or another program, each line has a score, a path, the time of capture, and the number of
other copies, with tabs between them. In paths a backslash is written twice, and each byte that cannot be printed as
\\xNN; printf %b gives the path back. --null prints paths as they are.
"""


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command's options."""
    parser = commands.add_parser(
        "search",
        usage="%(prog)s [options] WORD ... [PATH ...]",
        help="find photos by words, or by another photo",
        description="Find the photos that words describe, that look like another photo, or both. New photos in the "
        "folders that you name are embedded first. Proven copies of a photo are listed as one result.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("parts", nargs="+", metavar="WORD|PATH", help="words or photos, and places; see below")
    _add_search_options(parser)


def add_similar_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command's options."""
    parser = commands.add_parser(
        "similar",
        usage="%(prog)s [options] PHOTO",
        help="find the photos most similar to a photo",
        description="Find the photos most similar to PHOTO, which is not listed itself. `clip-client search` also "
        "combines a photo with words.",
    )
    parser.add_argument("parts", nargs=1, metavar="PHOTO", help="the photo to search for")
    _add_search_options(parser)


def _add_search_options(parser: argparse.ArgumentParser) -> None:
    add_place_options(parser)
    parser.add_argument("--top", type=count, default=TOP, metavar="N", help=f"list N pictures (default: {TOP})")
    parser.add_argument("--copies", action="store_true", help="also list the proven copies of each picture")
    group = parser.add_argument_group("only photos that were")
    for name, (metavar, meaning) in FILTERS.items():
        group.add_argument(f"--{name.replace('_', '-')}", default="", metavar=metavar, help=meaning)
    group = parser.add_argument_group("output").add_mutually_exclusive_group()
    add_json_option(group, "the photos and their data")
    group.add_argument("--csv", action="store_true", help="print CSV")
    group.add_argument("--null", action="store_true", help="print paths that end with a NUL byte, for xargs -0")
    parser.add_argument("--preview", action="store_true", help="in a terminal, show small pictures in the list")
    parser.add_argument("--report", type=user_path, metavar="FILE.html", help="also write a page that shows the photos")
    add_model_options(parser)


def run(arguments: argparse.Namespace) -> int:
    """Read the words, and search."""
    return _search_and_print(arguments, *_read_words(arguments))


def run_similar(arguments: argparse.Namespace) -> int:
    """Search, and print the most similar photos."""
    from clip_client.search.query import Term

    (photo,) = map(os.path.expanduser, arguments.parts)
    refuse_url(photo)
    if os.path.isdir(photo):
        raise CommandFailed(f"{printable(photo)} is a folder, and clip-client similar needs a photo")
    if not os.path.lexists(photo):
        raise CommandFailed(f"there is no file {printable(photo)}{meant(photo)}")
    places = Where.of(arguments.places, arguments.store)
    return _search_and_print(arguments, [Term(photo=photo)], places, without=[photo])


def _search_and_print(
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


def _read_words(arguments: argparse.Namespace) -> tuple[list[Term], Where]:
    """Return the terms to search for, and the places to search.

    Raises QueryError, CommandFailed for a path that does not exist, and CommandMisused for a URL.
    """
    from clip_client.dedup.files.file_types import PHOTO_SUFFIXES, RAW_SUFFIXES, suffix_of
    from clip_client.search.query import is_photo, terms_of

    words, places = [], list(arguments.places)
    for word in arguments.parts:
        path = os.path.expanduser(word.partition(":")[2] if re.match(r"[\d.]+:", word) else word)
        is_path = _PATH.match(path) or os.sep in path
        if path.endswith(VECTOR_SUFFIXES) or (is_path and os.path.isdir(path)):
            places.append(path)
            continue
        refuse_url(path)
        if not os.path.exists(path):
            instead = meant(path) if os.sep in path else ""
            if instead or _PATH.match(path) or suffix_of(path) in PHOTO_SUFFIXES | RAW_SUFFIXES:
                raise CommandFailed(f"there is no file or folder {printable(path)}{instead}")
        if os.path.exists(path) and not is_photo(path):
            kind = "folder" if os.path.isdir(path) else "file"
            note = f"clip-client: {word} is searched for as a word; write ./{word} for the {kind} of that name"
            print(note, file=sys.stderr)
        words.append(word)
    return terms_of(words), Where.of(places, arguments.store)


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
        # Leave previews out on a serial line, which may report 0 rows.
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
        # Link the path, because most terminals open links.
        name = Text(printable(picture.path), style=f"link {Path(os.path.abspath(picture.path)).as_uri()}")
        more = f" +{counted(len(picture.copies), 'copy', 'copies')}" if picture.copies else ""
        missing = "" if os.path.exists(picture.path) else " (missing)"
        lines = [Text.assemble(name, (more, "cyan"), (missing, "yellow"))]
        lines += [Text(f"  {printable(path)}", style="dim") for path in picture.copies if copies]
        cells: list[Any] = [f"{picture.score:.4f}", moment(picture.taken), Text("\n").join(lines)]
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
