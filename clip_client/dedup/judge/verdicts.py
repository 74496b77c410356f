"""The verdict about each photo of a group: whether it may move, for which photo, and if not, why.

Only this module decides that. The terminal, the pages, JSON, CSV, rules and the plan show what :func:`with_verdicts`
returns.
"""

from __future__ import annotations

import math
import os
from collections.abc import Collection, Container, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from clip_client.dedup.aligned import UNPROVED, UNTOLD, Alignment
from clip_client.dedup.files.companions import companions, differing_companion
from clip_client.dedup.files.directories import identity_of
from clip_client.dedup.files.file_types import EDITED as EDITED_VERSION
from clip_client.dedup.files.file_types import OTHER, PICTURES
from clip_client.dedup.files.reading import sha256_of
from clip_client.dedup.group import DuplicateGroup, Member, Verdict
from clip_client.dedup.judge.losses import KeptMetadata, picture_loss
from clip_client.dedup.judge.movable import CannotMove, check_can_move, quarantine_folder, roots_of
from clip_client.dedup.metadata.facts import read_attributes
from clip_client.dedup.photo import Photo
from clip_client.dedup.report import DuplicateReport
from clip_client.dedup.store.contents import FileIndex
from clip_client.dedup.types import (
    ALTERED,
    BY_DEFAULT,
    EDITED,
    IF_CHOSEN,
    NEVER,
    ON_REQUEST,
    RE_ENCODED,
    SAFE_TIERS,
    SIMILAR,
    TIERS,
    has_trained_vectors,
)

WAITS: Final = "It moves only by your choice, as every {} copy."


def with_verdicts(
    report: DuplicateReport,
    paths: Iterable[str | os.PathLike[str]],
    *,
    merge_metadata: bool = False,
    compared: Container[str] | None = None,
    files: FileIndex | None = None,
    looks_again: bool = True,
) -> DuplicateReport:
    """Return the report with a verdict for each photo, as the files are now.

    These photos never move: a photo in a reference folder; the target of a symbolic link; a file with other hard links;
    a photo with metadata, companions or embedded parts that the kept photo lacks; and a photo that the file system
    does not let move. These photos move only if a person chooses it: another shot; an altered picture; a picture that
    shows more than the kept photo; and a picture that the kept photo may be made from.

    ``paths`` is what was searched: no file outside it may move. With ``merge_metadata``, metadata that only a copy
    has goes into a new sidecar of the kept photo, if the kept photo has none yet. ``compared`` holds the absolute
    paths of the photos that are in groups, by default those of the report. ``files`` may know the hashes of
    companions, which saves reading them again. With ``looks_again`` the companions are looked up again, because a
    program may have written a sidecar since the search.
    """
    if compared is None:
        compared = {os.path.abspath(member.path) for group in report.groups for member in group.members}
    judge = _Judge(report=report, roots=roots_of(paths), merge_metadata=merge_metadata, compared=compared, files=files)
    groups = _with_companions_now(report.groups) if looks_again else report.groups
    return replace(report, groups=tuple(map(judge.judge, groups)))


@dataclass(frozen=True, kw_only=True)
class _Judge:
    report: DuplicateReport
    roots: Mapping[str, str]
    merge_metadata: bool
    compared: Container[str]
    files: FileIndex | None

    def judge(self, group: DuplicateGroup) -> DuplicateGroup:
        kept, *others = group.members
        metadata, judged = KeptMetadata(kept.photo), [replace(kept, verdict=Verdict())]
        for member in others:
            relations = _relations(member, group)
            best = min((self._about(relation, member, metadata) for relation in relations), key=_likelihood)
            if self.merge_metadata and best.is_copy and best.kept == group.keep:
                metadata.add(member.photo)
            judged.append(replace(member, verdict=best))
        return replace(group, members=tuple(judged))

    def _about(self, relation: _Relation, member: Member, metadata: KeptMetadata) -> Verdict:
        photo, kept = member.photo, relation.kept
        verdict = _proved(relation, member, is_trained=has_trained_vectors(self.report.model))
        try:
            if kept.not_kept:
                raise CannotMove(f"The kept photo is in {kept.not_kept}, so nothing moves for it.")
            self._check_may_move(photo, kept)
            # If the relation is to another copy, that copy may itself move, and a sidecar beside it would stay.
            is_group_kept = kept is metadata.kept
            (metadata if is_group_kept else KeptMetadata(kept)).check(
                photo,
                is_same_shot=relation.tier != SIMILAR and not relation.other_shot,
                can_merge=self.merge_metadata and is_group_kept,
            )
            if photo.in_library is None:  # else it goes into an album
                self._check_can_be_moved(photo, kept)
        except CannotMove as error:
            return replace(verdict, moves=NEVER, reason=str(error))
        lost, reason = picture_loss(photo, kept, relation.tier) if verdict.is_copy else ("", "")
        if reason:
            return replace(verdict, moves=IF_CHOSEN, reason=reason, lost=(*verdict.lost, *filter(None, [lost])))
        return verdict

    def _check_may_move(self, photo: Photo, kept: Photo) -> None:
        """Raise CannotMove for a photo of a reference folder, and for parts and companions that would be lost."""
        if photo.is_reference:
            raise CannotMove("It is in a reference folder.")
        held, by_kept = photo.features, kept.features
        if held.embedded and held.embedded_digest != by_kept.embedded_digest:
            is_other = held.embedded == by_kept.embedded
            lacks = "and the kept photo does not hold the same" if is_other else "which the kept photo lacks"
            raise CannotMove(f"It holds more than its picture ({held.embedded}), {lacks}.")
        companions, beside_kept = photo.companions, kept.companions
        if any(companion.kind == EDITED_VERSION for companion in companions):
            raise CannotMove("It has an edited version, but only the originals were compared, so only you can choose.")
        if other := next((one.path for one in companions if one.kind == OTHER), ""):
            name = os.path.basename(other)
            raise CannotMove(f"The file {name} has the same name and may belong to it; rename either.")
        of_kept = {companion.kind for companion in beside_kept}
        if lost := next((one.kind for one in companions if one.kind not in of_kept), ""):
            raise CannotMove(f"It has a {lost} beside it, which the kept photo lacks.")
        # A move depends on the duplicate's companions, and on those of the same kinds of the kept photo.
        kinds = {companion.kind for companion in companions} & PICTURES
        needed = (*companions, *(companion for companion in beside_kept if companion.kind in kinds))
        if any(os.path.abspath(companion.path) in self.compared for companion in needed):
            raise CannotMove(
                "A RAW file beside it or beside the kept photo was compared as a photo of its own, so another group "
                "may keep or move it; name their folder instead."
            )
        if differing := differing_companion(companions, beside_kept, self._hash_of, _says_all):
            raise CannotMove(another_companion(differing))
        with suppress(OSError):
            names = os.lstat(photo.path).st_nlink
            if names > 1 and photo.in_library is None:
                raise CannotMove(f"It has {names} names (hard links), so moving one would free no space.")

    def _hash_of(self, path: str) -> str:
        return sha256_of(path) if self.files is None else self.files.sha256_of(path, sha256_of)

    def _check_can_be_moved(self, photo: Photo, kept: Photo) -> None:
        """Raise CannotMove for what the file system refuses, and for links that would break."""
        folder, links = quarantine_folder(photo.path, self.roots), self.report.links
        for what, path in (("It", photo.path), *((f"The {one.kind} beside it", one.path) for one in photo.companions)):
            check_can_move(path, folder, what)
            if links and (link := links.get(identity_of(path, os.stat(path)))):
                raise CannotMove(f"{what} is the target of a link, which would break: {link}.")
        if not os.path.isfile(kept.path):
            raise CannotMove("The kept photo is missing.")
        if kept.is_by_link:
            raise CannotMove(f"The kept photo is a link to a file that was not searched: {kept.path}.")


def _says_all(path: str, other: str) -> bool:
    """Tell whether the file at ``path`` has all extended attributes of the file at ``other``."""
    return not read_attributes(other).lost_in([read_attributes(path)])


def _with_companions_now(groups: Collection[DuplicateGroup]) -> list[DuplicateGroup]:
    photos = (member.photo for group in groups for member in group.members)
    found = companions(photo.path for photo in photos if photo.in_library is None)

    def now(member: Member) -> Member:
        photo = member.photo
        beside = photo.companions if photo.in_library is not None else found.get(photo.path, ())
        return member if beside == photo.companions else replace(member, photo=replace(photo, companions=beside))

    return [replace(group, members=tuple(map(now, group.members))) for group in groups]


class _Relation(NamedTuple):
    """A photo that may stay in place of another photo, and what the search proved about the two."""

    kept: Photo
    tier: str
    alignment: Alignment | None
    other_shot: str
    reverse: Alignment | None = None
    """Position of ``kept`` on the photo, if a person or the keep rules keep another photo than the search."""


def _relations(member: Member, group: DuplicateGroup) -> Iterator[_Relation]:
    """Yield the photos for which ``member`` may move, in the order of their tiers: the surest first."""
    kept = group.members[0].photo
    is_known = member.alignment is None and member.tier in (RE_ENCODED, EDITED, ALTERED)
    reverse = group.proofs.get((kept.sha256, member.sha256)) if is_known else None
    relations = [_Relation(kept, member.tier, member.alignment, member.other_shot, reverse)]
    if member.copy_of:
        kept = next(one.photo for one in group.members if one.path == member.copy_of)
        relations.append(_Relation(kept, member.copy_tier, member.copy_alignment, ""))
    yield from sorted(relations, key=lambda one: TIERS.index(one.tier))


def as_proved(member: Member, group: DuplicateGroup, *, is_trained: bool) -> Verdict:
    """Return the verdict by the proofs alone, without the files. ``is_trained``: a trained model made the vectors."""
    return min((_proved(one, member, is_trained=is_trained) for one in _relations(member, group)), key=_likelihood)


def _likelihood(verdict: Verdict) -> int:
    return (BY_DEFAULT, ON_REQUEST, IF_CHOSEN, NEVER).index(verdict.moves)


def _proved(relation: _Relation, member: Member, *, is_trained: bool) -> Verdict:
    kept, tier, alignment, other_shot, reverse = relation
    lost, doubts = ((), ()) if alignment is None else (alignment.lost, alignment.doubts)
    is_unknown = math.isnan(member.similarity)
    reason, moves = "", IF_CHOSEN
    if other_shot:
        reason = f"Its time of capture or exposure suggests {other_shot}, so only you can tell whether you want it."
    elif reverse is not None and reverse.loses_nothing:
        reason = f"The kept photo is its {reverse.tier} copy, so it moves only by your choice."
    elif reverse is not None or (tier == ALTERED and alignment is not None):
        reason = "It differs from the kept photo, so only you can tell whether you want it."
    elif alignment is None and (tier in (RE_ENCODED, EDITED, ALTERED) or (tier == SIMILAR and is_unknown)):
        # A person or the keep rules keep another photo than the search.
        reason = "It was not compared with the kept photo, so only you can tell whether you want it."
    elif lost:
        reason = f"It shows what the kept photo lacks: {', '.join(lost)}."
    elif doubts == (UNTOLD,):
        reason = "Which of the two shows more cannot be told, so neither moves unasked."
    elif doubts == (UNPROVED,):
        reason = "The kept photo is not proved to show all of this photo, so neither moves unasked."
    elif doubts:
        reason = f"The kept photo may be made from it: {', '.join(doubts)}."
    elif tier == SIMILAR and not is_trained:
        reason = "Neither a proof nor a trained model says that it is the same picture."
    elif tier in SAFE_TIERS:
        moves = BY_DEFAULT
    else:
        moves, reason = ON_REQUEST, WAITS.format(tier)
    return Verdict(kept=kept.path, tier=tier, moves=moves, reason=reason, lost=lost)


def check_tiers(tiers: Iterable[str]) -> None:
    """Raise ValueError for a tier that does not move by itself, and for an unknown one."""
    for tier in tiers:
        if tier not in TIERS:
            raise ValueError(f"unknown tier {tier!r}; the tiers are {', '.join(SAFE_TIERS)}")
        if tier not in SAFE_TIERS:
            raise ValueError(
                f"{tier} photos move from the review page (clip-client review), where you have seen them; "
                "--json and --csv give them to scripts"
            )


def another_companion(kind: str) -> str:
    """Say that a photo stays because its companion of this kind differs from that of the kept photo."""
    return f"The {kind} beside it is damaged, or differs from that of the kept photo."
