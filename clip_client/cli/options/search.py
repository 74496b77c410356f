"""Options of ``clip-client search`` and ``similar``."""

from __future__ import annotations

import argparse
from typing import Final

from clip_client.cli.options.connection import add_model_options
from clip_client.cli.options.place import add_place_options
from clip_client.cli.output import add_output_options
from clip_client.search.filters import FILTERS
from preprocess_ensemble.command_line import count

TOP: Final = 20


def add_search_options(parser: argparse.ArgumentParser) -> None:
    add_place_options(parser)
    parser.add_argument("--top", type=count, default=TOP, metavar="N", help=f"list N pictures (default: {TOP})")
    parser.add_argument("--copies", action="store_true", help="also list the proven copies of each picture")
    group = parser.add_argument_group("only photos that were")
    for name, one in FILTERS.items():
        group.add_argument(f"--{name.replace('_', '-')}", default="", metavar=one.metavar, help=one.meaning)
    group = parser.add_argument_group("output").add_mutually_exclusive_group()
    add_output_options(group, json="the photos and their data", csv="a row for each photo")
    group.add_argument("--null", action="store_true", help="print paths that end with a NUL byte, for xargs -0")
    parser.add_argument("--preview", action="store_true", help="in a terminal, show small pictures in the list")
    add_output_options(parser, report="the photos")
    add_model_options(parser)
