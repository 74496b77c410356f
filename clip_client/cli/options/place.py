"""Where ``search`` and ``index`` look: a store, photos that are embedded first, or vectors that ``embed`` wrote."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from clip_client._vectors.files import VECTOR_SUFFIXES
from clip_client._vectors.vector_folder import is_vector_folder
from clip_client.cli.errors import CommandFailed, CommandMisused, need
from clip_client.cli.options.store import add_store_option
from clip_client.dedup import FailedFile, scan
from clip_client.dedup.text import printable
from clip_client.search import PhotoIndex
from clip_client.search.pictures import Place

if TYPE_CHECKING:
    from clip_client import ClipClient
    from clip_client.cli.output.progress import ProgressBars
    from clip_client.dedup import Store

QDRANT: Final = ("qdrant://", "qdrants://")
"""How the address of a collection begins."""
_STORE_FILE: Final = "files.sqlite"
"""Every store that was filled has it."""


@dataclass(frozen=True, kw_only=True)
class Where:
    """What the user named."""

    photos: tuple[str, ...] = ()
    """Photos and folders of photos, which are embedded first."""
    vectors: Path | None = None
    """What ``clip-client embed`` wrote."""
    store: Path | None = None
    """A store that is searched as it is, or that keeps what is embedded; None for the default one."""
    qdrant: str = ""
    """The address of a collection."""


@dataclass(frozen=True, kw_only=True)
class OpenedPlace:
    """What can be searched, and what could not be embedded."""

    place: Place
    failed: Sequence[FailedFile] = ()
    skipped: Mapping[str, int] = field(default_factory=dict)


def add_place_options(parser: argparse.ArgumentParser) -> None:
    """Add ``--in`` and ``--store``."""
    parser.add_argument(
        "--in",
        dest="places",
        action="append",
        default=[],
        type=os.path.expanduser,
        metavar="DIR|FILE",
        help="where to look: a folder of photos, a store, or what clip-client embed wrote; can be given several times "
        "(default: all that the store knows)",
    )
    add_store_option(parser)


def holds_vectors(path: Path) -> bool:
    """Tell whether ``path`` is what ``clip-client embed`` wrote."""
    return is_vector_folder(path) if os.path.isdir(path) else path.suffix in VECTOR_SUFFIXES and os.path.isfile(path)


def where(named: Sequence[str], store: Path | None) -> Where:
    """Tell what the paths are: one store, one file or folder of vectors, or any number of photos and their folders.

    Raises CommandFailed for one that does not exist, and CommandMisused for several of which one is no photo.
    """
    for name in named:
        path, is_collection = Path(name), name.startswith(QDRANT)
        if not (is_collection or path.exists()):
            raise CommandFailed(f"there is no file or folder {printable(name)}")
        is_store = (path / _STORE_FILE).is_file()
        if (is_collection or is_store or holds_vectors(path)) and len(named) > 1:
            raise CommandMisused(f"{name} holds vectors, and is searched alone: name no other place beside it")
        if is_collection:
            return Where(qdrant=name)
        if is_store:
            return Where(store=path)
        if holds_vectors(path):
            return Where(vectors=path)
    return Where(photos=tuple(named), store=store)


async def open_place(
    where: Where, clip: ClipClient, store: Store | None, show: ProgressBars, *, raw: bool = True
) -> OpenedPlace:
    """Open what the user named; new photos are embedded first, and kept in ``store``.

    Raises CommandFailed if there is nothing to search, VectorsError for vectors of another model, StoreError, and what
    the client raises.
    """
    from anyio import to_thread

    from clip_client.search.store_index import embed_files, store_index, stored_ids

    if where.vectors is not None:
        if where.vectors.suffix != ".npz":
            need("pyarrow.parquet")
        return OpenedPlace(place=Place(index=await to_thread.run_sync(PhotoIndex.from_vectors, where.vectors)))
    assert store is not None, "only vectors need no store"
    if not where.photos:
        if not stored_ids(store):
            raise CommandFailed(
                f"the store {store.directory} holds no photos yet: name a folder to search, such as --in ~/Pictures"
            )
        vector_id = (await clip.model()).vector_id
        return OpenedPlace(
            place=Place(index=await to_thread.run_sync(store_index, store, vector_id, show), store=store)
        )
    show("looking for photos", 0, None)
    found = await to_thread.run_sync(lambda: scan(where.photos, raw=raw))
    embedded = await embed_files(clip, found.files, store, show)
    failed = sorted([*found.failed, *embedded.failed], key=lambda failure: os.fsencode(failure.path))
    place = Place(index=embedded.index, store=store, paths=embedded.paths)
    return OpenedPlace(place=place, failed=failed, skipped=found.skipped)
