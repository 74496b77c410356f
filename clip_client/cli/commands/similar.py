"""``clip-client similar``: finds the photos that are most similar to one photo."""

from __future__ import annotations

import argparse
import os

from clip_client._files import printable
from clip_client.cli.errors import CommandFailed
from clip_client.cli.options.paths import refuse_url, why_missing
from clip_client.cli.options.search import NamedPlaces, add_search_options
from clip_client.cli.picture_list import find_and_print
from clip_client.search.query import Term


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "similar",
        usage="%(prog)s [options] PHOTO",
        help="find the photos most similar to a photo",
        description="Find the photos most similar to PHOTO, which is not listed itself. `clip-client search` also "
        "combines a photo with words.",
    )
    parser.add_argument("parts", nargs=1, metavar="PHOTO", help="the photo to search for")
    add_search_options(parser)


def run(arguments: argparse.Namespace) -> int:
    (photo,) = map(os.path.expanduser, arguments.parts)
    refuse_url(photo)
    if os.path.isdir(photo):
        raise CommandFailed(f"{printable(photo)} is a folder, and clip-client similar needs a photo")
    if not os.path.lexists(photo):
        raise CommandFailed(why_missing(photo, "file"))
    named = NamedPlaces.of(arguments.places, arguments.store)
    return find_and_print(arguments, [Term(photo=photo)], named, without=[photo])
