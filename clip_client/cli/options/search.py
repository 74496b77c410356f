"""Options of ``clip-client search`` and ``similar``."""

from __future__ import annotations

import argparse
from typing import Final

from clip_client.cli.options.connection import add_model_options
from clip_client.cli.options.place import add_place_options
from clip_client.cli.output import add_json_option
from preprocess_ensemble.command_line import count, user_path

TOP: Final = 20

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


def add_search_options(parser: argparse.ArgumentParser) -> None:
    """Add all options of a search: where, which photos, how many, and the output."""
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
