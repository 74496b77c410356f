"""All that is known about the photos of one search: from the store, and, for what is new, from files and server."""

from __future__ import annotations

import hashlib
import os
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from threading import Lock
from typing import TYPE_CHECKING, Final

import numpy as np
from anyio import to_thread

from clip_client.dedup.file_kinds import is_raw
from clip_client.dedup.hashing import hash_file
from clip_client.dedup.looks import BYTES_ONLY, Look, look_at
from clip_client.dedup.raw import NEEDS_RAWPY, bytes_only, can_read_raw, look_at_raw, raw_preview
from clip_client.dedup.report import FailedFile, Work, why_unreadable
from clip_client.dedup.scan import PhotoFile

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Iterable, Sequence

    from numpy.typing import NDArray

    from clip_client._batch import EmbeddedItem
    from clip_client._client import ClipClient
    from clip_client.dedup.store import Store

    OnProgress = Callable[[str, int, int], None]
    Examined = tuple[PhotoFile, str, Look | None] | FailedFile

_FILES_PER_TURN: Final = 32
"""Files that are read and looked at before the event loop hears of them."""
_LARGEST_BYTES: Final = 64 * 2**20
"""A larger file is hashed in pieces and not looked at: no server takes it (``DecodeLimits.max_bytes``)."""
_NOT_AN_IMAGE: Final = "NOT_AN_IMAGE"
"""Name of the ``ImageStatus`` of a file that has no known image format."""
_REMEMBER_S: Final = 5.0


# asyncio.run asks for the repr of what it returns, which would write every vector out.
@dataclass(kw_only=True, repr=False)
class Library:
    """Photos by content."""

    copies: dict[str, list[PhotoFile]] = field(default_factory=dict)
    """SHA-256 -> the files of that content, in the order of their paths."""
    looks: dict[str, Look] = field(default_factory=dict)
    vectors: dict[str, NDArray[np.float32]] = field(default_factory=dict)
    """(D,) each; a content has either a vector or a refusal."""
    refused: dict[str, tuple[str, str]] = field(default_factory=dict)
    """SHA-256 -> code and message of the server."""
    failed: list[FailedFile] = field(default_factory=list)
    work: Work = field(default_factory=Work)

    def contents(self) -> list[str]:
        """Return the contents that can be compared, by their first path; the others' files become failures.

        Comparing bytes needs no decoder, so an image that cannot be decoded is a failure, but still compared if there
        are copies of it. What is no image at all is no photo, and nobody asked for copies of it.
        """
        comparable = []
        for sha256, files in self.copies.items():
            files.sort(key=lambda file: os.fsencode(file.path))
            code, message = self._failure(sha256)
            if code and code != BYTES_ONLY:
                self.failed.extend(FailedFile(path=file.path, code=code, message=message) for file in files)
                if len(files) == 1 or code == _NOT_AN_IMAGE:
                    continue
            comparable.append(sha256)
        return sorted(comparable, key=lambda sha256: os.fsencode(self.copies[sha256][0].path))

    def is_picture(self, sha256: str) -> bool:
        """Tell whether more than the bytes of a content can be compared."""
        return not self._failure(sha256)[0]

    def _failure(self, sha256: str) -> tuple[str, str]:
        """Return code and message of what failed; empty if nothing did."""
        look = self.looks[sha256]
        return self.refused.get(sha256, (look.code, look.message))


async def gather(clip: ClipClient, files: Sequence[PhotoFile], store: Store, on_progress: OnProgress) -> Library:
    """Bring together what is known about ``files``, and learn the rest.

    What is learnt is in the store within seconds, so a search that is interrupted goes on where it was. Reading and
    embedding run side by side. Raises StoreError, and what ``ClipClient.embed_stream`` raises when the server fails.
    """
    gathering = _Gathering(clip, (await clip.model()).vector_id, store, len(files), on_progress)
    await to_thread.run_sync(gathering.recall, files)
    try:
        await gathering.embed(gathering.read(files))
        while gathering.again:
            await gathering.embed(gathering.next_copies())
    finally:
        gathering.save()
    on_progress("embedding", len(files), len(files))
    return gathering.library


class _Gathering:
    def __init__(self, clip: ClipClient, vector_id: str, store: Store, total: int, on_progress: OnProgress) -> None:
        self.library = Library()
        self.again: deque[str] = deque()
        """Contents whose file went away under the search while there are copies of it."""
        self._clip = clip
        self._files = store.files
        self._looks = store.looks()
        self._vectors = store.vectors(vector_id)
        self._known: dict[str, str] = {}
        self._looking = Lock()
        self._looked_at: set[tuple[str, bool]] = set()
        """Contents, and whether as a RAW file: one that has both kinds of names may show the search two pictures."""
        self._sent: list[tuple[str, PhotoFile]] = []
        self._learnt: list[tuple[PhotoFile, str]] = []
        self._saved_at = time.monotonic()
        self._total, self._done = total, 0
        self._on_progress = on_progress

    def recall(self, files: Sequence[PhotoFile]) -> None:
        """Read what the store knows about ``files``."""
        self._known = self._files.known(files)
        # Not only what these files hold: a file that was moved here has no name in the store, but its content has.
        looks = self._looks.read()
        names = [column for column in looks.schema.names if column != "sha256"]
        keys = [key.hex() for key in looks.column("sha256").to_pylist()]
        rows = zip(*(looks.column(name).to_pylist() for name in names), strict=True)
        reads_raw = can_read_raw()
        for key, values in zip(keys, rows, strict=True):
            look = Look.from_row(dict(zip(names, values, strict=True)))
            if look.message != NEEDS_RAWPY or not reads_raw:  # rawpy may have come since
                self.library.looks[key] = look
        vectors = self._vectors.read().combine_chunks()
        for chunk in vectors.to_batches():
            column = chunk.column("vector")
            elements = np.asarray(column.values if len(column) else [], dtype=np.float32)
            starts = np.asarray(column.offsets).tolist()
            for row, key in enumerate(chunk.column("sha256").to_pylist()):
                if starts[row + 1] > starts[row]:
                    self.library.vectors[key.hex()] = elements[starts[row] : starts[row + 1]]
                else:
                    code, message = (chunk.column(name)[row].as_py() for name in ("code", "message"))
                    self.library.refused[key.hex()] = (code, message)

    async def read(self, files: Sequence[PhotoFile]) -> AsyncGenerator[str, None]:
        """Hash and look at what is new; yield a path of each content that has no vector yet."""
        unknown = []
        for file in files:
            sha256 = self._known.get(file.path)
            if sha256 is None or sha256 not in self.library.looks:
                unknown.append(file)
            elif (path := self._take(sha256, file)) is not None:
                yield path
        with ThreadPoolExecutor(os.cpu_count() or 1, thread_name_prefix="clip_client look") as pool:
            for start in range(0, len(unknown), _FILES_PER_TURN):
                turn = unknown[start : start + _FILES_PER_TURN]
                for outcome in await to_thread.run_sync(self._examine_all, pool, turn):
                    if (path := self._learn(outcome)) is not None:
                        yield path

    async def next_copies(self) -> AsyncGenerator[str, None]:
        """Yield another path of each content whose first one went away."""
        while self.again:
            sha256 = self.again.popleft()
            file = self.library.copies[sha256][0]
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
        self._looks.flush()
        self._vectors.flush()

    def _save_sometimes(self) -> None:
        if time.monotonic() - self._saved_at > _REMEMBER_S:
            self.save()
            self._saved_at = time.monotonic()

    def _take(self, sha256: str, file: PhotoFile) -> str | None:
        """Count a file to its content; return its path where the content has to be embedded."""
        self._done += 1
        self._on_progress("embedding", self._done, self._total)
        copies = self.library.copies.setdefault(sha256, [])
        copies.append(file)
        is_settled = sha256 in self.library.vectors or sha256 in self.library.refused
        if len(copies) > 1 or is_settled or self.library.looks[sha256].code == BYTES_ONLY:
            return None
        self._sent.append((sha256, file))
        return file.path

    def _examine_all(self, pool: ThreadPoolExecutor, files: Sequence[PhotoFile]) -> list[Examined]:
        examined = list(pool.map(self._examine, files))
        # Of two copies that are read at the same time either may be the one that was looked at. What was seen goes to
        # the first of them, as its own name has it seen: the outcome is not to depend on which thread was quicker.
        looks = {
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
            outcomes.append((file, sha256, None if sha256 in met else looks.get((sha256, is_raw(file.path)))))
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
            return file, content.sha256, Look(code="TOO_LARGE", message=message)
        read = _read(file.path)
        if isinstance(read, FailedFile):
            return read
        found, data = read
        sha256 = hashlib.sha256(data).hexdigest()
        as_raw = is_raw(file.path)
        with self._looking:
            seen = sha256 in self.library.looks or (sha256, as_raw) in self._looked_at
            self._looked_at.add((sha256, as_raw))
        if seen:
            return found, sha256, None
        return found, sha256, look_at_raw(data) if as_raw else look_at(data)

    def _learn(self, outcome: Examined) -> str | None:
        work = self.library.work
        if isinstance(outcome, FailedFile):
            self._done += 1
            self.library.failed.append(outcome)
            return None
        file, sha256, look = outcome
        self.library.work = replace(work, files_read=work.files_read + 1, decoded=work.decoded + (look is not None))
        if look is not None and sha256 not in self.library.looks:
            self._looks.add({"sha256": bytes.fromhex(sha256), **look.to_row()})
            self.library.looks[sha256] = look
        self._learnt.append((file, sha256))
        self._save_sometimes()
        return self._take(sha256, file)

    def _settle(self, sha256: str, file: PhotoFile, item: EmbeddedItem) -> None:
        """Keep the vector, or the reason why there is none."""
        error = None if item.error is None else (item.error.code, item.error.message)
        if error is None and not _is_unchanged(file):
            error = ("UNREADABLE", "It was changed while it was read.")
        work = self.library.work
        self.library.work = replace(work, embedded=work.embedded + 1)
        if error is None and item.vector is not None:
            self.library.vectors[sha256] = item.vector
            self._vectors.add({"sha256": bytes.fromhex(sha256), "vector": item.vector, "code": "", "message": ""})
        elif error is not None and error[0] == "UNREADABLE":
            # This file went away since it was hashed, which says nothing about the copies of it.
            self.library.failed.append(FailedFile(path=file.path, code=error[0], message=error[1]))
            self.library.copies[sha256].remove(file)
            if self.library.copies[sha256]:
                self.again.append(sha256)
            else:
                del self.library.copies[sha256]
        elif error is not None:
            self.library.refused[sha256] = error
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
