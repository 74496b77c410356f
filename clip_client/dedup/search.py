"""The search for duplicates, from paths to a report."""

from __future__ import annotations

import hashlib
import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import numpy as np
from anyio import to_thread

from clip_client.dedup.compare.cannot_link import CannotLink
from clip_client.dedup.compare.groups import Comparison, make_groups
from clip_client.dedup.compare.keep_rules import DEFAULT_RULES, Candidate, KeepRules
from clip_client.dedup.compare.partitioned_join import join_vectors
from clip_client.dedup.compare.pixel_candidates import pixel_candidates
from clip_client.dedup.compare.similarity_join import join_hashes
from clip_client.dedup.compare.thresholds import thresholds_for
from clip_client.dedup.compare.union_find import UnionFind
from clip_client.dedup.features.collect import collect_features
from clip_client.dedup.features.image_features import BYTES_ONLY, pixel_hash
from clip_client.dedup.files.companions import companions
from clip_client.dedup.files.directories import DirectorySet
from clip_client.dedup.files.scanner import Scan, scan
from clip_client.dedup.store.sqlite import StoreError
from clip_client.dedup.store.store import Store
from clip_client.dedup.types import DuplicateReport, RecallEstimate

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from numpy.typing import NDArray

    from clip_client._client import ClipClient
    from clip_client.dedup.features.collect import CollectedFeatures
    from clip_client.dedup.types import Companion

    OnProgress = Callable[[str, int, int | None], None]
    Paths = str | os.PathLike[str] | Iterable[str | os.PathLike[str]]

DEFAULT_HASH_BITS: Final = 3
"""Bits of 64 in which two perceptual hashes may differ. In a collection of 23.5 million pictures hashes that differ in
3 bits at most belonged to the same picture "with high probability" (czkawka, issue 61)."""


async def find_duplicates(
    clip: ClipClient,
    paths: Paths | Scan,
    *,
    threshold: float | None = None,
    near_identical: float | None = None,
    hash_bits: int = DEFAULT_HASH_BITS,
    references: Iterable[str | os.PathLike[str]] = (),
    keep: Sequence[str] = DEFAULT_RULES,
    store: Store | None = None,
    on_progress: OnProgress | None = None,
) -> DuplicateReport:
    """Find the photos below ``paths`` that show the same: files and folders, or what :func:`scan` made of them.

    Photos are alike where their bytes, their pixels, their perceptual hashes (at most ``hash_bits`` bits differ; -1
    turns this off) or their vectors (cosine of at least ``threshold``, else what :func:`thresholds_for` says for the
    model; ``near_identical`` is that of the stricter tier) are. Pictures of nearly one colour are alike by bytes and
    pixels only, RAW files without a preview by their bytes. Folders in ``references`` are searched, too (a
    :class:`Scan` holds them already), and kept before all else. ``keep`` names the rules that choose the kept photo
    (``KeepRules``). With ``store`` nothing is read or embedded twice, and what a person
    said to be different is never grouped again. The result does not depend on the order of ``paths``. A file that
    fails is listed in the report and harms no other.

    ``on_progress(what, done, total)`` is called on the event loop; the total is None while it is not known. Raises
    ValueError for a threshold outside 0 to 1 or an unknown rule, StoreError, and what ``ClipClient.embed_stream``
    raises when the server fails.
    """
    rules = KeepRules(keep)
    if not -1 <= hash_bits <= 16:
        raise ValueError(f"perceptual hashes may differ in at most 16 bits (-1: not used), got {hash_bits}")
    model = await clip.model()
    thresholds = thresholds_for(model.id, threshold, near_identical=near_identical)
    report_progress = on_progress or _ignore
    kept_folders = [os.fsdecode(path) for path in references]
    if isinstance(paths, Scan):
        found = paths
    else:
        named = [os.fsdecode(path) for path in ([paths] if isinstance(paths, str | os.PathLike) else paths)]
        found = await to_thread.run_sync(lambda: scan([*named, *kept_folders], raw=True))
    with nullcontext(store) if store is not None else Store() as held:
        search = _Search(held, rules, kept_folders, hash_bits, thresholds.similar, found)
        library = await collect_features(clip, found.files, held, report_progress)
        report_progress("comparing", 0, None)
        comparison, coverage = await to_thread.run_sync(search.compare, library)
    groups = await to_thread.run_sync(make_groups, comparison, thresholds)
    report_progress("comparing", len(found.files), len(found.files))
    failed = [*library.failed, *found.failed]
    return DuplicateReport(
        model=model.id,
        thresholds=thresholds,
        compared=len(found.files) - len(library.failed),
        groups=tuple(sorted(groups, key=lambda group: os.fsencode(group.keep))),
        failed=tuple(sorted(failed, key=lambda failure: os.fsencode(failure.path))),
        work=library.work,
        coverage=coverage,
        links=found.links,
        skipped=found.skipped,
        bytes_only=tuple(
            sorted(
                (file.path for sha256 in library.with_code(BYTES_ONLY) for file in library.copies[sha256]),
                key=os.fsencode,
            )
        ),
    )


@dataclass(frozen=True, kw_only=False)
class _Search:
    store: Store
    rules: KeepRules
    references: list[str]
    hash_bits: int
    threshold: float
    found: Scan

    def compare(self, library: CollectedFeatures) -> tuple[Comparison, RecallEstimate]:
        """Find what hangs together; in a worker thread."""
        contents = library.contents()
        pictures = library.are_pictures(contents)
        has_hash = pictures & ~library.features.column("is_flat", contents)
        hashes = library.features.column("perceptual_hash", contents)
        vectors = library.vectors.in_order(contents)
        vectors[~has_hash] = np.nan
        pixels = self._pixels(contents, np.flatnonzero(pictures), library)
        union_find = UnionFind(len(contents))
        coverage = join_vectors(union_find, vectors, self.threshold)
        if self.hash_bits >= 0:
            join_hashes(union_find, np.flatnonzero(has_hash), hashes, self.hash_bits)
        _, firsts, which = np.unique(pixels, return_index=True, return_inverse=True)
        union_find.join(np.arange(len(contents)), firsts[which])
        components = union_find.components()
        comparison = Comparison(
            candidates=self._candidates(contents, components, library),
            vectors=vectors,
            pixels=pixels,
            hashes=hashes,
            has_hash=has_hash,
            hash_bits=self.hash_bits,
            components=components,
            cannot_link=self._cannot_link(contents),
            rules=self.rules,
        )
        return comparison, coverage

    def _candidates(
        self, contents: list[str], components: list[NDArray[np.intp]], library: CollectedFeatures
    ) -> dict[int, list[Candidate]]:
        """Return the files of each content that is not alone, best first."""
        rows = {row for row, sha256 in enumerate(contents) if len(library.copies[sha256]) > 1}
        rows.update(*(component.tolist() for component in components))
        belongings = self._belongings(file.path for row in rows for file in library.copies[contents[row]])
        references = DirectorySet(self.references)
        made = {}
        for row in sorted(rows):
            sha256 = contents[row]
            files = [
                Candidate(
                    path=file.path,
                    sha256=sha256,
                    size_bytes=file.size_bytes,
                    mtime_ns=file.mtime_ns,
                    features=library.features[sha256],
                    is_reference=references.contains(file.path),
                    is_by_link=file.path in self.found.links.only_by_link,
                    companions=tuple(companion.kind for companion in belongings.get(file.path, ())),
                    in_library=self.found.in_libraries.get(file.path),
                )
                for file in library.copies[sha256]
            ]
            made[row] = sorted(files, key=self.rules.rank)
        return made

    def _belongings(self, paths: Iterable[str]) -> dict[str, tuple[Companion, ...]]:
        kept_by_photos = self.found.in_libraries
        return companions(path for path in paths if path not in kept_by_photos) | {
            path: photo.companions for path, photo in kept_by_photos.items()
        }

    def _pixels(self, contents: list[str], rows: NDArray[np.intp], library: CollectedFeatures) -> NDArray[np.intp]:
        """Number the contents so that equal pixels have equal numbers.

        Only ``rows`` are pictures, and only those that may have equal pixels are decoded in full, once per store.
        """
        pictures = [contents[row] for row in rows.tolist()]
        wanted = rows[
            pixel_candidates(
                np.stack([library.features.column(side, pictures) for side in ("width", "height")], axis=1),
                *(library.features.column(name, pictures) for name in ("perceptual_hash", "is_scaled", "is_flat")),
            )
        ].tolist()
        numbers = np.arange(len(contents))
        if not wanted:
            return numbers
        shelf = self.store.pixels()
        known: dict[bytes, str] = {}
        for _, table in shelf.find([bytes.fromhex(contents[row]) for row in wanted]):
            known.update(zip(table.column("sha256").to_pylist(), table.column("pixels").to_pylist(), strict=True))
        new = [row for row in wanted if bytes.fromhex(contents[row]) not in known]
        with ThreadPoolExecutor(os.cpu_count() or 1, thread_name_prefix="clip_client pixels") as pool:
            keys = [bytes.fromhex(contents[row]) for row in new]
            paths = [library.copies[contents[row]][0].path for row in new]
            for key, pixels in zip(keys, pool.map(_pixels_of, paths, keys), strict=True):
                known[key] = pixels or ""
                if pixels is not None:
                    shelf.add({"sha256": key, "pixels": pixels})
        shelf.flush()
        with suppress(StoreError):  # as in gather: it is only for the sake of later searches
            shelf.compact()
        library.work = replace(library.work, pixels_decoded=len(new))
        first_with: dict[str, int] = {}
        for row in wanted:
            if pixels := known[bytes.fromhex(contents[row])]:
                numbers[row] = first_with.setdefault(pixels, row)
        return numbers

    def _cannot_link(self, contents: list[str]) -> CannotLink:
        """Return the rows that a person said to be different."""
        decisions = self.store.decisions.all()
        decided = frozenset[str]().union(*(decision.contents for decision in decisions))
        rows = {sha256: row for row, sha256 in enumerate(contents) if sha256 in decided}
        present = (sorted(rows[sha256] for sha256 in decision.contents & rows.keys()) for decision in decisions)
        return CannotLink(np.array(some, dtype=np.intp) for some in present)


def _pixels_of(path: str, sha256: bytes) -> str | None:
    """Return the hash of a file's pixels; None where it no longer holds the content of this hash."""
    try:
        with open(path, "rb") as file:
            data = file.read()
    except OSError:
        return None
    return pixel_hash(data) if hashlib.sha256(data).digest() == sha256 else None


def _ignore(what: str, done: int, total: int | None) -> None:
    """Report progress to nobody."""
