"""The search for duplicates, from paths to a report."""

from __future__ import annotations

import os
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import numpy as np
from anyio import to_thread

from clip_client.dedup.grouping import components, minimum_similarity, star_groups
from clip_client.dedup.hashing import Content, hash_file
from clip_client.dedup.preview import preview
from clip_client.dedup.report import EXACT, NEAR_IDENTICAL, SIMILAR, DuplicateGroup, DuplicateReport, FailedFile, Member
from clip_client.dedup.scan import scan
from clip_client.dedup.thresholds import Thresholds, thresholds_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from numpy.typing import NDArray

    from clip_client._client import ClipClient

    OnProgress = Callable[[str, int, int], None]

_FILES_PER_TURN: Final = 64
"""Files that are hashed and embedded at a time: enough to fill a server's batch, few enough to show progress."""


async def find_duplicates(
    clip: ClipClient,
    paths: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
    *,
    threshold: float | None = None,
    include_hidden: bool = False,
    follow_links: bool = False,
    on_progress: OnProgress | None = None,
) -> DuplicateReport:
    """Find the photos below ``paths`` (files and folders) that show the same.

    Files of the same bytes are found by their hash; of each content one file is embedded. Contents are compared by
    the cosine of their vectors: ``threshold``, else what :func:`thresholds_for` says for the model. Pictures of nearly
    one colour are never grouped by their vectors. The result does not depend on the order of ``paths``. A file that
    fails is listed in the report and harms no other.

    ``on_progress(what, done, total)`` is called on the event loop. Raises ValueError for a threshold outside 0 to 1,
    and what ``ClipClient.embed`` raises when the server fails.
    """
    model = await clip.model()
    thresholds = thresholds_for(model.id, threshold)
    report_progress = on_progress or _ignore
    found = await to_thread.run_sync(lambda: scan(paths, include_hidden=include_hidden, follow_links=follow_links))
    library = await _embed(clip, found.photos, report_progress)
    library.failed.extend(found.failed)
    if not library.contents:
        groups: list[DuplicateGroup] = []
    else:
        groups = await _group(library, thresholds, report_progress)
    return DuplicateReport(
        model=model.id,
        thresholds=thresholds,
        compared=len(found.photos) + len(found.failed) - len(library.failed),
        groups=tuple(sorted(groups, key=lambda group: os.fsencode(group.keep))),
        failed=tuple(sorted(library.failed, key=lambda failure: os.fsencode(failure.path))),
    )


@dataclass(kw_only=True)
class _Library:
    """The photos by content; ``contents`` and ``vectors`` run in parallel."""

    contents: list[list[Content]] = field(default_factory=list)
    """Files of the same bytes stand together, in the order of their paths."""
    vectors: list[NDArray[np.float32]] = field(default_factory=list)
    """(D,) each."""
    failed: list[FailedFile] = field(default_factory=list)


async def _embed(clip: ClipClient, photos: Sequence[str], on_progress: OnProgress) -> _Library:
    """Hash all files and embed one of each content."""
    library = _Library()
    copies: dict[str, list[Content]] = {}
    refused: dict[str, tuple[str, str]] = {}  # content -> code and message
    waiting = deque(photos)
    while waiting:
        turn = [waiting.popleft() for _ in range(min(len(waiting), _FILES_PER_TURN))]
        new = []
        for content in await to_thread.run_sync(_hash_files, turn):
            if isinstance(content, FailedFile):
                library.failed.append(content)
            elif content.sha256 in copies:
                copies[content.sha256].append(content)
            else:
                copies[content.sha256] = [content]
                new.append(content)
        batch = await clip.embed([content.path for content in new])
        for index, content in enumerate(new):
            error = batch.errors.get(index)
            if error is None:
                library.contents.append(copies[content.sha256])
                library.vectors.append(batch.vectors[index])
            elif error.code == "UNREADABLE":
                # This file went away since it was hashed, which says nothing about the copies of it.
                library.failed.append(FailedFile(path=content.path, code=error.code, message=error.message))
                waiting.extend(copy.path for copy in copies.pop(content.sha256)[1:])
            else:
                refused[content.sha256] = (error.code, error.message)
        on_progress("embedding", len(photos) - len(waiting), len(photos))
    for sha256, (code, message) in refused.items():
        library.failed.extend(FailedFile(path=copy.path, code=code, message=message) for copy in copies[sha256])
    for files in library.contents:
        files.sort(key=lambda content: os.fsencode(content.path))
    return library


def _hash_files(paths: list[str]) -> list[Content | FailedFile]:
    return [hash_file(path) for path in paths]


@dataclass(frozen=True, kw_only=True)
class _Look:
    """What the picture itself says about a content."""

    row: int
    files: list[Content]
    width: int
    height: int
    is_flat: bool

    @property
    def rank(self) -> tuple[int, int, bytes]:
        """Return the order of keeping: most pixels, then most bytes, then the first path."""
        return (-self.width * self.height, -self.files[0].size_bytes, os.fsencode(self.files[0].path))

    def members(self, similarity: float) -> list[Member]:
        return [
            Member(
                path=file.path,
                similarity=similarity,
                width=self.width,
                height=self.height,
                size_bytes=file.size_bytes,
                sha256=file.sha256,
            )
            for file in self.files
        ]


async def _group(library: _Library, thresholds: Thresholds, on_progress: OnProgress) -> list[DuplicateGroup]:
    vectors = np.stack(library.vectors)  # (contents, D)
    related = await to_thread.run_sync(components, vectors, thresholds.similar)
    with_copies = {row for row, files in enumerate(library.contents) if len(files) > 1}
    candidates = sorted(with_copies.union(*(component.tolist() for component in related)))
    looks: dict[int, _Look] = {}
    for done, row in enumerate(candidates, start=1):
        look = await to_thread.run_sync(_look, row, library.contents[row])
        if isinstance(look, _Look):
            looks[row] = look
        else:
            library.failed.extend(look)
        on_progress("comparing", done, len(candidates))
    groups = []
    for component in related:
        comparable = [looks[row] for row in component.tolist() if row in looks and not looks[row].is_flat]
        for star in await to_thread.run_sync(_stars, comparable, vectors, thresholds):
            groups.append(star.group)
            with_copies -= star.rows
    return groups + [_exact_group(looks[row]) for row in with_copies if row in looks]


def _look(row: int, files: list[Content]) -> _Look | list[FailedFile]:
    seen = preview(files[0].path)
    if isinstance(seen, FailedFile):
        return [FailedFile(path=file.path, code=seen.code, message=seen.message) for file in files]
    return _Look(row=row, files=files, width=seen.width, height=seen.height, is_flat=seen.is_flat)


@dataclass(frozen=True, kw_only=True)
class _Grouped:
    rows: set[int]
    group: DuplicateGroup


def _stars(looks: list[_Look], vectors: NDArray[np.float32], thresholds: Thresholds) -> list[_Grouped]:
    """Group what one component holds, best photo first."""
    ranked = sorted(looks, key=lambda look: look.rank)
    rows = [look.row for look in ranked]
    grouped = []
    for star in star_groups(vectors[rows], thresholds.similar):
        within = [rows[position] for position in (star.keep, *star.members)]
        similarity = minimum_similarity(vectors[within])
        members = ranked[star.keep].members(1.0)
        for position, to_keep in zip(star.members, star.similarities, strict=True):
            members += ranked[position].members(to_keep)
        tier = NEAR_IDENTICAL if similarity >= thresholds.near_identical else SIMILAR
        group = DuplicateGroup(tier=tier, min_similarity=similarity, members=tuple(members))
        grouped.append(_Grouped(rows=set(within), group=group))
    return grouped


def _exact_group(look: _Look) -> DuplicateGroup:
    return DuplicateGroup(tier=EXACT, min_similarity=1.0, members=tuple(look.members(1.0)))


def _ignore(what: str, done: int, total: int) -> None:
    """Report progress to nobody."""
