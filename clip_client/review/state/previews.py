"""The pictures of the pages: drawn when a page asks for them, and kept in the store up to a limit."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final

from clip_client.dedup.features.preview import small_jpeg
from clip_client.dedup.files.reading import read_content
from clip_client.dedup.types import PREVIEWS_MARK

SIZES: Final = {"small": 480, "large": 1600, "full": 65_500}
"""Longest side in pixels of each size. The last is the limit of a JPEG."""
_QUALITY: Final = {"small": 80, "large": 88, "full": 95}

_MOST_BYTES: Final = 1_000_000_000
"""Limit of the folder: about 30,000 small pictures, or 150 of 24 megapixels at full size."""
_AFTER_CLEANING: Final = 0.8


class PreviewCache:
    """JPEG files, named after the content of their photo. Threads and processes may share the folder."""

    def __init__(self, folder: Path, *, most_bytes: int = _MOST_BYTES) -> None:
        self._folder = folder
        self._most_bytes = most_bytes
        self._lock = threading.Lock()
        folder.mkdir(mode=0o700, exist_ok=True)
        mark = "Pictures of clip-client review, which clip-client leaves out of a search.\n"
        (folder / PREVIEWS_MARK).write_text(mark)
        self._bytes = sum(size for _, size, _ in self._files())

    def jpeg(self, sha256: str, paths: Iterable[str], size: str) -> bytes | None:
        """Return a photo, upright, in one of the :data:`SIZES`; None if no file of ``paths`` has its content."""
        file = self._folder / f"{sha256}-{size}.jpg"
        with suppress(OSError):
            jpeg = file.read_bytes()
            os.utime(file)  # pictures that were used last are removed last
            return jpeg
        for path in paths:
            # Check the content: the file may have been replaced since the search, even by a link to a file outside it.
            if (data := read_content(path, sha256)) is None:
                continue
            # At full size keep all colour detail, so that differences of colours are the photos' own.
            subsampling = 0 if size == "full" else -1
            drawn = small_jpeg(path, data, SIZES[size], quality=_QUALITY[size], subsampling=subsampling)
            if drawn is not None:
                self._keep(file, drawn)
                return drawn
        return None

    def _keep(self, file: Path, jpeg: bytes) -> None:
        part = file.with_suffix(f".{threading.get_ident()}-{os.getpid()}.part")
        with suppress(OSError):  # if the disk is full, the picture is drawn again next time
            part.write_bytes(jpeg)
            os.replace(part, file)
        with self._lock:
            self._bytes += len(jpeg)
            if self._bytes > self._most_bytes:
                self._clean()

    def _clean(self) -> None:
        files = sorted(self._files())
        self._bytes = sum(size for _, size, _ in files)
        for _, size, path in files:
            if self._bytes <= _AFTER_CLEANING * self._most_bytes:
                return
            with suppress(OSError):
                os.unlink(path)
            self._bytes -= size

    def _files(self) -> Iterable[tuple[int, int, str]]:
        with os.scandir(self._folder) as entries:
            for entry in entries:
                if entry.name.endswith((".jpg", ".part")):
                    with suppress(OSError):
                        status = entry.stat()
                        yield status.st_mtime_ns, status.st_size, entry.path
