"""From a report to what would be moved, and what would not, and why; nothing is touched here."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from clip_client.dedup.actions.merging import MetadataMerge
from clip_client.dedup.actions.quarantine import CannotMove, Place, check_can_move, check_hard_link, place_for
from clip_client.dedup.files.companions import companions, differing_companion, what_would_be_lost
from clip_client.dedup.files.file_types import EDITED, PICTURES
from clip_client.dedup.files.hashing import sha256_of
from clip_client.dedup.types import EXACT, SAME_PIXELS, TIERS, Companion, is_random

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from clip_client.dedup.actions.sidecars import SidecarToWrite
    from clip_client.dedup.types import DuplicateGroup, DuplicateReport, Links, Member

SAFE_TIERS = (EXACT, SAME_PIXELS)
"""What is moved where nobody asks for more: no model has a say in these."""

NOT_THE_SAME_BYTES = "Only copies of the same bytes can become hard links."

_COMPARED_ITSELF = (
    "A RAW file beside it or beside the kept photo was named and compared by itself, so another group may keep or move "
    "it; name their folder instead."
)


@dataclass(frozen=True, kw_only=True)
class Removal:
    """A photo that would leave, with what belongs to it."""

    victim: Member
    survivor: Member
    """The kept photo of its group, or another that stays and holds the same picture."""
    tier: str
    companions: tuple[Companion, ...]
    beside_survivor: tuple[Companion, ...]
    """What belongs to the kept photo."""
    place: Place
    sidecars: tuple[SidecarToWrite, ...] = ()
    """What has to be beside the kept photo before this one leaves."""

    @property
    def size_bytes(self) -> int:
        """Of the photo itself."""
        return self.victim.size_bytes


@dataclass(frozen=True, kw_only=True)
class AlbumEntry:
    """A photo of a library of Apple Photos, which nothing is moved out of: it would go into an album there."""

    victim: Member
    survivor: Member
    """What stays instead, in whatever folder or library."""


@dataclass(frozen=True, kw_only=True)
class Left:
    """A copy that stays, and why."""

    path: str
    reason: str
    """One sentence for people."""
    is_blocked: bool = False
    """True where it could not be moved if somebody wanted to."""
    tier: str = ""
    """The tier that was not asked for, if it stays for nothing else: its own or that of its group."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What ``--apply`` would do to a report."""

    removals: tuple[Removal, ...]
    left: tuple[Left, ...]
    for_album: tuple[AlbumEntry, ...] = ()

    @property
    def size_bytes(self) -> int:
        """Of all photos that would leave."""
        return sum(removal.size_bytes for removal in self.removals)


def plan_removals(
    report: DuplicateReport,
    paths: Iterable[str | os.PathLike[str]],
    *,
    tiers: Sequence[str] = SAFE_TIERS,
    hard_link: bool = False,
    merge_metadata: bool = False,
    hash_of: Callable[[str], str] = sha256_of,
) -> Plan:
    """Choose what leaves: every copy of the ``tiers`` that is not kept, may be moved and takes nothing unique along.

    A copy of the same bytes or pixels leaves if its own tier is among ``tiers``. Any other copy leaves only if the tier
    of its group is among them, too: a group is as sure as its least sure member.

    ``paths`` is what was searched: nothing outside it is touched. Photos of a burst, of another moment or of a
    reference folder always stay; of further copies of one of them the best stays. So do the target of a symbolic link,
    and a file with further hard links. With ``hard_link`` only copies leave that a hard link can replace; the name of
    each stays, so what belongs to that name stays beside it. A copy stays if its date, GPS position, rating, keywords,
    title or caption is not among what the kept photo and its sidecar say; with ``merge_metadata`` these fields go into
    a new sidecar of the kept photo, if it has none yet.

    ``hash_of`` returns the SHA-256 of a file, such as :meth:`~clip_client.dedup.store.file_index.FileIndex.sha256_of`.

    :func:`~.apply.apply` moves exactly what the plan says while no other program changes the files.
    Raises ValueError for a tier that is none, and for one that rests on vectors where the model's weights are random.
    """
    check_tiers(tiers, report.model)
    roots = roots_of(paths)
    belongings = _belongings(report)
    compared = {os.path.abspath(member.path) for group in report.groups for member in group.members}
    merge = MetadataMerge(is_asked_for=merge_metadata)
    removals: list[Removal] = []
    left, for_album = [], []
    for group in report.groups:
        by_path = {member.path: member for member in group.members}
        leaving: set[str] = set()
        # Copies come after what they are copies of: if that leaves, too, it is the kept photo that stays for both.
        for victim in sorted(group.members[1:], key=lambda member: bool(member.copy_of)):
            survivor, tier, moment = group.members[0], victim.tier, victim.moment
            if victim.copy_tier in tiers and victim.copy_of not in leaving:
                survivor, tier, moment = by_path[victim.copy_of], victim.copy_tier, ""
            own, of_survivor = belongings.get(victim.path, ()), belongings.get(survivor.path, ())
            if hard_link and victim.in_library is None:
                own = ()
            reason = (
                _why_it_stays(victim, moment)
                or _what_is_embedded(victim, survivor)
                or _what_it_takes_along(own, of_survivor)
                or next((_COMPARED_ITSELF for one in _moving(own, of_survivor) if _absolute(one) in compared), "")
            )
            missing = "" if reason else _missing_tier(tier, group, tiers)
            if not reason and not missing:
                reason = (
                    _which_content_it_takes_along(own, of_survivor, hash_of)
                    or _other_names(victim)
                    or merge.why_it_stays(victim, survivor, of_survivor)
                )
            if reason or missing:
                asked_for = reason or f"The tier {missing} was not asked for."
                left.append(Left(path=victim.label, reason=asked_for, tier=missing))
                continue
            if victim.in_library is not None:
                for_album.append(AlbumEntry(victim=victim, survivor=survivor))
                leaving.add(victim.path)
                continue
            try:
                place = place_for(victim.path, roots)
                _check_files(victim, own, report.links)
                _check_kept(victim, survivor, report.links, hard_link=hard_link)
            except CannotMove as error:
                left.append(Left(path=victim.path, reason=str(error), is_blocked=True))
            else:
                leaving.add(victim.path)
                merge.merge(victim, survivor)
                removals.append(
                    Removal(
                        victim=victim,
                        survivor=survivor,
                        tier=tier,
                        companions=own,
                        beside_survivor=of_survivor,
                        place=place,
                    )
                )
    # Several copies may fill one sidecar, so it is whole only now.
    with_sidecars = [
        replace(removal, sidecars=merge.sidecars_for(removal.victim, removal.survivor)) for removal in removals
    ]
    return Plan(removals=tuple(with_sidecars), left=tuple(left), for_album=tuple(for_album))


def check_tiers(tiers: Iterable[str], model: str | None = None) -> None:
    """Raise ValueError for a tier that is none, and for one that rests on the vectors of a ``model`` of random weights.

    ``model`` is an id; None where it is not known yet.
    """
    for tier in tiers:
        if tier not in TIERS:
            raise ValueError(f"there is no tier {tier!r}; the tiers are {', '.join(TIERS)}")
        if tier not in SAFE_TIERS and model is not None and is_random(model):
            raise ValueError(
                f"the tier {tier!r} rests on vectors, and the weights of {model} are random: "
                "export a model with trained weights, or keep to exact and same-pixels"
            )


def roots_of(paths: Iterable[str | os.PathLike[str]]) -> frozenset[str]:
    """Return the folders inside which files may move: those that were named, and those of files that were named."""
    roots = set()
    for path in paths:
        whole = os.path.abspath(os.fsdecode(path))
        roots.add(whole if os.path.isdir(whole) else os.path.dirname(whole))
    return frozenset(roots)


def _belongings(report: DuplicateReport) -> dict[str, tuple[Companion, ...]]:
    members = [member for group in report.groups for member in group.members]
    return companions(member.path for member in members if member.in_library is None) | {
        member.path: member.in_library.companions for member in members if member.in_library is not None
    }


def _missing_tier(tier: str, group: DuplicateGroup, tiers: Sequence[str]) -> str:
    """Return the first tier that would have to be asked for, too; empty if ``tiers`` are enough."""
    needed = (tier,) if tier in SAFE_TIERS else (tier, group.tier)
    return next((one for one in needed if one not in tiers), "")


def _other_names(victim: Member) -> str:
    """Say that the file has further hard links; empty if it has none, or is not there to be asked."""
    try:
        names = os.lstat(victim.path).st_nlink
    except OSError:
        return ""
    if names < 2 or victim.in_library is not None:
        return ""
    return f"It has {names} names (hard links), so moving this one would free no space."


def _moving(own: tuple[Companion, ...], of_survivor: tuple[Companion, ...]) -> tuple[Companion, ...]:
    """Return the companions that a move depends on: those of the copy, and the same kinds of the kept photo."""
    kinds = {companion.kind for companion in own}
    return (*own, *(companion for companion in of_survivor if companion.kind in kinds & PICTURES))


def _absolute(companion: Companion) -> str:
    return os.path.abspath(companion.path)


def _check_files(victim: Member, own: tuple[Companion, ...], links: Links) -> None:
    """Raise CannotMove if one of the files cannot move, or if a link to it would lead nowhere."""
    for what, path in (("It", victim.path), *((f"The {one.kind} beside it", one.path) for one in own)):
        check_can_move(path, what)
        if link := links.to(path):
            raise CannotMove(f"{what} is the target of a link, which would lead nowhere: {link}.")


def _check_kept(victim: Member, survivor: Member, links: Links, *, hard_link: bool) -> None:
    """Raise CannotMove if the kept photo may go away unasked, or cannot get a hard link in the place of the victim."""
    if survivor.path in links.only_by_link:
        raise CannotMove(f"The photo to keep instead is a link to a file that was not searched: {survivor.path}.")
    if hard_link:
        if victim.sha256 != survivor.sha256:
            raise CannotMove(NOT_THE_SAME_BYTES)
        check_hard_link(survivor.path, victim.path)


def _why_it_stays(victim: Member, moment: str) -> str:
    if victim.is_reference:
        return "It lies in a reference folder."
    if moment:
        return f"It shows {moment}, so only a person can tell whether it is wanted."
    return ""


def _what_is_embedded(victim: Member, survivor: Member) -> str:
    if not victim.embedded or victim.embedded_digest == survivor.embedded_digest:
        return ""
    if victim.embedded == survivor.embedded:
        return f"It holds more than its picture ({victim.embedded}), and the kept photo does not hold the same."
    return f"It holds more than its picture ({victim.embedded}), which the kept photo lacks."


def _what_it_takes_along(own: tuple[Companion, ...], of_survivor: tuple[Companion, ...]) -> str:
    if any(companion.kind == EDITED for companion in own):
        return "It has an edited version, and the originals are what was compared, so only a person can choose."
    lost = what_would_be_lost(own, of_survivor)
    return f"It has a {lost} beside it, which the kept photo has not." if lost else ""


def _which_content_it_takes_along(
    own: tuple[Companion, ...], of_survivor: tuple[Companion, ...], hash_of: Callable[[str], str]
) -> str:
    other = differing_companion(own, of_survivor, hash_of)
    return another_companion(other) if other else ""


def another_companion(kind: str) -> str:
    """Say why a photo stays if its RAW file, film or sidecar differs from that of the kept photo."""
    return f"The {kind} beside it is another than the kept photo has, or damaged."
