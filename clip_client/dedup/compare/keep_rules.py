"""Rules that choose the photo of a group to keep: of an ordered list, the first that prefers one photo decides."""

from __future__ import annotations

import fnmatch
import os
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from clip_client._files import printable
from clip_client.dedup.aligned import UNPROVED
from clip_client.dedup.files.directories import DirectorySet
from clip_client.dedup.files.file_types import PHOTO_SUFFIXES, RAW_SUFFIXES, suffix_of
from clip_client.dedup.photo import Photo
from clip_client.dedup.store.decisions import KEEP_ALL, Decision
from clip_client.dedup.text import counted, date_and_time

DEFAULT_RULES: Final = (
    "reference", "companions", "undoubted", "original", "pixels", "lossy", "siblings", "metadata", "oldest", "name",
)  # fmt: skip
"""No rule prefers the file with more bytes: a copy that was saved at a higher quality is larger, and no better. What a
camera says of a file stays in its copies, so ``original`` only decides where nothing is proved."""

RETIRED_RULES: Final = frozenset({"bytes", "smallest"})
"""Removed rules, which a store may still have saved under a name; the others work without them."""

_TIE_BREAKS: Final = ("oldest", "name")
"""Always the last rules: an original is older than its copy, or its name has no copy mark."""

_COPY = "copy|kopie|copie|copia|c\u00f3pia|kopia|kopi"
_COPY_MARK: Final = re.compile(
    rf"""^(?:{_COPY})(?:\ \(\d+\))?\ (?:of|von|de|di|av)\   # Copy of a, Copy (2) of a, Kopie von a
    | [\ _-](?:{_COPY})(?:[\ _-]?\(?\d+\)?)?$              # a copy, a copy 2, a - Copy (2), a_copy
    | \ ?\(\d+\)$                                         # a (1), a(1)
    | (?<=\S)\ \d{{1,2}}$                                   # a 2
    | ~\d+$                                                # a~2
    """,
    re.IGNORECASE | re.VERBOSE,
)
"""Words that systems and browsers add to the name of a copy, in several languages, before its ending."""

_LOSSLESS: Final = frozenset({"PNG", "TIFF", "BMP", "GIF", "PPM", "QOI"})

_ZONES_S: Final = 26 * 3_600
"""Difference between the first time zone and the last. The date in EXIF has no zone, and that of a file is in UTC. So a
file must be older, or newer, by more than this to be preferred to a photo with a date."""


class Rule(NamedTuple):
    """One rule: the candidate with the smallest ``rank`` is kept, and ``reason`` says so."""

    rank: Callable[[Photo], Any]
    reason: Callable[[Photo, Photo], str]


class KeepRules:
    """An ordered list of rules, always followed by ``oldest``, ``name`` and the order of the paths.

    Last of all is a file in a folder that may not last or cannot be written to. Before it comes a file that only a
    symbolic link leads to, because it lies outside what was searched. ``docs/keep.md`` explains the rules. Raises
    ValueError for any other name.
    """

    def __init__(
        self,
        names: Sequence[str] = DEFAULT_RULES,
        doubts: Mapping[str, str] | None = None,
        converted: Collection[str] = (),
    ) -> None:
        """``doubts``: content -> why it was probably made from another; ``converted``: those made from a lossy file."""
        self.names = tuple(names)
        self.doubts = doubts or {}
        self._converted = converted
        known = {"undoubted": _undoubted(self.doubts), "lossy": _lossy(converted)}
        self._rules = [known.get(name) or _rule(name) for name in dict.fromkeys((*self.names, *_TIE_BREAKS))]

    def with_doubts(self, doubts: Mapping[str, str]) -> KeepRules:
        return KeepRules(self.names, doubts, self._converted)

    def rank(self, photo: Photo) -> tuple[Any, ...]:
        ranks = (rule.rank(photo) for rule in self._rules)
        return (bool(photo.not_kept), photo.is_by_link, *ranks, os.fsencode(photo.path))

    def reason(self, kept: Photo, *others: Photo) -> str:
        """Say which rule prefers ``kept``; if it alone would keep another photo, say first which rule excluded that."""
        other = min(others, key=self.rank)
        if self.rank(other) < self.rank(kept):
            # A decision has split the photo off that is better than both.
            return "a better one was proved to be a copy of it"
        if other.not_kept and not kept.not_kept:
            return f"the other is in {other.not_kept}"
        if kept.is_by_link != other.is_by_link:
            return "the other is a link to a file that was not searched"
        rule = next((rule for rule in self._rules if rule.rank(kept) != rule.rank(other)), None)
        if rule is None:
            return "first in order of the paths"
        reason, rank = rule.reason(kept, other), rule.rank(kept)
        excluded = [one for one in others if rule.rank(one) < rank and not (one.is_by_link or one.not_kept)]
        return f"{self.reason(kept, min(excluded, key=self.rank))}; then {reason}" if excluded else reason


def converted_from_lossy(pictures: Iterable[Collection[Photo]]) -> frozenset[str]:
    """Return the lossless contents beside a lossy photo of equal pixels; each of ``pictures`` has equal pixels.

    Beside a JPEG, every other format is lossless: only so can its pixels be equal.
    """
    found: set[str] = set()
    for photos in pictures:
        formats = {photo.sha256: photo.features.format for photo in photos}
        has_jpeg = "JPEG" in formats.values()
        lossless = {one for one, name in formats.items() if (name != "JPEG" if has_jpeg else name in _LOSSLESS)}
        if len(lossless) < len(formats):
            found |= lossless
    return frozenset(found)


def best_copies_first(
    copies: Mapping[int, Sequence[Photo]], rules: KeepRules, decisions: Sequence[Decision]
) -> dict[int, list[Photo]]:
    """Return row -> its files to compare, best first; only the best if a person wants all, and there are no more."""
    wanted: dict[str, int] = {}
    for decision in decisions:
        if decision.what == KEEP_ALL:
            wanted |= {sha256: max(number, wanted.get(sha256, 1)) for sha256, number in decision.files.items()}
    best_first = {row: sorted(files, key=rules.rank) for row, files in copies.items()}
    return {
        row: files[:1] if len(files) <= wanted.get(files[0].sha256, 1) else files for row, files in best_first.items()
    }


def _rule(text: str) -> Rule:
    name, _, value = text.partition("=")
    if name in _PLAIN and not value:
        return _PLAIN[name]
    if name == "format" and value:
        wanted = {suffix.strip(" .").lower(): place for place, suffix in enumerate(value.split(","))}
        if unknown := [suffix for suffix in wanted if f".{suffix}" not in PHOTO_SUFFIXES | RAW_SUFFIXES]:
            raise ValueError(f"no photo has the ending {unknown[0]!r}, which {text} names; write format=heic,jpg")
        return Rule(
            lambda one: wanted.get(suffix_of(one.path)[1:], len(wanted)),
            lambda kept, other: f"format {suffix_of(kept.path)[1:]} rather than {suffix_of(other.path)[1:]}",
        )
    if name == "folder" and value:
        folder = DirectorySet([os.path.expanduser(value)])
        return Rule(
            lambda one: not folder.contains(one.path), lambda kept, other: f"in {printable(value)}, a folder you prefer"
        )
    if name in ("path", "not-path") and value:
        first = name == "path"
        return Rule(
            lambda one: fnmatch.fnmatchcase(one.path, value) != first,
            lambda kept, other: f"path {'matches' if first else 'does not match'} {value}",
        )
    raise ValueError(f"there is no keep rule {text!r}; the rules are {', '.join(_PLAIN)}, {', '.join(_WITH_ARGUMENT)}")


def _undoubted(doubts: Mapping[str, str]) -> Rule:
    unproved = "another may be made from it, and is not proved to show all of it"
    said = {one: unproved if why == UNPROVED else f"another may be made from it: {why}" for one, why in doubts.items()}
    return Rule(lambda one: one.sha256 in doubts, lambda kept, other: said[other.sha256])


def _lossy(converted: Collection[str]) -> Rule:
    return Rule(
        lambda one: one.sha256 in converted,
        lambda kept, other: f"the {other.features.format} file was converted from it",
    )


def _is_named_as_copy(photo: Photo) -> bool:
    return _COPY_MARK.search(os.path.splitext(photo.name)[0]) is not None


def _by_age(date: str, file: str, sign: int) -> Rule:
    def rank(photo: Photo) -> tuple[bool, int, bool, int]:
        taken_ns, written_ns = photo.taken_ns, photo.written_ns
        age = 0 if taken_ns is None else seconds(taken_ns) + (_ZONES_S if photo.dated_ns is None else 0)
        return taken_ns is None, age, written_ns is None, seconds(written_ns or 0)

    def seconds(time_ns: int) -> int:
        return sign * (time_ns // 10**9)  # fractions only tell which file a program happened to write first

    def reason(kept: Photo, other: Photo) -> str:
        if rank(kept)[:2] == rank(other)[:2]:
            return f"same date of capture, {file} date of the file"
        if other.taken_ns is None:
            return "the date of the other is unknown"
        return f"{date} date" if (kept.dated_ns, other.dated_ns) != (None, None) else f"{file} date of the file"

    return Rule(rank, reason)


def _why_companions(kept: Photo, other: Photo) -> str:
    kinds = sorted({companion.kind for companion in kept.companions})
    kinds = [f"{'an' if kind[0] in 'aeiou' else 'a'} {kind}" for kind in kinds]
    beside = f"has {' and '.join(kinds)} beside it" if kinds else ""
    inside = f"holds more than its picture: {kept.features.embedded}" if kept.features.embedded else ""
    return "; ".join(filter(None, (beside, inside)))


_PLAIN: Final = {
    "reference": Rule(lambda one: not one.is_reference, lambda kept, other: "in a reference folder"),
    "original": Rule(
        lambda one: not one.is_original,
        lambda kept, other: f"camera original: {kept.camera}, taken {date_and_time(kept.metadata.taken)}",
    ),
    "companions": Rule(
        lambda one: -len({*(each.kind for each in one.companions), *filter(None, one.features.embedded.split(", "))}),
        _why_companions,
    ),
    "undoubted": _undoubted({}),
    "pixels": Rule(
        lambda one: -one.width * one.height,
        lambda kept, other: f"most pixels: {kept.width}x{kept.height}, next {other.width}x{other.height}",
    ),
    "lossy": _lossy(()),
    "siblings": Rule(lambda one: -one.files, lambda kept, other: f"{counted(kept.files, 'file')} with its bytes"),
    "metadata": Rule(
        lambda one: -one.metadata.fields,
        lambda kept, other: f"most metadata: {counted(kept.metadata.fields, 'field')}, next {other.metadata.fields}",
    ),
    "oldest": _by_age("oldest", "earlier", 1),
    "newest": _by_age("newest", "later", -1),
    "name": Rule(
        lambda one: (_is_named_as_copy(one), len(one.name)),
        lambda kept, other: (
            "name without a copy mark" if _is_named_as_copy(other) != _is_named_as_copy(kept) else "shortest name"
        ),
    ),
}
PLAIN_RULES: Final = (*DEFAULT_RULES, *(name for name in _PLAIN if name not in DEFAULT_RULES))
"""All rules without an argument: first the default ones, in their order."""
_WITH_ARGUMENT: Final = ("folder=DIR", "format=A,B", "path=PATTERN", "not-path=PATTERN")
