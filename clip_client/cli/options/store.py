"""The store: caches, decisions and the journal of moves."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from clip_client.cli.errors import CommandFailed, need
from clip_client.cli.parser import user_path
from clip_client.dedup import Store
from clip_client.dedup.store.store import default_directory


def add_store_option(parser: argparse.ArgumentParser) -> None:
    """Add ``--store``."""
    parser.add_argument(
        "--store",
        type=user_path,
        metavar="DIR",
        help="folder for cached vectors, decisions and the journal of moves (default: the environment variable "
        "CLIP_STORE, else clip-client in your user data folder)",
    )


@contextmanager
def opened_store(directory: Path | None) -> Iterator[Store]:
    """Open the store in ``directory``, or the default one.

    Raises StoreError, and CommandFailed if a database cannot be read inside the block.
    """
    need("rich", "pyarrow", extras="cli,dedup")
    import sqlite3

    folder = directory or default_directory()
    try:
        with Store(folder) as store:
            yield store
    except sqlite3.Error as error:  # while reading; errors of opening and writing are StoreErrors
        raise CommandFailed(
            f"a database of the store {folder} cannot be read ({error}); files.sqlite is a cache that you can move "
            "away, restore the others from a backup"
        ) from error
