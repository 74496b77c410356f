"""``clip-client search``: finds photos by words, by other photos, or both."""

from __future__ import annotations

import argparse
import os
import re
import sys
from typing import Final

from clip_client._storage.vectors import VECTOR_SUFFIXES
from clip_client.cli.errors import CommandFailed
from clip_client.cli.options.paths import meant, nearest, refuse_url, why_missing
from clip_client.cli.options.search import NamedPlaces, add_search_options
from clip_client.cli.picture_list import find_and_print
from clip_client.search.query import Term, is_missing, is_photo, terms_of

_EPILOG: Final = """\
examples:
  clip-client search dog on the beach ~/Pictures     all words are one text; a word with a / is a path
  clip-client search horse + stripes - 2:grass       add and subtract, the last one with twice the weight
  clip-client search ./cat.jpg + at night --since 2021
  clip-client search sunset --null --top 100 | xargs -0 -I {} cp {} ~/sunsets

A WORD with a / or a dot that names an existing file is a photo to search for. A WORD with a / or a space that names a
folder, and the output of `clip-client embed`, are places to search, like --in. Write ./beach for a folder or file
whose name is one word. Without a place, all photos in the store are searched: those of `clip-client dedup` and of
earlier searches.

If the output goes to a file or another program, each line has a score, a path, the time of capture, and the number of
other copies, with tabs between them. In paths a backslash is written twice, and each byte that cannot be printed as
\\xNN; printf %b gives the path back. --null prints paths as they are.
"""


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "search",
        usage="%(prog)s [options] WORD ... [PATH ...]",
        help="find photos by words, or by another photo",
        description="Find the photos that words describe, that look like another photo, or both. New photos in the "
        "folders that\nyou name are embedded first. Proven copies of a photo are listed as one result.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("parts", nargs="+", metavar="WORD|PATH", help="words or photos, and places; see below")
    add_search_options(parser)


def run(arguments: argparse.Namespace) -> int:
    notes: list[str] = []
    try:
        terms, named = _read_words(arguments, notes)
        return find_and_print(arguments, terms, named)
    finally:  # a table would scroll earlier lines away
        for note in notes:
            print(f"clip-client: {note}", file=sys.stderr)


def _read_words(arguments: argparse.Namespace, notes: list[str]) -> tuple[list[Term], NamedPlaces]:
    words, places = [], list(arguments.places)
    for word in arguments.parts:
        path = os.path.expanduser(word.partition(":")[2] if re.match(r"[\d.]+:", word) else word)
        is_path = os.sep in path or path in (".", "..")
        is_quoted = " " in path and path == word and not is_path and os.path.isdir(path)  # with a weight, it is words
        if is_quoted:
            notes.append(f"{word} is searched as a folder; without quotation marks it would be words")
        if is_quoted or path.endswith(VECTOR_SUFFIXES) or (is_path and os.path.isdir(path)):
            places.append(path)
            continue
        refuse_url(path)
        exists = os.path.exists(path)
        # black/white is a word, and so is 24/7, even if there is a folder 24
        is_typed = not exists and os.sep in path and (os.path.isdir(os.path.dirname(path)) or meant(path))
        if is_missing(path) or (is_typed and not re.fullmatch(r"\d+/\d+", path)):
            raise CommandFailed(why_missing(path))
        if exists and not is_photo(path):
            kind = "folder" if os.path.isdir(path) else "file"
            notes.append(f"{word} is searched for as a word; write ./{word} for the {kind} of that name")
        elif " " in path and path == word and not is_path and os.path.isdir(nearest(path)):
            notes.append(f"{why_missing(path, 'folder')} It is searched for as words.")
        elif is_typed:
            notes.append(f"{word} is searched for as words; there is no such file or folder")
        words.append(word)
    arguments.parts = words  # the outputs name the query without its places
    return terms_of(words), NamedPlaces.of(places, arguments.store)
