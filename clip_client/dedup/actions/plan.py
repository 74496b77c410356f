"""The plan: what ``--apply`` moves, and why the other photos stay. Nothing here changes a file."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from graphlib import TopologicalSorter
from typing import TYPE_CHECKING

from clip_client.dedup.actions.merging import KeptMetadata
from clip_client.dedup.actions.quarantine import CannotMove, quarantine_folder
from clip_client.dedup.actions.verdicts import MoveOptions, check_tiers, roots_of
from clip_client.dedup.types import IF_CHOSEN, SAFE_TIERS, TIERS

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from clip_client.dedup.actions.sidecars import SidecarToWrite
    from clip_client.dedup.group import DuplicateGroup, Member
    from clip_client.dedup.photo import Photo
    from clip_client.dedup.report import DuplicateReport
    from clip_client.dedup.types import Companion


@dataclass(frozen=True, kw_only=True)
class Move:
    """A photo that would move to the quarantine, with its companions."""

    duplicate: Photo
    kept: Photo
    """The kept photo of its group, or another photo that stays and holds the same picture."""
    tier: str
    companions: tuple[Companion, ...]
    folder: str
    """It contains the quarantine that the photo moves to."""
    reason: str = ""
    """Why it moves only because a person chose it; empty if it moves by its verdict."""
    is_chosen: bool = False
    """A person looked at the photo and chose that it moves."""
    sidecars: tuple[SidecarToWrite, ...] = ()
    """Sidecars that must be beside the kept photo before this one moves."""


@dataclass(frozen=True, kw_only=True)
class AlbumEntry:
    """A photo in an Apple Photos library. It is never moved; it would go into an album there."""

    duplicate: Photo
    kept: Photo
    """The photo that stays, in any folder or library."""


@dataclass(frozen=True, kw_only=True)
class Skip:
    """A duplicate that stays, and why."""

    photo: Photo
    reason: str
    """One sentence for people."""
    tier: str = ""
    """The tier that was not selected, if this is the only reason."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What ``--apply`` would do."""

    moves: tuple[Move, ...]
    skipped: tuple[Skip, ...]
    for_album: tuple[AlbumEntry, ...] = ()
    hard_link: bool = False
    """A hard link to the kept photo replaces each photo that moves."""

    @property
    def size_bytes(self) -> int:
        """Size of all photos that would move, without their companions."""
        return sum(move.duplicate.size_bytes for move in self.moves)


def plan_moves(
    report: DuplicateReport,
    paths: Iterable[str | os.PathLike[str]],
    *,
    tiers: Sequence[str] = SAFE_TIERS,
    options: MoveOptions | None = None,
    chosen: Mapping[str, Collection[str] | None] | None = None,
) -> Plan:
    """Plan the moves of a report that was judged with the same ``paths`` and ``options``.

    A photo moves as its verdict says: by default, or on request, if its tier is among ``tiers``. With ``chosen``, only
    the photos move whose paths it holds: those of the tiers that it maps them to, or, for None, which says that a
    person looked at the photo, all but those that never move.

    :func:`~.apply.apply` moves exactly what the plan says, unless another program changes the files in between. Raises
    ValueError as :func:`~.verdicts.check_tiers`.
    """
    if chosen is None:
        check_tiers(tiers, report.model)
    options = options or MoveOptions()
    roots = roots_of(paths)
    moves: list[Move] = []
    skipped: list[Skip] = []
    for_album: list[AlbumEntry] = []
    for group in report.groups:
        photos = {member.path: member.photo for member in group.members}
        moved: dict[str, tuple[Photo, str]] = {}
        """Path of a photo that moves -> the photo that stays for it, and how certain that is."""
        metadata: dict[str, KeptMetadata] = {}
        """By the path of a photo that stays."""
        of_group: list[Move] = []
        for member in _copies_last(group):
            photo, verdict = member.photo, member.verdict
            if chosen is not None and photo.path not in chosen:
                continue
            selected = tiers if chosen is None else chosen[photo.path]
            if reason := verdict.why_it_stays(selected):
                skipped.append(Skip(photo=photo, reason=reason, tier=verdict.tier if verdict.is_copy else ""))
                continue
            kept, tier = photos[verdict.kept], verdict.tier
            if kept.path in moved:
                kept, certainty = moved[kept.path]
                tier = max(tier, certainty, key=TIERS.index)
            try:
                folder = "" if photo.in_library is not None else quarantine_folder(photo.path, roots)
            except CannotMove as error:  # something has changed since the verdict
                skipped.append(Skip(photo=photo, reason=str(error)))
                continue
            moved[photo.path] = kept, tier
            if not folder:
                for_album.append(AlbumEntry(duplicate=photo, kept=kept))
                continue
            metadata.setdefault(kept.path, KeptMetadata(kept)).add(photo)
            of_group.append(
                Move(
                    duplicate=photo,
                    kept=kept,
                    tier=tier,
                    companions=() if options.hard_link else photo.companions,
                    folder=folder,
                    reason=verdict.reason if verdict.moves == IF_CHOSEN else "",
                    is_chosen=selected is None,
                )
            )
        # Several copies may add to one sidecar, so it is complete only now.
        moves += (replace(one, sidecars=metadata[one.kept.path].sidecars_for(one.duplicate)) for one in of_group)
    return Plan(moves=tuple(moves), skipped=tuple(skipped), for_album=tuple(for_album), hard_link=options.hard_link)


def _copies_last(group: DuplicateGroup) -> Iterator[Member]:
    """Yield the members besides the kept one, each after the photo for which it may move."""
    by_path = {member.path: member for member in group.members}
    before = {member.path: filter(None, [member.verdict.kept]) for member in group.members}
    yield from (by_path[path] for path in TopologicalSorter(before).static_order() if path != group.keep)
