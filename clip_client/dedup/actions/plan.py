"""The plan: what ``--apply`` moves, and why the other photos stay. Nothing here changes a file."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from graphlib import TopologicalSorter

from clip_client.dedup.judge.losses import KeptMetadata, SidecarToWrite
from clip_client.dedup.judge.movable import CannotMove, quarantine_folder, roots_of
from clip_client.dedup.judge.verdicts import check_tiers
from clip_client.dedup.photo import Photo
from clip_client.dedup.report import DuplicateReport
from clip_client.dedup.types import IF_CHOSEN, SAFE_TIERS, TIERS, Companion


@dataclass(frozen=True, kw_only=True)
class Move:
    duplicate: Photo
    kept: Photo
    """The kept photo of its group, or another photo that stays and holds the same picture."""
    tier: str
    companions: tuple[Companion, ...] = ()
    folder: str = ""
    """Folder whose quarantine takes the photo; empty for a photo that goes into the album."""
    reason: str = ""
    """Reason why the photo, or the one that it follows, moves only by a person's choice; empty if by the verdict."""
    is_chosen: bool = False
    sidecars: tuple[SidecarToWrite, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Skip:
    photo: Photo
    reason: str
    tier: str = ""
    """The tier that was not selected, if this is the only reason."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    moves: tuple[Move, ...]
    skipped: tuple[Skip, ...]
    for_album: tuple[Move, ...] = ()

    @property
    def size_bytes(self) -> int:
        return sum(move.duplicate.size_bytes for move in self.moves)


def plan_moves(
    report: DuplicateReport,
    paths: Iterable[str | os.PathLike[str]],
    *,
    tiers: Sequence[str] = SAFE_TIERS,
    chosen: Mapping[str, Collection[str] | None] | None = None,
) -> Plan:
    """Plan the moves of a report that was judged with the same ``paths``.

    ``chosen``, a path -> tiers, limits the moves to these photos in these tiers; None if a person looked at the photo,
    which then moves unless its verdict says ``NEVER``. Raises ValueError for tiers that do not move by default.
    """
    check_tiers(tiers)
    roots = roots_of(paths)
    moves: list[Move] = []
    skipped: list[Skip] = []
    for_album: list[Move] = []
    for group in report.groups:
        by_path = {member.path: member for member in group.members}
        before = {member.path: filter(None, [member.verdict.kept]) for member in group.members}
        moved: dict[str, Move] = {}
        metadata: dict[str, KeptMetadata] = {}
        for path in TopologicalSorter(before).static_order():  # a copy comes before its own copies
            photo, verdict = by_path[path].photo, by_path[path].verdict
            if path == group.keep or (chosen is not None and path not in chosen):
                continue
            selected = tiers if chosen is None else chosen[photo.path]
            if reason := verdict.reason_to_stay(selected):
                skipped.append(Skip(photo=photo, reason=reason, tier=verdict.tier if verdict.is_copy else ""))
                continue
            kept, tier = by_path[verdict.kept].photo, verdict.tier
            doubt = verdict.reason if verdict.moves == IF_CHOSEN else ""
            if instead := moved.get(kept.path):
                kept, tier, doubt = instead.kept, max(tier, instead.tier, key=TIERS.index), doubt or instead.reason
            move = Move(duplicate=photo, kept=kept, tier=tier, reason=doubt, is_chosen=selected is None)
            if photo.in_library is None:
                try:
                    folder = quarantine_folder(photo.path, roots)
                except CannotMove as error:  # something has changed since the verdict
                    skipped.append(Skip(photo=photo, reason=str(error)))
                    continue
                move = replace(move, folder=folder, companions=photo.companions)
                metadata.setdefault(kept.path, KeptMetadata(kept)).add(photo)
            moved[photo.path] = move
        for_album += (move for move in moved.values() if not move.folder)
        # Several copies may add to one sidecar, so sidecars are complete only after all moves are known.
        moves += (
            replace(move, sidecars=metadata[move.kept.path].sidecars_for(move.duplicate))
            for move in moved.values()
            if move.folder
        )
    return Plan(moves=tuple(moves), skipped=tuple(skipped), for_album=tuple(for_album))
