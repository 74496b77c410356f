"""The search for duplicates, from paths to a report."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Final

import numpy as np
from anyio import from_thread, to_thread

from clip_client.dedup.compare.candidate_pairs import ALIGNED_FROM, candidate_pairs, number_by_pixels
from clip_client.dedup.compare.cells import join_vectors
from clip_client.dedup.compare.groups import Compared, make_groups, proved, stars
from clip_client.dedup.compare.hamming import HASH_BITS, join_hashes
from clip_client.dedup.compare.keep_rules import DEFAULT_RULES, KeepRules, best_copies_first, converted_from_lossy
from clip_client.dedup.compare.proofs import import_aligner
from clip_client.dedup.compare.similarity_join import UnionFind
from clip_client.dedup.compare.star_groups import CannotLink, Evidence
from clip_client.dedup.compare.thresholds import thresholds_for
from clip_client.dedup.features.collect import collect_features
from clip_client.dedup.features.image_features import BYTES_ONLY
from clip_client.dedup.files.companions import companions
from clip_client.dedup.files.directories import DirectorySet
from clip_client.dedup.files.places import why_not_kept
from clip_client.dedup.files.reading import PLAIN_READER
from clip_client.dedup.files.scanner import Scan, scan
from clip_client.dedup.judge.verdicts import with_verdicts
from clip_client.dedup.photo import Photo
from clip_client.dedup.report import DuplicateReport
from clip_client.dedup.store.store import Store
from clip_client.dedup.types import NO_MODEL, SearchStats

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from clip_client._results import Embedder
    from clip_client.dedup.features.collect import CollectedFeatures
    from clip_client.dedup.files.reading import PhotoReader
    from clip_client.dedup.judge.verdicts import MoveOptions
    from clip_client.dedup.store.decisions import Decision
    from clip_client.dedup.types import LibraryPhoto, OnProgress, PhotoFile, RecallEstimate, Thresholds

    Paths = str | os.PathLike[str] | Iterable[str | os.PathLike[str]]
    PhotosOf = Callable[[Collection[int]], dict[int, list[Photo]]]
    """``photos_of(rows)`` returns row -> the files with that content that are compared, best first."""

OFF, CANDIDATES = "off", "candidates"
VERIFY_MODES: Final = (OFF, CANDIDATES)
"""Photos that are aligned: none, or those that may be copies."""


@dataclass(frozen=True, kw_only=True)
class GroupRules:
    """Everything besides the photos' features that decides about groups. A cluster's workers get a copy."""

    thresholds: Thresholds
    keep: tuple[str, ...]
    references: tuple[str, ...]
    decisions: tuple[Decision, ...]
    verify: str
    model: str = NO_MODEL
    """Id of the model whose vectors are compared."""
    in_libraries: Mapping[str, LibraryPhoto] = field(default_factory=dict)
    """Path -> photo in a library of Apple Photos."""
    only_by_link: frozenset[str] = frozenset()
    """Paths of photos that only a link leads to."""
    not_kept: Mapping[str, str] = field(default_factory=dict)
    """Path of a photo for which other photos must not move -> its place, such as ``"a recycle bin"``."""


GroupContents = Callable[["CollectedFeatures", Sequence[str], GroupRules, "Store", "OnProgress"], DuplicateReport]
"""``group(collected, contents, rules, store, on_progress)`` divides ``contents`` into groups, as :func:`group_contents`
does."""


async def find_duplicates(
    clip: Embedder | None,
    paths: Paths | Scan,
    *,
    threshold: float | None = None,
    references: Iterable[str | os.PathLike[str]] = (),
    keep: Sequence[str] = DEFAULT_RULES,
    store: Store | None = None,
    verify: str = CANDIDATES,
    options: MoveOptions | None = None,
    on_progress: OnProgress | None = None,
    group: GroupContents | None = None,
) -> DuplicateReport:
    """Find the photos below ``paths`` that show the same.

    ``paths`` are files and folders, or the result of :func:`scan` for them; their order does not change the result.
    Two photos are alike under any of these conditions:

    - They have the same bytes or the same pixels.
    - At most 3 bits of their perceptual hashes differ.
    - The cosine of their vectors is at least ``threshold`` (default: :func:`thresholds_for` the model).

    With ``verify="candidates"`` photos that may show the same are also aligned, whatever the thresholds are. The
    alignment (:class:`~clip_client.dedup.aligned.Alignment`) proves copies and names the changes. ``"off"`` turns this
    off. If OpenCV is missing, the report's ``note`` says so. Pictures of nearly one colour are compared by bytes and
    pixels only, and RAW files without a preview by their bytes.

    Folders in ``references`` are searched too (a :class:`Scan` already includes them), and their photos are kept before
    all others. ``keep`` names the rules that choose the kept photo (``KeepRules``). With a ``store`` each content is
    read and embedded only once. Photos that a person declared different, or wants to keep all, never share a group. The
    report lists the files that fail; they affect no other file.

    Without ``clip`` vectors are not compared: strong crops and edits are then found only if a perceptual hash or the
    time of capture pairs the photos.

    Each photo of a group has a verdict: whether it may move with ``options``, for which photo, and if not, why.

    ``group`` replaces :func:`.group_contents`, for example to divide the contents into groups on a cluster.
    ``on_progress(what, done, total)`` is called on the event loop; the total is None while it is not known. Raises
    ValueError for a threshold outside 0 to 1, an unknown rule or an unknown ``verify``, StoreError, and what
    ``ClipClient.embed_stream`` raises if the server fails.
    """
    check_group_rules(keep, verify)
    model = None if clip is None else await clip.model()
    model_id = NO_MODEL if model is None else model.id
    thresholds = thresholds_for(model_id, threshold)
    progress = on_progress or (lambda what, done, total: None)
    kept_folders = [os.fsdecode(path) for path in references]
    if isinstance(paths, Scan):
        found = paths
    else:
        named = [os.fsdecode(path) for path in ([paths] if isinstance(paths, str | os.PathLike) else paths)]
        found = await to_thread.run_sync(lambda: scan([*named, *kept_folders], raw=True))

    with nullcontext(store) if store is not None else Store() as opened, opened.spool() as pictures:
        aligner = None if verify == OFF else import_aligner()[0]
        keep_picture = None if aligner is None else partial(aligner.keep_small_picture, pictures)
        collected = await collect_features(clip, found.files, opened, progress, keep_picture=keep_picture)
        collected.pictures = pictures
        progress("comparing", 0, None)
        contents, undecodable = await to_thread.run_sync(collected.comparable)
        rules = GroupRules(
            thresholds=thresholds,
            keep=tuple(keep),
            references=tuple(kept_folders),
            decisions=tuple(opened.decisions.all()),
            verify=verify,
            model=model_id,
            in_libraries=found.in_libraries,
            only_by_link=found.links.only_by_link,
            not_kept=await to_thread.run_sync(
                lambda: why_not_kept((path for path in found.photos if path not in found.in_libraries), kept_folders)
            ),
        )

        def tell(what: str, done: int, total: int | None) -> None:
            from_thread.run_sync(progress, what, done, total)

        report = await to_thread.run_sync(group or group_contents, collected, contents, rules, opened, tell)
        not_compared = [*collected.failed, *undecodable]
        report = replace(
            report,
            compared=len(found.files) - len(not_compared),
            failed=tuple(sorted([*not_compared, *found.failed], key=lambda failure: os.fsencode(failure.path))),
            work=collected.stats + report.work,
            links=found.links,
            skipped=found.skipped,
            bytes_only=tuple(collected.paths_with_code(BYTES_ONLY)),
        )

        report = await to_thread.run_sync(lambda: with_verdicts(report, found.roots, options, files=opened.files))
        await to_thread.run_sync(opened.copies.record, report.groups)
        progress("comparing", len(found.files), len(found.files))
    return report


def group_contents(
    collected: CollectedFeatures,
    contents: Sequence[str],
    rules: GroupRules,
    store: Store,
    on_progress: OnProgress,
    *,
    reader: PhotoReader = PLAIN_READER,
) -> DuplicateReport:
    """Divide ``contents``, SHA-256 in hexadecimal, into groups.

    On this machine one call divides a whole search; a cluster calls this function for each part of a search. The report
    lacks verdicts. ``reader`` reads photos again for their pixels and keypoints, which ``store`` keeps. Raises
    StoreError.
    """
    photos_of = partial(_photos, collected, contents, rules)
    pixels, decoded = number_by_pixels(collected, contents, store, reader)
    compared, recall = _compare(collected, contents, rules, pixels, photos_of)
    work, aligning, note = SearchStats(pixels_decoded=decoded), None, ""
    if rules.verify != OFF:
        aligning, note = import_aligner()
    if aligning is None:
        alike = stars(compared)
    else:
        compared = _paired(compared, collected, contents, rules, photos_of)
        files = {contents[row]: files[0] for row, files in compared.candidates.items()}
        with aligning.Aligner(files, store, reader, collected.pictures) as aligner:
            compared = proved(compared, contents, aligner, on_progress)
            alike = stars(compared)
            for kept, rows in alike.items():
                compared.proofs.align(kept, rows)
            work += aligner.work
    return DuplicateReport(
        model=rules.model,
        thresholds=rules.thresholds,
        compared=sum(len(collected.copies[sha256]) for sha256 in contents),
        groups=make_groups(compared, alike),
        failed=(),
        work=work,
        coverage=recall,
        note=note,
    )


def _compare(
    collected: CollectedFeatures,
    contents: Sequence[str],
    rules: GroupRules,
    pixels: NDArray[np.intp],
    photos_of: PhotosOf,
) -> tuple[Compared, RecallEstimate]:
    """Join contents that are alike by vectors, hashes or pixels."""
    has_hash = collected.are_pictures(contents) & ~collected.features.column("is_flat", contents)
    hashes = collected.features.column("perceptual_hash", contents)
    vectors = collected.vectors_of(contents)
    vectors[~has_hash] = np.nan
    alike = UnionFind(len(contents))
    recall = join_vectors(alike, vectors, rules.thresholds.similar)
    join_hashes(alike, np.flatnonzero(has_hash), hashes, HASH_BITS)
    _, firsts, which = np.unique(pixels, return_index=True, return_inverse=True)
    alike.join(np.arange(len(contents)), firsts[which])
    components = alike.components()
    rows = {row for row, sha256 in enumerate(contents) if len(collected.copies[sha256]) > 1}
    candidates = photos_of(rows.union(*(component.tolist() for component in components)))
    pictures: dict[int, list[Photo]] = {}
    for row, files in candidates.items():
        pictures.setdefault(int(pixels[row]), []).append(files[0])
    compared = Compared(
        candidates=candidates,
        evidence=Evidence(vectors, pixels, hashes, has_hash),
        thresholds=rules.thresholds,
        components=components,
        cannot_link=CannotLink.from_decisions(contents, rules.decisions),
        rules=KeepRules(rules.keep, converted=converted_from_lossy(pictures.values())),
    )
    return compared, recall


def _paired(
    compared: Compared, collected: CollectedFeatures, contents: Sequence[str], rules: GroupRules, photos_of: PhotosOf
) -> Compared:
    """Return the comparison with the pairs that may show the same. The best row stands for all rows with its pixels."""
    column = collected.features.column
    representatives = np.arange(len(contents))
    for row, better in compared.same_pixels().items():
        representatives[row] = better
    pairs = candidate_pairs(
        compared.evidence,
        least_cosine=min(ALIGNED_FROM, rules.thresholds.similar),
        inner_hashes=column("inner_hash", contents),
        cameras=column("camera", contents),
        taken_ms=column("taken_ms", contents).astype(np.float64),
        representatives=representatives,
    )
    new = set(np.unique(pairs).tolist()) - compared.candidates.keys()
    compared = replace(compared, candidates={**compared.candidates, **photos_of(new)})
    paired: defaultdict[int, set[int]] = defaultdict(set)
    for first, second in pairs.tolist():
        if compared.may_be_copies(first, second):
            paired[first].add(second)
            paired[second].add(first)
    return replace(compared, paired=paired)


def _photos(
    collected: CollectedFeatures, contents: Sequence[str], rules: GroupRules, rows: Collection[int]
) -> dict[int, list[Photo]]:
    """Return row -> the files with that content that are compared, best first."""
    in_libraries, references = rules.in_libraries, DirectorySet(rules.references)
    files = {row: collected.copies[contents[row]] for row in sorted(rows)}
    plain = (file.path for copies in files.values() for file in copies if file.path not in in_libraries)
    companions_of = companions(plain) | {path: photo.companions for path, photo in in_libraries.items()}

    def photo(file: PhotoFile, sha256: str, files: int) -> Photo:
        return Photo(
            path=file.path,
            sha256=sha256,
            size_bytes=file.size_bytes,
            mtime_ns=file.mtime_ns,
            features=collected.features[sha256],
            files=files,
            is_reference=references.contains(file.path),
            is_by_link=file.path in rules.only_by_link,
            not_kept=rules.not_kept.get(file.path, ""),
            companions=companions_of.get(file.path, ()),
            in_library=in_libraries.get(file.path),
        )

    copies = {row: [photo(file, contents[row], len(own)) for file in own] for row, own in files.items()}
    return best_copies_first(copies, KeepRules(rules.keep), rules.decisions)


def check_group_rules(keep: Sequence[str], verify: str) -> None:
    """Raise ValueError for an unknown keep rule or ``verify``."""
    KeepRules(keep)
    if verify not in VERIFY_MODES:
        raise ValueError(f"verify is one of {', '.join(VERIFY_MODES)}, got {verify!r}")
