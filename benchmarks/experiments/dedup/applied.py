"""What ``dedup --apply`` moves, from the files to the plan: of a large folder, as detectors, and of single pairs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from benchmarks.experiments.dedup.detectors import Detector
from clip_client import ClientConfig, ClipClient
from clip_client.dedup import find_duplicates
from clip_client.dedup.actions.plan import plan_moves
from clip_client.dedup.types import EDITED, SAFE_TIERS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from clip_client._encoding import TransferName
    from clip_client.dedup import DuplicateReport, Store

_WITH_EDITED: Final = (*SAFE_TIERS, EDITED)
APPLIED: Final = {"--apply (its default)": SAFE_TIERS, "--apply with --act-on edited": _WITH_EDITED}
"""Name -> tiers that move. The second: a plain ``--apply``, and then ``--act-on edited``."""
_TIMEOUT_S: Final = 3600.0
"""Long, because the rate does not matter here and a busy machine is slow."""


def client(url: str, transfer: TransferName) -> ClipClient:
    """Return a client that waits as long as it takes."""
    return ClipClient(
        config=ClientConfig(urls=(url,), transfer=transfer, timeout_s=_TIMEOUT_S, target_latency_s=_TIMEOUT_S)
    )


async def search(url: str, transfer: TransferName, folder: Path, store: Store) -> DuplicateReport:
    """Search ``folder`` as the command does."""
    async with client(url, transfer) as clip:
        return await find_duplicates(clip, [folder], store=store)


async def moved_in_pairs(
    url: str, transfer: TransferName, pairs: Mapping[str, Sequence[tuple[Path, Path]]], store: Store
) -> dict[str, dict[str, float]]:
    """Return what ``--apply`` moves with edited copies if an original has only one copy.

    ``pairs`` maps what was done to the (original, copy) pairs. The result has two shares of them for each change: those
    of which the copy moves, and those of which either file moves. If an edited copy is the larger file, it is kept.
    """
    shares = {}
    async with client(url, transfer) as clip:
        for change, files in pairs.items():
            moved = []
            for pair in files:
                report = await find_duplicates(clip, pair, store=store)
                moved.append([move.duplicate.path for move in plan_moves(report, pair, tiers=_WITH_EDITED).moves])
            shares[change] = {
                "copy_moves": float(np.mean([str(copy) in some for (_, copy), some in zip(files, moved, strict=True)])),
                "either_moves": float(np.mean([bool(some) for some in moved])),
            }
    return shares


def applied_detectors(report: DuplicateReport, folder: Path, paths: Sequence[Path]) -> list[Detector]:
    """Return what would move: a file is alike to the one that stays for it, and to all that move for the same one."""
    row_of = {str(path): row for row, path in enumerate(paths)}
    detectors = []
    for name, tiers in APPLIED.items():
        stays = np.arange(len(paths))
        for move in plan_moves(report, [folder], tiers=tiers).moves:
            stays[row_of[move.duplicate.path]] = row_of[move.kept.path]
        moved = stays != np.arange(len(paths))
        kept = np.unique(stays[moved])
        rows = {keep: np.flatnonzero(stays == keep) for keep in kept.tolist()}
        groups = [[keep, *same[same != keep].tolist()] for keep, same in rows.items()]
        alike = stays[:, None] == stays[None, :]
        detectors.append(Detector(name=name, alike=alike, groups=groups, moved=moved))
    return detectors
