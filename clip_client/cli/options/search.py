"""Options of ``search`` and ``similar``. They search a store, photos that are embedded first, or written vectors."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from anyio import to_thread

from clip_client import ClipClient
from clip_client._files import printable
from clip_client._storage.vector_file import is_vector_folder
from clip_client._storage.vectors import VECTOR_SUFFIXES
from clip_client.cli.errors import CommandFailed, CommandMisused, need
from clip_client.cli.options.connection import add_model_options
from clip_client.cli.options.paths import add_store_option, need_photos, opened_store, why_missing
from clip_client.cli.output import ProgressBars, add_output_options
from clip_client.dedup import Scan, Store, scan
from clip_client.dedup.store.store import CACHE
from clip_client.search import PhotoIndex, store_index
from clip_client.search.filters import FILTERS
from clip_client.search.space import SearchSpace
from clip_client.search.store_index import embed_files, stored_ids
from preprocess_ensemble.command_line import count

_TOP: Final = 20
_STORE_FILES: Final = (CACHE, "files.sqlite")  # files of filled stores, of this version and earlier ones


def add_search_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--in",
        dest="places",
        action="append",
        default=[],
        type=os.path.expanduser,
        metavar="DIR|FILE",
        help="where to search: a folder of photos, a store, or the output of clip-client embed; can be given several "
        "times (default: all photos in the store)",
    )
    add_store_option(parser)
    parser.add_argument("--top", type=count, default=_TOP, metavar="N", help=f"list N pictures (default: {_TOP})")
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


@dataclass(frozen=True, kw_only=True)
class NamedPlaces:
    photos: tuple[str, ...] = ()  # photos and folders of photos, which are embedded first
    vectors: Path | None = None  # output of ``clip-client embed``
    store: Path | None = None  # also keeps the vectors of ``photos``; None for the default store

    @classmethod
    def of(cls, named: Sequence[str], store: Path | None) -> NamedPlaces:
        """Sort paths into a store, vectors, or photos. Raises CommandFailed and, for a mix of them, CommandMisused."""
        for name in named:
            path = Path(name)
            if not os.path.exists(name):  # Path.exists raises for a name that is too long
                raise CommandFailed(why_missing(name))
            # Use os.path: Path.is_file raises for a folder without permission.
            is_store = any(os.path.isfile(path / file) for file in _STORE_FILES)
            if is_store or (is_vector_folder(path) if path.is_dir() else path.suffix in VECTOR_SUFFIXES):
                if len(named) > 1:
                    raise CommandMisused(f"{name} holds vectors, which can only be searched alone: name no other path")
                return cls(store=path) if is_store else cls(vectors=path)
        return cls(photos=tuple(named), store=store)

    def opened_store(self) -> AbstractContextManager[Store | None]:
        return nullcontext() if self.vectors is not None else opened_store(self.store)

    def photos_in(self, store: Store | None, show: ProgressBars) -> Scan | None:
        """Find the named photos before a model is needed; None without any. Raises CommandFailed and StoreError."""
        if self.photos:
            show("looking for photos", 0, None)
            found = scan(self.photos, raw=True)
            show("looking for photos", len(found.files), len(found.files))
            need_photos(found, f"there is no photo in {', '.join(map(printable, self.photos))}")
            return found
        if store is not None and not stored_ids(store):
            raise CommandFailed(
                f"the store {store.directory} holds no photos yet: name a folder to search, such as --in ~/Pictures"
            )
        return None

    async def opened(
        self, clip: ClipClient, store: Store | None, found: Scan | None, show: ProgressBars
    ) -> SearchSpace:
        """Open the space of a search; new photos among ``found`` are embedded first, and kept in ``store``."""
        if store is None:
            assert self.vectors is not None, "without a store there are vectors"
            if self.vectors.suffix != ".npz":
                need("pyarrow.parquet")
            return SearchSpace(index=await to_thread.run_sync(PhotoIndex.from_vectors, self.vectors))
        if found is not None:
            space = await embed_files(clip, found.files, store, show)
            failed = sorted([*found.failed, *space.failed], key=lambda failure: os.fsencode(failure.path))
            return replace(space, failed=failed, skipped=found.skipped)
        vector_id = (await clip.model()).vector_id
        return SearchSpace(index=await to_thread.run_sync(store_index, store, vector_id, show), store=store)
