"""All that is known about the photos of one search: from the store, and, for what is new, from files and server."""

from __future__ import annotations

import hashlib
import itertools
import os
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing, suppress
from dataclasses import dataclass, field, replace
from threading import Lock
from typing import TYPE_CHECKING, Final

import numpy as np
from anyio import to_thread

from clip_client.dedup.features.feature_tables import FeatureTable, VectorTable
from clip_client.dedup.features.image_features import BYTES_ONLY, ImageFeatures, extract_features
from clip_client.dedup.features.raw_preview import (
    NEEDS_RAWPY,
    bytes_only,
    can_read_raw,
    extract_raw_features,
    raw_preview,
)
from clip_client.dedup.files.file_types import is_raw
from clip_client.dedup.files.hashing import hash_file
from clip_client.dedup.store.sqlite import StoreError
from clip_client.dedup.text import why_unreadable
from clip_client.dedup.types import FailedFile, PhotoFile, SearchStats

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Collection, Iterable, Sequence

    from numpy.typing import NDArray

    from clip_client._client import ClipClient
    from clip_client._results import EmbeddedItem
    from clip_client.dedup.store.parquet_store import KeyFilter, ParquetStore
    from clip_client.dedup.store.store import Store

    OnProgress = Callable[[str, int, int], None]
    Examined = tuple[PhotoFile, str, ImageFeatures | None] | FailedFile

_FILES_PER_TURN: Final = 32
"""Files that are read and looked at before the event loop hears of them."""
_LARGEST_BYTES: Final = 64 * 2**20
"""A larger file is hashed in pieces and not looked at: no server takes it (``DecodeLimits.max_bytes``)."""
_NOT_AN_IMAGE: Final = "NOT_AN_IMAGE"
"""Name of the ``ImageStatus`` of a file that has no known image format."""
_REMEMBER_S: Final = 5.0


# asyncio.run asks for the repr of what it returns, which would write every vector out.
@dataclass(kw_only=True, repr=False)
class CollectedFeatures:
    """Photos by content."""

    copies: dict[str, list[PhotoFile]] = field(default_factory=dict)
    """SHA-256 -> the files of that content, in the order of their paths."""
    features: FeatureTable
    vectors: VectorTable
    """A content has either a vector or a refusal."""
    refused: dict[str, tuple[str, str]] = field(default_factory=dict)
    """SHA-256 -> code and message of the server."""
    failed: list[FailedFile] = field(default_factory=list)
    work: SearchStats = field(default_factory=SearchStats)

    def contents(self) -> list[str]:
        """Return the contents that can be compared, by their first path; the others' files become failures.

        Comparing bytes needs no decoder, so an image that cannot be decoded is a failure, but still compared if there
        are copies of it. What is no image at all is no photo, and nobody asked for copies of it.
        """
        comparable = []
        for sha256, own_code in zip(self.copies, self.features.column("code", list(self.copies)).tolist(), strict=True):
            files = self.copies[sha256]
            files.sort(key=lambda file: os.fsencode(file.path))
            own = (own_code, self.features[sha256].message if own_code else "")
            code, message = self.refused.get(sha256, own)
            if code and code != BYTES_ONLY:
                self.failed.extend(FailedFile(path=file.path, code=code, message=message) for file in files)
                if len(files) == 1 or code == _NOT_AN_IMAGE:
                    continue
            comparable.append(sha256)
        return sorted(comparable, key=lambda sha256: os.fsencode(self.copies[sha256][0].path))

    def with_code(self, code: str) -> list[str]:
        """Return the contents whose features say ``code``."""
        contents = list(self.copies)
        return list(itertools.compress(contents, self.features.column("code", contents) == code))

    def are_pictures(self, contents: Sequence[str]) -> NDArray[np.bool_]:
        """Tell of each content whether more than its bytes can be compared."""
        is_refused = [sha256 in self.refused for sha256 in contents]
        pictures: NDArray[np.bool_] = (self.features.column("code", contents) == "") & ~np.array(is_refused, dtype=bool)
        return pictures


async def collect_features(
    clip: ClipClient, files: Sequence[PhotoFile], store: Store, on_progress: OnProgress
) -> CollectedFeatures:
    """Bring together what is known about ``files``, and learn the rest.

    What is learnt is in the store within seconds, so a search that is interrupted goes on where it was. Reading and
    embedding run side by side. Raises StoreError, and what ``ClipClient.embed_stream`` raises when the server fails.
    """
    model = await clip.model()
    collector = FeatureCollector(clip, store.vectors(model.vector_id, model.dimension), store, len(files), on_progress)
    await to_thread.run_sync(collector.load_cached, files)
    try:
        await collector.embed(collector.read(files))
        while collector.again:
            await collector.embed(collector.next_copies())
    finally:
        collector.save()
    await to_thread.run_sync(collector.compact)
    on_progress("embedding", len(files), len(files))
    return collector.collected


class FeatureCollector:
    """Collects the features of one search: from the store where it has them, else from the files and the server."""

    def __init__(
        self, clip: ClipClient, vectors: ParquetStore, store: Store, total: int, on_progress: OnProgress
    ) -> None:
        self._features = store.looks()
        self._vectors = vectors
        self.collected = CollectedFeatures(
            features=FeatureTable(self._features.schema),
            vectors=VectorTable(total, vectors.schema.field("vector").type.list_size),
        )
        self.again: deque[str] = deque()
        """Contents whose file went away under the search while there are copies of it."""
        self._clip = clip
        self._files = store.files
        self._known: dict[str, str] = {}
        self._loaded: set[str] = set()
        """Contents that the store was asked about."""
        self._in_store: list[KeyFilter] = []
        """Which contents the store may know, as long as files are read that it does not know by their paths."""
        self._moved: list[tuple[PhotoFile, str]] = []
        """Files whose contents the store may know, and was not asked about yet."""
        self._looking = Lock()
        self._looked_at: set[tuple[str, bool]] = set()
        """Contents, and whether as a RAW file: one that has both kinds of names may show the search two pictures."""
        self._sent: list[tuple[str, PhotoFile]] = []
        self._learnt: list[tuple[PhotoFile, str]] = []
        self._saved_at = time.monotonic()
        self._total, self._done = total, 0
        self._on_progress = on_progress

    def load_cached(self, files: Sequence[PhotoFile]) -> None:
        """Read what the store knows about ``files`` by their paths, sizes and times."""
        self._known = self._files.known(files)
        self._load(set(self._known.values()))

    def _load(self, contents: Collection[str]) -> None:
        """Read what the store knows about ``contents``, none of which was read before."""
        self._loaded.update(contents)
        names = list(contents)
        keys = [bytes.fromhex(name) for name in names]
        reads_raw = can_read_raw()
        for positions, table in self._features.find(keys):
            found = [names[position] for position in positions.tolist()]
            if reads_raw:  # rawpy may have come since these were looked at
                is_readable = [message != NEEDS_RAWPY for message in table.column("message").to_pylist()]
                found, table = list(itertools.compress(found, is_readable)), table.filter(is_readable)
            self.collected.features.add_table(found, table)
        for positions, table in self._vectors.find(keys):
            found = [names[position] for position in positions.tolist()]
            codes, messages = (table.column(name).to_pylist() for name in ("code", "message"))
            self.collected.refused.update(
                {name: (code, message) for name, code, message in zip(found, codes, messages, strict=True) if code}
            )
            has_vector = [not code for code in codes]
            vectors = table.column("vector").combine_chunks().flatten().to_numpy().reshape(len(table), -1)
            self.collected.vectors.add_rows(list(itertools.compress(found, has_vector)), vectors[has_vector])

    def _key_filters(self) -> list[KeyFilter]:
        return [shelf.key_filter() for shelf in (self._features, self._vectors)]

    def _may_be_in_store(self, sha256: str) -> bool:
        """Tell whether the store has to be asked about a content."""
        return sha256 not in self._loaded and any(bytes.fromhex(sha256) in keys for keys in self._in_store)

    async def read(self, files: Sequence[PhotoFile]) -> AsyncGenerator[str, None]:
        """Hash and look at what is new; yield a path of each content that has no vector yet."""
        unknown = []
        for file in files:
            sha256 = self._known.get(file.path)
            if sha256 is None or sha256 not in self.collected.features:
                unknown.append(file)
            elif (path := self._take(sha256, file)) is not None:
                yield path
        if unknown:
            self._in_store = await to_thread.run_sync(self._key_filters)
        with ThreadPoolExecutor(os.cpu_count() or 1, thread_name_prefix="clip_client look") as pool:
            while unknown:
                for start in range(0, len(unknown), _FILES_PER_TURN):
                    turn = unknown[start : start + _FILES_PER_TURN]
                    for outcome in await to_thread.run_sync(self._examine_all, pool, turn):
                        if (path := self._learn(outcome)) is not None:
                            yield path
                # A file that was moved here has no name in the store, but its content has. Such contents are read all
                # at once, because the store is slow to ask for few of them at a time.
                moved, self._moved, self._in_store = self._moved, [], []
                await to_thread.run_sync(self._load, {sha256 for _, sha256 in moved})
                unknown = [file for file, sha256 in moved if sha256 not in self.collected.features]
                for file, sha256 in moved:
                    if sha256 in self.collected.features and (path := self._take(sha256, file)) is not None:
                        yield path

    async def next_copies(self) -> AsyncGenerator[str, None]:
        """Yield another path of each content whose first one went away."""
        while self.again:
            sha256 = self.again.popleft()
            file = self.collected.copies[sha256][0]
            self._sent.append((sha256, file))
            yield file.path

    async def embed(self, paths: AsyncGenerator[str, None]) -> None:
        """Embed each path and keep the outcome."""
        self._sent = []
        images = _images(paths)
        async with aclosing(paths), aclosing(images), aclosing(self._clip.embed_stream(images, ordered=False)) as items:
            async for item in items:
                self._settle(*self._sent[item.index], item)
                self._save_sometimes()

    def save(self) -> None:
        """Write down what was learnt and is not in the store yet."""
        self._files.remember(self._learnt)
        self._learnt = []
        self._features.flush()
        self._vectors.flush()

    def compact(self) -> None:
        """Leave files behind of which a later search opens few."""
        for shelf in (self._features, self._vectors):
            with suppress(StoreError):  # a full disk has no room for a copy of what it holds anyway
                shelf.compact()

    def _save_sometimes(self) -> None:
        if time.monotonic() - self._saved_at > _REMEMBER_S:
            self.save()
            self._saved_at = time.monotonic()

    def _take(self, sha256: str, file: PhotoFile) -> str | None:
        """Count a file to its content; return its path where the content has to be embedded."""
        self._done += 1
        self._on_progress("embedding", self._done, self._total)
        copies = self.collected.copies.setdefault(sha256, [])
        copies.append(file)
        is_settled = sha256 in self.collected.vectors or sha256 in self.collected.refused
        if len(copies) > 1 or is_settled or self.collected.features[sha256].code == BYTES_ONLY:
            return None
        self._sent.append((sha256, file))
        return file.path

    def _examine_all(self, pool: ThreadPoolExecutor, files: Sequence[PhotoFile]) -> list[Examined]:
        examined = list(pool.map(self._examine, files))
        # Of two copies that are read at the same time either may be the one that was looked at. What was seen goes to
        # the first of them, as its own name has it seen: the outcome is not to depend on which thread was quicker.
        features = {
            (one[1], is_raw(one[0].path)): one[2]
            for one in examined
            if not isinstance(one, FailedFile) and one[2] is not None
        }
        outcomes: list[Examined] = []
        met: set[str] = set()
        for one in examined:
            if isinstance(one, FailedFile):
                outcomes.append(one)
                continue
            file, sha256, _ = one
            outcomes.append((file, sha256, None if sha256 in met else features.get((sha256, is_raw(file.path)))))
            met.add(sha256)
        return outcomes

    def _examine(self, file: PhotoFile) -> Examined:
        """In a worker thread: read a file once, hash it, and look at it where nobody has."""
        if file.size_bytes > _LARGEST_BYTES:
            content = hash_file(file.path)
            if isinstance(content, FailedFile):
                return content
            if is_raw(file.path):
                return file, content.sha256, bytes_only()
            message = f"The file has {content.size_bytes:,} bytes; the limit is {_LARGEST_BYTES:,}."
            return file, content.sha256, ImageFeatures(code="TOO_LARGE", message=message)
        read = _read(file.path)
        if isinstance(read, FailedFile):
            return read
        found, data = read
        sha256 = hashlib.sha256(data).hexdigest()
        as_raw = is_raw(file.path)
        with self._looking:
            is_known = sha256 in self.collected.features or self._may_be_in_store(sha256)
            seen = is_known or (sha256, as_raw) in self._looked_at
            if not is_known:
                self._looked_at.add((sha256, as_raw))
        if seen:
            return found, sha256, None
        return found, sha256, extract_raw_features(data) if as_raw else extract_features(data)

    def _learn(self, outcome: Examined) -> str | None:
        work = self.collected.work
        if isinstance(outcome, FailedFile):
            self._done += 1
            self.collected.failed.append(outcome)
            return None
        file, sha256, features = outcome
        self.collected.work = replace(
            work, files_read=work.files_read + 1, decoded=work.decoded + (features is not None)
        )
        if features is not None and sha256 not in self.collected.features:
            self._features.add({"sha256": bytes.fromhex(sha256), **features.to_row()})
            self.collected.features[sha256] = features
        self._learnt.append((file, sha256))
        self._save_sometimes()
        if self._may_be_in_store(sha256):
            self._moved.append((file, sha256))
            return None
        return self._take(sha256, file)

    def _settle(self, sha256: str, file: PhotoFile, item: EmbeddedItem) -> None:
        """Keep the vector, or the reason why there is none."""
        error = None if item.error is None else (item.error.code, item.error.message)
        if error is None and not _is_unchanged(file):
            error = ("UNREADABLE", "It was changed while it was read.")
        work = self.collected.work
        self.collected.work = replace(work, embedded=work.embedded + 1)
        if error is None and item.vector is not None:
            self.collected.vectors[sha256] = item.vector
            self._vectors.add({"sha256": bytes.fromhex(sha256), "vector": item.vector, "code": "", "message": ""})
        elif error is not None and error[0] == "UNREADABLE":
            # This file went away since it was hashed, which says nothing about the copies of it.
            self.collected.failed.append(FailedFile(path=file.path, code=error[0], message=error[1]))
            self.collected.copies[sha256].remove(file)
            if self.collected.copies[sha256]:
                self.again.append(sha256)
            else:
                del self.collected.copies[sha256]
        elif error is not None:
            self.collected.refused[sha256] = error
            row = {"sha256": bytes.fromhex(sha256), "vector": None, "code": error[0], "message": error[1]}
            self._vectors.add(row)


async def _images(paths: AsyncGenerator[str, None]) -> AsyncGenerator[str | bytes, None]:
    """Give what the client takes for each path: the path, or the preview inside a RAW file."""
    async for path in paths:
        preview = await to_thread.run_sync(_preview_in, path) if is_raw(path) else None
        yield path if preview is None else preview


def _preview_in(path: str) -> bytes | None:
    read = _read(path)
    return None if isinstance(read, FailedFile) else raw_preview(read[1])


def _read(path: str) -> tuple[PhotoFile, bytes] | FailedFile:
    """Read a file whole, with its size and time as they were then."""
    try:
        # O_NONBLOCK and O_BINARY exist on some systems only; a FIFO blocks nobody who opens it with the first.
        flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0)
        with open(os.open(path, flags), "rb", buffering=0) as file:
            before = os.fstat(file.fileno())
            data = file.read()
            after = os.fstat(file.fileno())
    except (OSError, ValueError) as error:
        return FailedFile(path=path, code="UNREADABLE", message=why_unreadable(error))
    if data is None or (before.st_size, before.st_mtime_ns) != (len(data), after.st_mtime_ns):
        return FailedFile(path=path, code="UNREADABLE", message="It was changed while it was read.")
    if not data:
        return FailedFile(path=path, code="EMPTY", message="The file is empty.")
    return PhotoFile(path, len(data), after.st_mtime_ns), data


def _is_unchanged(file: PhotoFile) -> bool:
    try:
        status = os.stat(file.path)
    except OSError:
        return False
    return (status.st_size, status.st_mtime_ns) == (file.size_bytes, file.mtime_ns)


def read_files(paths: Iterable[str]) -> dict[str, str]:
    """Return path -> SHA-256 of files that a person names. Raises OSError with a sentence for one that fails."""
    found = {}
    for path in paths:
        content = hash_file(path)
        if isinstance(content, FailedFile):
            raise OSError(f"{path}: {content.message}")
        found[path] = content.sha256
    return found
