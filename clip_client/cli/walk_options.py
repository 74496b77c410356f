"""Which files a command takes; the same for every command that takes photos."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import argparse


def add_walk_options(parser: argparse.ArgumentParser) -> None:
    """Add ``PATH...``, ``--hidden`` and ``--follow-links``."""
    parser.add_argument(
        "paths", nargs="+", metavar="PATH", help="photos, and folders that are searched with all below them"
    )
    parser.add_argument("--hidden", action="store_true", help="also take files and folders that begin with a dot")
    parser.add_argument("--follow-links", action="store_true", help="also walk into links to folders")
