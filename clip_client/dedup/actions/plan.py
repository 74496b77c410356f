"""Decide which duplicates of a report would move, and why the others stay. Nothing here changes a file."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from clip_client.dedup.actions.merging import MetadataMerge
from clip_client.dedup.actions.picture_losses import PictureLosses
from clip_client.dedup.actions.quarantine import (
    CannotMove,
    QuarantineTarget,
    check_can_move,
    check_hard_link,
    quarantine_target,
)
from clip_client.dedup.files.companions import companions, differing_companion, what_would_be_lost
from clip_client.dedup.files.file_types import EDITED, PICTURES
from clip_client.dedup.files.hashing import sha256_of
from clip_client.dedup.types import ALTERED, EXACT, RE_ENCODED, SAME_PIXELS, TIERS, Companion, is_random
from clip_client.dedup.types import EDITED as EDITED_PICTURE

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable, Mapping, Sequence

    from clip_client.dedup.actions.sidecars import SidecarToWrite
    from clip_client.dedup.aligned import Alignment
    from clip_client.dedup.report import DuplicateReport
    from clip_client.dedup.types import Links, Member

SAFE_TIERS = (EXACT, SAME_PIXELS, RE_ENCODED)
"""The tiers that move by default."""
PROVED_TIERS = (*SAFE_TIERS, EDITED_PICTURE)
"""The tiers that do not depend on a model, but on the copy and the kept photo alone."""
MOVABLE_TIERS = tuple(tier for tier in TIERS if tier != ALTERED)
"""The tiers that can be selected."""

NOT_THE_SAME_BYTES = "Only copies of the same bytes can become hard links."

_COMPARED_ITSELF = (
    "A RAW file beside it or beside the kept photo was compared as a photo of its own, so another group may keep or "
    "move it; name their folder instead."
)


@dataclass(frozen=True, kw_only=True)
class Move:
    """A photo that would move to the quarantine, with its companions."""

    duplicate: Member
    kept: Member
    """The kept photo of its group, or another photo that stays and holds the same picture."""
    tier: str
    companions: tuple[Companion, ...]
    beside_kept: tuple[Companion, ...]
    """Companions of the kept photo."""
    target: QuarantineTarget
    sidecars: tuple[SidecarToWrite, ...] = ()
    """Sidecars that must be beside the kept photo before this one moves."""


@dataclass(frozen=True, kw_only=True)
class AlbumEntry:
    """A photo in an Apple Photos library. It is never moved; it would go into an album there."""

    duplicate: Member
    kept: Member
    """The photo that stays, in any folder or library."""


@dataclass(frozen=True, kw_only=True)
class Skip:
    """A duplicate that stays, and why."""

    path: str
    reason: str
    """One sentence for people."""
    is_blocked: bool = False
    """True if it cannot be moved at all."""
    tier: str = ""
    """The tier that was not selected, its own or that of its group, if this is the only reason."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What ``--apply`` would do."""

    moves: tuple[Move, ...]
    skipped: tuple[Skip, ...]
    for_album: tuple[AlbumEntry, ...] = ()

    @property
    def size_bytes(self) -> int:
        """Size of all photos that would move, without their companions."""
        return sum(move.duplicate.size_bytes for move in self.moves)


def plan_moves(
    report: DuplicateReport,
    paths: Iterable[str | os.PathLike[str]],
    *,
    tiers: Sequence[str] = SAFE_TIERS,
    hard_link: bool = False,
    merge_metadata: bool = False,
    chosen: Container[str] | None = None,
    unseen: Container[str] = frozenset(),
    is_compared: Callable[[str], bool] | None = None,
    hash_of: Callable[[str], str] = sha256_of,
) -> Plan:
    """Choose what moves: each duplicate of the ``tiers`` that can move without losing anything that no other file has.

    A copy of one of the :data:`PROVED_TIERS` moves if its own tier is among ``tiers``. Any other duplicate moves only
    if the tier of its group is among them, too: a group is only as certain as its least certain member.

    ``paths`` is what was searched; nothing outside it is touched. These photos always stay:

    - photos of a burst, of another moment or in a reference folder (of its copies, if any, the best stays);
    - an altered picture, a re-encoded copy that has more pixels or was compressed less than the kept photo, and an
      edited one that shows what the kept photo lacks;
    - the target of a symbolic link, and a file with other hard links;
    - a photo whose date, GPS position, rating, keywords, title or caption is not in the kept photo or its sidecar. With
      ``merge_metadata`` these fields go into a new sidecar of the kept photo, if it has none yet, and the photo moves.

    With ``hard_link`` only duplicates move that a hard link can replace. The link keeps the name, so the companions of
    that name stay.

    With ``chosen``, a person looked at the groups and named the paths that move: only these are planned, whatever their
    tier, and frames of a burst as well. Everything that protects other data than the picture still holds. Of these,
    rules chose ``unseen``, in groups that nobody looked at: they move as without ``chosen``, if they are of any tier
    that can be selected and does not depend on random weights.

    ``is_compared`` tells whether the file at an absolute path is a photo of some group. A report that holds only some
    of the groups needs it; by default the groups of the report are all there are. ``hash_of`` returns the SHA-256 of a
    file, such as :meth:`~clip_client.dedup.store.file_index.FileIndex.sha256_of`.

    :func:`~.apply.apply` moves exactly what the plan says, unless another program changes the files in between. Raises
    ValueError as :func:`check_tiers`.
    """
    if chosen is None:
        check_tiers(tiers, report.model)
    else:
        tiers = PROVED_TIERS if is_random(report.model) else MOVABLE_TIERS
    roots = roots_of(paths)
    members = [member for group in report.groups for member in group.members]
    companions_of = companions(member.path for member in members if member.in_library is None)
    companions_of |= {member.path: member.in_library.companions for member in members if member.in_library is not None}
    is_compared = is_compared or {os.path.abspath(member.path) for member in members}.__contains__
    merge = MetadataMerge(is_asked_for=merge_metadata)
    losses = PictureLosses()
    moves: list[Move] = []
    skipped, for_album = [], []
    for group in report.groups:
        by_path = {member.path: member for member in group.members}
        moved: dict[str, tuple[Member, str, Alignment | None]] = {}
        """Path of a photo that moves -> the photo that stays for it, how certain that is, and their alignment."""
        for duplicate in sorted(group.members[1:], key=lambda member: _copies_before(member, by_path)):
            if chosen is not None and duplicate.path not in chosen:
                continue
            is_seen = chosen is not None and duplicate.path not in unseen
            selected = TIERS if is_seen else tiers
            kept, tier, alignment = group.members[0], duplicate.tier, duplicate.alignment
            moment = "" if is_seen else duplicate.moment
            if duplicate.copy_tier in selected:
                kept, tier = by_path[duplicate.copy_of], duplicate.copy_tier
                moment, alignment = "", duplicate.copy_alignment
                if kept.path in moved:
                    kept, certainty, theirs = moved[kept.path]
                    tier, alignment = max(tier, certainty, key=TIERS.index), alignment or theirs
            own, beside_kept = companions_of.get(duplicate.path, ()), companions_of.get(kept.path, ())
            if hard_link and duplicate.in_library is None:
                own = ()
            reason = (
                _why_it_stays(duplicate, moment, "" if is_seen else tier)
                or _what_is_embedded(duplicate, kept)
                or _what_it_takes_along(own, beside_kept, is_compared)
            )
            needed = (tier,) if tier in PROVED_TIERS else (tier, group.tier)
            missing = "" if reason else next((one for one in needed if one not in selected), "")
            reason = (
                reason
                or (missing and f"It moves only with --act-on {missing}.")
                or ("" if is_seen else losses.why_it_stays(duplicate, kept, tier, alignment))
                or another_companion(differing_companion(own, beside_kept, hash_of))
                or _other_names(duplicate)
                or merge.why_it_stays(duplicate, kept, beside_kept)
            )
            if reason:
                skipped.append(Skip(path=duplicate.label, reason=reason, tier=missing))
                continue
            if duplicate.in_library is not None:
                for_album.append(AlbumEntry(duplicate=duplicate, kept=kept))
                moved[duplicate.path] = kept, tier, alignment
                continue
            try:
                target = quarantine_target(duplicate.path, roots)
                _check_files(duplicate, own, report.links)
                _check_kept(duplicate, kept, report.links, hard_link=hard_link)
            except CannotMove as error:
                skipped.append(Skip(path=duplicate.path, reason=str(error), is_blocked=True))
            else:
                moved[duplicate.path] = kept, tier, alignment
                merge.merge(duplicate, kept)
                moves.append(
                    Move(
                        duplicate=duplicate,
                        kept=kept,
                        tier=tier,
                        companions=own,
                        beside_kept=beside_kept,
                        target=target,
                    )
                )
    # Several copies may add to one sidecar, so it is complete only now.
    with_sidecars = [replace(move, sidecars=merge.sidecars_for(move.duplicate, move.kept)) for move in moves]
    return Plan(moves=tuple(with_sidecars), skipped=tuple(skipped), for_album=tuple(for_album))


def check_tiers(tiers: Iterable[str], model: str | None = None) -> None:
    """Raise ValueError for an unknown tier, for altered pictures, and for vectors of a model whose weights are random.

    ``model`` is a model id, or None if it is not known yet.
    """
    for tier in tiers:
        if tier not in TIERS:
            raise ValueError(f"unknown tier {tier!r}; the tiers are {', '.join(MOVABLE_TIERS)}")
        if tier == ALTERED:
            raise ValueError(
                "altered pictures never move by their tier, because a region differs from the kept photo; "
                "choose what moves with clip-client review or clip-client decide keep"
            )
        if tier not in PROVED_TIERS and model is not None and is_random(model):
            raise ValueError(
                f"the tier {tier!r} depends on vectors, and the weights of {model} are random; "
                f"export a model with trained weights, or select only {', '.join(PROVED_TIERS)}"
            )


def roots_of(paths: Iterable[str | os.PathLike[str]]) -> frozenset[str]:
    """Return the folders in which files may move: the named folders, and the folders of named files."""
    absolute = (os.path.abspath(os.fsdecode(path)) for path in paths)
    return frozenset(path if os.path.isdir(path) else os.path.dirname(path) for path in absolute)


def _other_names(duplicate: Member) -> str:
    """Say that the file has other hard links; empty if it has none or is missing."""
    try:
        names = os.lstat(duplicate.path).st_nlink
    except OSError:
        return ""
    if names < 2 or duplicate.in_library is not None:
        return ""
    return f"It has {names} names (hard links), so moving this one would free no space."


def _check_files(duplicate: Member, own: tuple[Companion, ...], links: Links) -> None:
    """Raise CannotMove if one of the files cannot move, or if a link points to it."""
    for what, path in (("It", duplicate.path), *((f"The {one.kind} beside it", one.path) for one in own)):
        check_can_move(path, what)
        if link := links.to(path):
            raise CannotMove(f"{what} is the target of a link, which would break: {link}.")


def _check_kept(duplicate: Member, kept: Member, links: Links, *, hard_link: bool) -> None:
    """Raise CannotMove if the kept photo is missing or was not searched, or no hard link can replace the duplicate."""
    if not os.path.isfile(kept.path):
        raise CannotMove("The kept photo is missing.")
    if kept.path in links.only_by_link:
        raise CannotMove(f"The kept photo is a link to a file that was not searched: {kept.path}.")
    if hard_link:
        if duplicate.sha256 != kept.sha256:
            raise CannotMove(NOT_THE_SAME_BYTES)
        check_hard_link(kept.path, duplicate.path)


def _copies_before(member: Member, by_path: Mapping[str, Member]) -> int:
    """Count the photos that have to be planned before this one: what it is a copy of, what that is a copy of, ..."""
    return 1 + _copies_before(by_path[member.copy_of], by_path) if member.copy_of else 0


def _why_it_stays(duplicate: Member, moment: str, tier: str) -> str:
    if duplicate.is_reference:
        return "It is in a reference folder."
    if moment:
        return f"It shows {moment}, so only a person can tell whether it is wanted."
    if tier == ALTERED:
        return "A region of it differs from the kept photo, so only a person can tell whether it is wanted."
    return ""


def _what_is_embedded(duplicate: Member, kept: Member) -> str:
    if not duplicate.embedded or duplicate.embedded_digest == kept.embedded_digest:
        return ""
    if duplicate.embedded == kept.embedded:
        return f"It holds more than its picture ({duplicate.embedded}), and the kept photo does not hold the same."
    return f"It holds more than its picture ({duplicate.embedded}), which the kept photo lacks."


def _what_it_takes_along(
    own: tuple[Companion, ...], beside_kept: tuple[Companion, ...], is_compared: Callable[[str], bool]
) -> str:
    if any(companion.kind == EDITED for companion in own):
        return "It has an edited version, and the originals are what was compared, so only a person can choose."
    if lost := what_would_be_lost(own, beside_kept):
        return f"It has a {lost} beside it, which the kept photo lacks."
    # A move depends on the duplicate's companions, and on those of the same kinds of the kept photo.
    kinds = {companion.kind for companion in own} & PICTURES
    needed = (*own, *(companion for companion in beside_kept if companion.kind in kinds))
    return _COMPARED_ITSELF if any(is_compared(os.path.abspath(one.path)) for one in needed) else ""


def another_companion(kind: str) -> str:
    """Say that a photo stays because its companion of this kind differs from the kept photo's; empty for no kind."""
    return kind and f"The {kind} beside it is damaged, or differs from that of the kept photo."
