"""Groups as a person wants them, without another search: around the photo that stays, with the paths that move."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from clip_client.dedup.aligned import Match
from clip_client.dedup.compare.compared import other_shot
from clip_client.dedup.compare.keep_rules import KeepRules, converted_from_lossy
from clip_client.dedup.store.choices import KEEP, UNDONE, WAITING, ChosenPhoto
from clip_client.dedup.types import ALTERED, EXACT, SAME_PIXELS, TIERS

if TYPE_CHECKING:
    from collections.abc import Collection, Container, Iterable, Mapping, Sequence

    from clip_client.dedup.group import DuplicateGroup, Member
    from clip_client.dedup.photo import Photo
    from clip_client.dedup.report import DuplicateReport
    from clip_client.dedup.store.choices import Choice

CHOSEN = "you chose it"
"""The reason of a photo that a person keeps."""
_NO_COPY: Final[dict[str, Any]] = {"copy_of": "", "copy_tier": "", "copy_alignment": None}


def rerank(group: DuplicateGroup, rules: KeepRules) -> DuplicateGroup:
    """Return the group around the photo that ``rules`` keep; see :func:`keep_instead` for what is known of the rest."""
    doubts = {member.sha256: member.doubt for member in group.members if member.doubt}
    pictures: dict[str, list[Photo]] = {}
    for member in group.members:
        pictures.setdefault(_picture(group, member), []).append(member.photo)
    rules = KeepRules(rules.names, doubts, converted_from_lossy(pictures.values()))
    members = sorted(group.members, key=lambda member: rules.rank(member.photo))
    reason = rules.reason(*(member.photo for member in members))
    # With the same photo nothing else changes: for most of the groups that rules are tried on.
    return replace(group, reason=reason) if members[0] is group.members[0] else _around(group, members, reason)


def keep_instead(group: DuplicateGroup, path: str, moving: Collection[str] = ()) -> DuplicateGroup:
    """Return the group around the photo at ``path``, which a person keeps instead. Raises KeyError for another path.

    ``moving`` has the paths that a person wants to move: of files with the same pixels, others are copies of one that
    stays.

    If the search keeps it, too, only the reason changes. Otherwise the members stay the same, although a search under
    other rules might divide them differently. The search compared them with the photo that it kept, so for the new kept
    photo:

    - Same bytes and same pixels remain certain. Any other tier is the less certain one of the member and of the new
      kept photo, and the tier of the group remains.
    - ``similarity`` is the least that is possible: angles between vectors add up at most, and no two members are less
      alike than ``min_similarity``.
    - ``matches`` holds the tests that were made between these two photos, so it may be empty. What alignment proved
      about the photo that was kept is still known: the member is a copy of that one.
    """
    if path == group.keep:
        return replace(group, reason=CHOSEN)
    by_path = {member.path: member for member in group.members}
    # Photos that are not a copy of another one come before the others, so that they stay the best files of a picture.
    others = sorted(
        (one for one in group.members if one.path != path), key=lambda one: (one.path in moving, bool(one.copy_of))
    )
    return _around(group, (by_path[path], *others), CHOSEN)


def _around(group: DuplicateGroup, best_first: Sequence[Member], reason: str) -> DuplicateGroup:
    kept = best_first[0]
    best_of: dict[str, Member] = {}
    for member in best_first:
        best_of.setdefault(_picture(group, member), member)
    members = [_in_relation_to(kept, member, best_of[_picture(group, member)], group) for member in best_first]
    return replace(
        group, members=tuple(sorted(members, key=lambda one: (one.path != kept.path, -one.similarity))), reason=reason
    )


def _picture(group: DuplicateGroup, member: Member) -> str:
    """Return the path of one file, the same for all members with the same pixels."""
    if member.tier in (EXACT, SAME_PIXELS):
        return group.keep
    return member.copy_of if member.copy_tier in (EXACT, SAME_PIXELS) else member.path


def _in_relation_to(kept: Member, member: Member, best: Member, group: DuplicateGroup) -> Member:
    """Return ``member`` beside another kept photo; ``best`` is the best file with the member's pixels."""
    if member.sha256 == kept.sha256:
        same = () if member is kept else (Match(test="bytes", value=1, threshold=1),)
        return replace(member, tier=EXACT, similarity=1.0, matches=same, other_shot="", **_NO_COPY)
    was_kept = group.members[0]
    angle = sum(math.acos(min(one.similarity, 1.0)) for one in (member, kept))
    similarity = max(math.cos(min(angle, math.pi)), group.min_similarity)
    if _picture(group, member) == _picture(group, kept):
        pixels = Match(test="pixels", value=1, threshold=1)
        return replace(member, tier=SAME_PIXELS, similarity=similarity, matches=(pixels,), other_shot="", **_NO_COPY)
    matches: tuple[Match, ...]
    is_proved = False
    if member.copy_of == kept.path:
        tier, proof = member.copy_tier, member.copy_alignment
        is_proved = proof is not None and proof.is_proved
        matches = (Match(test="alignment", value=1, threshold=1, alignment=proof),) if proof else ()
    else:
        # A region that differs from the photo that was kept may differ from any other photo, too.
        tiers = (member.tier, kept.tier)
        tier = ALTERED if ALTERED in tiers else max(tiers, key=TIERS.index)
        matches = tuple(one for one in kept.matches if not one.alignment) if member.sha256 == was_kept.sha256 else ()
    return replace(
        member,
        tier=tier,
        similarity=similarity,
        matches=matches,
        other_shot=other_shot(kept.photo, member.photo, is_proved=is_proved),
        **_copy(member, kept, best, group),
    )


def _copy(member: Member, kept: Member, best: Member, group: DuplicateGroup) -> dict[str, Any]:
    """Return what a member is a closer copy of than of the new kept photo; a proof of the search holds on."""
    if best is not member:
        return {**_NO_COPY, "copy_of": best.path, "copy_tier": EXACT if best.sha256 == member.sha256 else SAME_PIXELS}
    if member.copy_tier in (EXACT, SAME_PIXELS):
        # The file that it followed now follows it, and what was proved about that one holds for the same pixels.
        member = next(one for one in group.members if one.path == member.copy_of)
    if member.copy_of and member.copy_of != kept.path:
        return {name: getattr(member, name) for name in _NO_COPY}
    if member.alignment is not None and member.alignment.tier != ALTERED and not member.copy_of:
        return {"copy_of": group.keep, "copy_tier": member.tier, "copy_alignment": member.alignment}
    return _NO_COPY


def chosen_photos(group: DuplicateGroup, moving: Container[int], *, keep: int = 0) -> list[ChosenPhoto]:
    """Return the members as a choice holds them, the one that stays first; ``keep`` and ``moving`` are positions."""
    order = [keep, *(place for place in range(len(group.members)) if place != keep)]
    members = [(place, group.members[place]) for place in order]
    return [ChosenPhoto(os.path.abspath(member.path), member.sha256, place in moving) for place, member in members]


def choose(group: DuplicateGroup, photos: Sequence[ChosenPhoto]) -> tuple[DuplicateGroup, frozenset[str]] | None:
    """Return the group around the first of ``photos``, and the paths of its members that move.

    None if one of ``photos`` is not a member, or is another content than a person saw.
    """
    members = {(os.path.abspath(member.path), member.sha256): member.path for member in group.members}
    if any((photo.path, photo.sha256) not in members for photo in photos):
        return None
    moving = frozenset(members[photo.path, photo.sha256] for photo in photos if photo.moves)
    return keep_instead(group, members[photos[0].path, photos[0].sha256], moving), moving


@dataclass(frozen=True, kw_only=True)
class ChosenGroups:
    """A report after the :data:`KEEP` choices."""

    report: DuplicateReport
    """Only the groups that the choices are about, around the photos that stay."""
    moving: Mapping[str, Choice]
    """Path in the report -> the choice that moves this photo."""
    staying: Mapping[str, str]
    """Absolute path of a photo that was chosen to move -> why the report does not let it; one sentence for people."""


def chosen_groups(report: DuplicateReport, choices: Iterable[Choice]) -> ChosenGroups:
    """Return the groups of a report that :data:`KEEP` choices are about, and what moves and stays.

    ``choices`` are in the order in which they were made: the last one about any photo of a group is the one that holds.
    A choice that a run has carried out is left out of both.
    """
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
        else "Its choice was taken back; to move it, choose again."
        if choice.state == UNDONE
        else f"The search does not find it in one group with {choice.photos[0].path}, or a chosen photo has changed."
        for _, choice in sorted(open_ones.items())
        for photo in choice.photos
        if photo.moves and last[photo.path] is choice and photo.path not in moved
    }
    return ChosenGroups(report=replace(report, groups=tuple(groups)), moving=moving, staying=staying)
