"""Where a command keeps what it learns and what it did."""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from clip_client.cli.errors import CommandFailed, need

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from clip_client.dedup import Store


def add_store_option(parser: argparse.ArgumentParser) -> None:
    """Add ``--store``."""
    parser.add_argument(
        "--store",
        type=Path,
        metavar="DIR",
        help="folder of the vectors, decisions and the journal of moves "
        "(default: the environment variable CLIP_STORE, else the folder for your data)",
    )


@contextmanager
def opened_store(directory: Path | None) -> Iterator[Store]:
    """Give the store that is named, else the default one.

    Raises CommandFailed for whatever is wrong with a store inside the block.
    """
    need("platformdirs", "pyarrow", extra="dedup")
    import sqlite3

    from clip_client.dedup import Store, StoreError
    from clip_client.dedup.store.store import default_directory

    folder = directory or default_directory()
    try:
        with Store(folder) as store:
            yield store
    except sqlite3.Error as error:  # while it is read; what goes wrong when it is opened or written is a StoreError
        raise CommandFailed(
            f"a database of the store {folder} cannot be read ({error}); files.sqlite there can be moved away and made "
            "again, the others are best brought back from a backup"
        ) from error
    except StoreError as error:
        raise CommandFailed(str(error)) from error
