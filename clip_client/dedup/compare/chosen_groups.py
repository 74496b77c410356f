"""Groups as a person wants them, without another search: around the photo that stays, with the paths that move."""

from __future__ import annotations

import math
import os
from collections import defaultdict
from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from clip_client.dedup.compare.compared import Compared, other_shot
from clip_client.dedup.compare.groups import members_around
from clip_client.dedup.compare.keep_rules import KeepRules, converted_from_lossy
from clip_client.dedup.compare.neighbours import Evidence
from clip_client.dedup.compare.proofs import Proofs
from clip_client.dedup.compare.star_groups import CannotLink
from clip_client.dedup.compare.thresholds import thresholds_for
from clip_client.dedup.group import DuplicateGroup, Member
from clip_client.dedup.photo import Photo
from clip_client.dedup.report import DuplicateReport
from clip_client.dedup.store.choices import KEEP, UNDONE, WAITING, Choice, ChosenPhoto
from clip_client.dedup.types import ALTERED, EXACT, NO_MODEL, SAME_PIXELS, TIERS

CHOSEN = "you chose it"


def rerank(group: DuplicateGroup, rules: KeepRules) -> DuplicateGroup:
    doubts = {member.sha256: member.doubt for member in group.members if member.doubt}
    pictures: defaultdict[str, list[Photo]] = defaultdict(list)
    for member in group.members:
        pictures[_picture(group, member)].append(member.photo)
    rules = KeepRules(rules.names, doubts, converted_from_lossy(pictures.values()))
    best_first = sorted((member.photo for member in group.members), key=rules.rank)
    # If the same photo stays, as in most groups, nothing else changes.
    around = group if best_first[0].path == group.keep else _regrouped(group, best_first)
    return replace(around, reason=rules.reason(*best_first))


def keep_instead(group: DuplicateGroup, path: str, moving: Collection[str] = ()) -> DuplicateGroup:
    """Return the group around the photo at ``path``, which a person keeps instead.

    Among files with the same pixels, those at ``moving`` become copies of one that stays. A member that was not
    compared with the new kept photo has no alignment with it, and its ``similarity`` is NaN. Its tier is that of a
    proof that the kept photo is its copy, ``ALTERED`` if other proofs say that both are one shot, else ``SIMILAR``.
    """
    if path == group.keep:
        return replace(group, reason=CHOSEN)
    # Photos that are not a copy of another one come before the others, so that they stay the best files of a picture.
    best_first = sorted(group.members, key=lambda one: (one.path != path, one.path in moving, bool(one.copy_of)))
    return replace(_regrouped(group, [member.photo for member in best_first]), reason=CHOSEN)


def _picture(group: DuplicateGroup, member: Member) -> str:
    """Return the path of one file, the same for all members with the same pixels."""
    if member.tier in (EXACT, SAME_PIXELS):
        return group.keep
    return member.copy_of if member.copy_tier in (EXACT, SAME_PIXELS) else member.path


def _regrouped(group: DuplicateGroup, best_first: Iterable[Photo]) -> DuplicateGroup:
    files: defaultdict[str, list[Photo]] = defaultdict(list)
    for photo in best_first:
        files[photo.sha256].append(photo)
    row_of, rows = {sha256: row for row, sha256 in enumerate(files)}, range(len(files))
    before = {member.sha256: member for member in reversed(group.members)}
    first_of: dict[str, int] = {}
    pixels = [first_of.setdefault(_picture(group, before[sha256]), row) for sha256, row in row_of.items()]

    known = {(row_of[sha256], row_of[other]): alignment for (sha256, other), alignment in group.proofs.items()}
    paired: defaultdict[int, set[int]] = defaultdict(set)
    for row, other in (*known, *enumerate(pixels)):
        paired[row].add(other)
        paired[other].add(row)
    compared = Compared(
        candidates=dict(enumerate(files.values())),
        evidence=Evidence.of_pixels(pixels),
        thresholds=thresholds_for(NO_MODEL),
        components=(),
        cannot_link=CannotLink(),
        rules=KeepRules(()),
        paired=paired,
    )
    proofs = Proofs(compared, known=known)
    proofs.prove(rows, lambda what, done, total: None)
    copies = {row: best for row in rows if (best := proofs.best(row)) is not None}
    copies |= {row: first for row, first in enumerate(pixels) if first != row}
    members = members_around(compared, proofs, dict.fromkeys(rows, math.nan), copies)

    same_shot, further = {0}, {0}
    while further:
        further = set[int]().union(*(paired[row] for row in further)) - same_shot
        same_shot |= further
    kept, was_kept = before[members[0].sha256], group.members[0]

    def as_known(member: Member) -> Member:
        known = before[member.sha256]
        facts: dict[str, Any] = {"cannot_verify": known.cannot_verify, "doubt": known.doubt}
        if member.tier not in (EXACT, SAME_PIXELS):
            facts["similarity"] = kept.similarity if member.sha256 == was_kept.sha256 else math.nan
            if member.alignment is None and row_of[member.sha256] in same_shot:
                reverse = group.proofs.get((kept.sha256, member.sha256))
                facts["tier"] = reverse.tier if reverse is not None else ALTERED
                facts["other_shot"] = other_shot(kept.photo, member.photo, is_proved=True)
        return replace(member, **facts)

    members = tuple(map(as_known, members))
    return replace(group, tier=max((one.tier for one in members), key=TIERS.index), members=members)


def chosen_photos(group: DuplicateGroup, moving: Container[int], *, keep: int = 0) -> list[ChosenPhoto]:
    order = [keep, *(place for place in range(len(group.members)) if place != keep)]
    members = [(place, group.members[place]) for place in order]
    return [ChosenPhoto(os.path.abspath(member.path), member.sha256, place in moving) for place, member in members]


def choose(group: DuplicateGroup, photos: Sequence[ChosenPhoto]) -> tuple[DuplicateGroup, frozenset[str]] | None:
    """Return the group around the first of ``photos``, and the paths that move; None if one is missing or changed."""
    members = {(os.path.abspath(member.path), member.sha256): member.path for member in group.members}
    if any((photo.path, photo.sha256) not in members for photo in photos):
        return None
    moving = frozenset(members[photo.path, photo.sha256] for photo in photos if photo.moves)
    return keep_instead(group, members[photos[0].path, photos[0].sha256], moving), moving


@dataclass(frozen=True, kw_only=True)
class ChosenGroups:
    report: DuplicateReport
    moving: Mapping[str, Choice]
    staying: Mapping[str, str]
    """Absolute path of a photo that was chosen to move -> why the report does not let it; one sentence for people."""


def chosen_groups(report: DuplicateReport, choices: Iterable[Choice]) -> ChosenGroups:
    """Return the groups that ``choices``, oldest first, are about, with what moves and stays; the last one holds."""
    last = {photo.path: choice for choice in choices for photo in choice.photos}
    groups: list[DuplicateGroup] = []
    moving: dict[str, Choice] = {}
    replaced: set[str] = set()
    for group in report.groups:
        about = {path: choice for member in group.members if (choice := last.get(path := os.path.abspath(member.path)))}
        choice = max(about.values(), key=lambda one: one.id, default=None)
        replaced.update(path for path, earlier in about.items() if earlier is not choice)
        is_waiting = choice is not None and choice.what == KEEP and choice.state == WAITING
        if choice is not None and is_waiting and (chosen := choose(group, choice.photos)):
            groups.append(chosen[0])
            moving.update(dict.fromkeys(chosen[1], choice))
    moved = set(map(os.path.abspath, moving))
    open_ones = {one.id: one for one in last.values() if one.what == KEEP and one.state in (WAITING, UNDONE)}
    staying = {
        photo.path: "A later choice about its group holds."
        if photo.path in replaced
        else "Its choice was undone; to move it, choose again."
        if choice.state == UNDONE
        else f"The search does not find it in one group with {choice.photos[0].path}, or a chosen photo has changed."
        for _, choice in sorted(open_ones.items())
        for photo in choice.photos
        if photo.moves and last[photo.path] is choice and photo.path not in moved
    }
    return ChosenGroups(report=replace(report, groups=tuple(groups)), moving=moving, staying=staying)
