"""Folders of files that look like photos to the journal, and reports about them."""

from __future__ import annotations

import asyncio
import os
from contextlib import contextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from clip_client.dedup import DuplicateGroup, DuplicateReport, Member, Store, find_duplicates, scan, thresholds_for
from clip_client.dedup.files.hashing import Content, hash_file
from clip_client.dedup.store.journal import Journal
from clip_client.dedup.types import EXACT, TIERS

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

MODEL = "ViT-B-32/openai@1a2b3c4d"

Snapshot = dict[str, tuple[bytes, int, int]]
"""Relative path -> bytes, time of access, time of change."""


def snapshot(folder: Path) -> Snapshot:
    """All files, their times taken before they are read."""
    found = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            status = path.lstat()
            data = path.read_bytes()
            os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
            found[str(path.relative_to(folder))] = (data, status.st_atime_ns, status.st_mtime_ns)
    return found


def without_access(of: Snapshot) -> dict[str, tuple[bytes, int]]:
    """Leave out the time of access: a photo that stayed may have been read."""
    return {name: (data, mtime_ns) for name, (data, _, mtime_ns) in of.items()}


def write(path: Path, data: bytes, time_ns: int = 1_500_000_000_123_456_789) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    os.utime(path, ns=(time_ns - 10**18, time_ns))
    return path


def member(path: Path, **more: Any) -> Member:
    content = hash_file(str(path))
    assert isinstance(content, Content)
    given: dict[str, Any] = {"similarity": 1.0, "width": 8, "height": 8, "tier": EXACT, **more}
    return Member(path=str(path), sha256=content.sha256, size_bytes=content.size_bytes, **given)


def report(*groups: tuple[Member, ...], model: str = MODEL, **more: Any) -> DuplicateReport:
    made = tuple(
        DuplicateGroup(
            tier=max((member.tier for member in members), key=TIERS.index), min_similarity=1.0, members=members
        )
        for members in groups
    )
    return DuplicateReport(model=model, thresholds=thresholds_for(model), compared=9, groups=made, failed=(), **more)


def album(root: Path) -> DuplicateReport:
    """Two groups of copies, one of them with belongings, and photos that are in no group."""
    first = [
        write(root / "a" / name, b"first", 10**18 + index) for index, name in enumerate(("1.jpg", "2.jpg", "3.jpg"))
    ]
    write(root / "a" / "1.cr2", b"raw too")
    write(root / "a" / "2.cr2", b"raw too")
    write(root / "a" / "2.jpg.xmp", b"")
    write(root / "a" / "1.xmp", b"")
    second = [write(root / "b" / "c" / os.fsdecode(b"caf\xe9.jpg"), b"second"), write(root / "copy.jpg", b"second")]
    write(root / "other.jpg", b"other")
    times = snapshot(root)
    groups = report(tuple(map(member, first)), tuple(map(member, second)))
    for name, (_data, atime_ns, mtime_ns) in times.items():
        os.utime(root / name, ns=(atime_ns, mtime_ns))
    return groups


class NoPictures:
    """A client of a server that has nothing to do: there is no picture in the files."""

    async def model(self) -> Any:
        return SimpleNamespace(id="m/random:0@00000000", vector_id="m", dimension=4)

    async def embed_stream(self, images: AsyncIterator[Any], *, ordered: bool) -> AsyncIterator[Any]:
        async for _ in images:
            yield AssertionError("a file was embedded")


def searched(*paths: Path, store: Store | None = None, follow_links: bool = False, **options: Any) -> DuplicateReport:
    """Search RAW files without a preview, which are compared by their bytes, so no server is needed."""
    found = scan([*paths, *options.get("references", ())], raw=True, follow_links=follow_links)
    clip: Any = NoPictures()
    return asyncio.run(find_duplicates(clip, found, store=store, **options))


@contextmanager
def opened(path: Path) -> Iterator[Journal]:
    journal = Journal(path)
    try:
        yield journal
    finally:
        journal.close()
