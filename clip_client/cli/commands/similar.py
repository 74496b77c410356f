"""``clip-client similar``: which photos look like this one? A search for nothing but a photo."""

from __future__ import annotations

import argparse
import os

from clip_client.cli.commands.search import add_search_options, search_and_print
from clip_client.cli.errors import CommandFailed
from clip_client.cli.options.place import Where


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command's options."""
    parser = commands.add_parser(
        "similar",
        usage="%(prog)s [options] PHOTO",
        help="find the photos most similar to a photo",
        description="Find the photos most similar to PHOTO, which is not listed itself: a `clip-client search` for "
        "nothing else.",
    )
    parser.add_argument("parts", nargs=1, metavar="PHOTO", help="the photo to find similar ones for")
    add_search_options(parser)


def run(arguments: argparse.Namespace) -> int:
    """Search, and print the most similar photos."""
    from clip_client.search.query import Term

    (photo,) = map(os.path.expanduser, arguments.parts)
    if os.path.isdir(photo):
        raise CommandFailed(f"{photo} is a folder; name the photo to find similar ones for")
    places = Where.of(arguments.places, arguments.store)
    return search_and_print(arguments, [Term(photo=photo)], places, without=[photo])
