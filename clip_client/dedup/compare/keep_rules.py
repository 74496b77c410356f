"""Which photo of a group is kept: the first of an ordered list of rules that prefers one photo decides."""

from __future__ import annotations

import fnmatch
import os
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from clip_client.dedup.features.image_features import ImageFeatures
from clip_client.dedup.files.directories import DirectorySet
from clip_client.dedup.files.file_types import RAW
from clip_client.dedup.store.decisions import KEEP_ALL
from clip_client.dedup.text import counted, human_bytes, printable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from clip_client.dedup.store.decisions import Decision
    from clip_client.dedup.types import LibraryPhoto, Member

DEFAULT_RULES: Final = (
    "reference", "original", "companions", "undoubted", "pixels", "bytes", "metadata", "oldest", "name",
)  # fmt: skip

_TIE_BREAKS: Final = ("oldest", "name")
"""Always the last rules: an original is older than its copy, or its name has no copy mark."""

_LINK: Final = "/link"
_PATH: Final = "/path"

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
"""What systems and browsers add to the name of a copy, in several languages. Applied to a name without its ending."""


_CAMERA_FORMATS: Final = frozenset({"JPEG", "HEIC", RAW})
"""What cameras write. A PNG or TIFF file with the metadata of a camera was converted from one of these."""

_EDITORS: Final = re.compile(
    r"""\b(?:
      acdsee | adobe | affinity | aftershot | aperture | canva | capture\ one | capture\ nx | corel | darktable
    | digikam | digital\ photo\ professional | dxo | facebook | faststone | ffmpeg | gimp | google | graphicsmagick
    | imagemagick | imaging\ edge | inkscape | instagram | iphoto | irfanview | krita | lavc | lightroom | luminar
    | meitu | microsoft | nx\ studio | olympus\ workspace | on1 | paint | paintshop | photo\ booth | photomatix
    | photopea | photos | photoscape | photoshop | picasa | pixelmator | pixlr | polarr | preview | raw\ ?therapee
    | shotwell | silkypix | skylum | snapseed | topaz | viewnx | vsco | whatsapp | windows\ photo | xnview
    )""",
    re.IGNORECASE | re.VERBOSE,
)
"""Programs that edit pictures. Cameras and phones write the version of their own software into the same field."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Candidate:
    """A file that may be kept."""

    path: str
    sha256: str
    size_bytes: int
    mtime_ns: int
    features: ImageFeatures
    is_reference: bool = False
    is_by_link: bool = False
    """Only a symbolic link leads to it."""
    companions: tuple[str, ...] = ()
    """The kinds of its companions, such as ``"RAW file"``."""
    in_library: LibraryPhoto | None = None
    """Where Apple Photos keeps it."""
    doubt: str = ""
    """Why it is probably made from another photo that was found; empty if nothing shows that."""

    @classmethod
    def of(cls, member: Member) -> Candidate:
        """Return a photo of a report as the rules see it."""
        features = ImageFeatures(
            width=member.width,
            height=member.height,
            format=member.format,
            embedded=member.embedded,
            capture_time=member.capture_time,
            metadata=member.metadata,
        )
        return cls(
            path=member.path,
            sha256=member.sha256,
            size_bytes=member.size_bytes,
            mtime_ns=member.mtime_ns,
            features=features,
            is_reference=member.is_reference,
            is_by_link=member.is_by_link,
            companions=member.companions,
            in_library=member.in_library,
            doubt=member.doubt,
        )

    @property
    def name(self) -> str:
        """Name of the file; in a library of Apple Photos, its name at the import."""
        return self.in_library.name if self.in_library else os.path.basename(self.path)

    @property
    def is_original(self) -> bool:
        """Whether the file has all the metadata that a camera writes, and no trace of another program."""
        metadata = self.features.metadata
        return (
            self.features.format in _CAMERA_FORMATS
            and bool(self.features.capture_time.camera and metadata.taken)
            and bool(metadata.has_exposure or metadata.has_maker_note or metadata.lens or metadata.latitude is not None)
            and not metadata.is_resized
            and not _EDITORS.search(metadata.software)
        )

    @property
    def dated_ns(self) -> int | None:
        """When it was taken, by Photos or EXIF; nanoseconds since 1970."""
        if self.in_library is not None and self.in_library.taken_ns is not None:
            return self.in_library.taken_ns
        taken_ms = self.features.capture_time.taken_ms
        return None if taken_ms is None else taken_ms * 1_000_000

    @property
    def taken_ns(self) -> int:
        """When it was taken, else when the file was last changed; nanoseconds since 1970."""
        return self.mtime_ns if self.dated_ns is None else self.dated_ns


class Rule(NamedTuple):
    """One rule: the candidate with the smallest ``rank`` is kept, and ``reason`` says so."""

    rank: Callable[[Candidate], Any]
    reason: Callable[[Candidate, Candidate], str]
    """Takes the kept candidate and the next best."""
    rank_of_path: Callable[[str], Any] | None = None
    """The same rank from the path alone, of the rules with an argument: they look at nothing else."""

    @classmethod
    def of_paths(cls, rank_of_path: Callable[[str], Any], reason: Callable[[Candidate, Candidate], str]) -> Rule:
        """Make a rule that looks at nothing but the path."""
        return cls(lambda candidate: rank_of_path(candidate.path), reason, rank_of_path)


class Standings(NamedTuple):
    """What rules need of one group: so little that they can be tried on thousands of groups while a person waits."""

    paths: tuple[str, ...]
    """Of the photos of the group."""
    by_rule: dict[str, tuple[int, ...]]
    """Rule without an argument -> the rank of each photo among those of the group. Rules that prefer none are absent.

    ``_LINK`` and ``_PATH`` stand for what is compared before and after all rules."""

    @classmethod
    def of(cls, candidates: Sequence[Candidate]) -> Standings:
        """Compare the photos of a group by each rule that has no argument."""
        ranks: dict[str, list[Any]] = {
            _LINK: [one.is_by_link for one in candidates],
            **{name: list(map(rule.rank, candidates)) for name, rule in _PLAIN.items()},
            _PATH: [os.fsencode(one.path) for one in candidates],
        }
        by_rule = {}
        for name, of_each in ranks.items():
            if of_each.count(of_each[0]) < len(of_each):
                places = {rank: place for place, rank in enumerate(sorted(set(of_each)))}
                by_rule[name] = tuple(places[rank] for rank in of_each)
        return cls(tuple(one.path for one in candidates), by_rule)


class KeepRules:
    """An ordered list of rules, always followed by ``oldest``, ``name`` and the order of the paths.

    A file that only a symbolic link leads to is the last choice, because it lies outside what was searched. The other
    files are compared by the rules and by nothing else. The rules: ``reference`` (in a reference folder),
    ``original`` (as a camera wrote it), ``companions`` (has a RAW file, a film or sidecars beside it, or a film
    inside), ``undoubted`` (no other photo is probably what it was made from), ``pixels`` (most), ``bytes`` (most),
    ``smallest`` (fewest bytes), ``metadata`` (most EXIF fields), ``oldest`` (taken first, then the older file),
    ``newest``, ``name`` (no copy mark such as "Copy of" or "(1)", then the shortest), ``folder=DIR`` (in this folder,
    at any depth), ``format=heic,jpg`` (earlier in the list), ``path=PATTERN`` (matches the shell pattern) and
    ``not-path=PATTERN``. Raises ValueError for a name that is none of
    these.
    """

    def __init__(self, names: Sequence[str] = DEFAULT_RULES) -> None:
        self.names = tuple(names)
        ties = (name for name in _TIE_BREAKS if name not in self.names)
        self._rules = {name: _rule(name) for name in (*self.names, *ties)}

    def rank(self, candidate: Candidate) -> tuple[Any, ...]:
        """Return a key that sorts the best candidate first."""
        ranks = (rule.rank(candidate) for rule in self._rules.values())
        return (candidate.is_by_link, *ranks, os.fsencode(candidate.path))

    def order(self, standings: Standings) -> list[int]:
        """Return the positions of the photos of a group, the best first: in the order of their :meth:`rank`."""
        by_rule = standings.by_rule
        columns: list[Sequence[Any] | None] = [by_rule.get(_LINK)]
        for name, rule in self._rules.items():
            of_path = rule.rank_of_path
            columns.append(by_rule.get(name) if of_path is None else list(map(of_path, standings.paths)))
        columns.append(by_rule.get(_PATH))
        keys = list(zip(*filter(None, columns), strict=True))
        return sorted(range(len(keys)), key=keys.__getitem__)

    def reason(self, kept: Candidate, *others: Candidate) -> str:
        """Say which rule prefers ``kept`` to the best of the others.

        If by that rule alone another one would be kept, such as a larger file, say first which rule excluded that one.
        """
        other = min(others, key=self.rank)
        if self.rank(other) < self.rank(kept):
            # A decision has split the photo off that is better than both.
            return "a better one was proved to be a copy of it"
        if kept.is_by_link != other.is_by_link:
            return "the other is a link to a file that was not searched"
        rule = next((rule for rule in self._rules.values() if rule.rank(kept) != rule.rank(other)), None)
        if rule is None:
            return "first in order of the paths"
        reason, rank = rule.reason(kept, other), rule.rank(kept)
        excluded = [one for one in others if rule.rank(one) < rank and not one.is_by_link]
        return f"{self.reason(kept, min(excluded, key=self.rank))}; then {reason}" if excluded else reason


def best_copies_first(
    copies: Mapping[int, Sequence[Candidate]], rules: KeepRules, decisions: Sequence[Decision]
) -> dict[int, list[Candidate]]:
    """Return row -> the files of that content that are compared, best first.

    If a person wants to keep all files of a content, and there are no more than then, only the best one is compared.
    """
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
        return Rule.of_paths(
            lambda path: wanted.get(_suffix(path), len(wanted)),
            lambda kept, other: f"format {_suffix(kept.path)} rather than {_suffix(other.path)}",
        )
    if name == "folder" and value:
        folder = DirectorySet([os.path.expanduser(value)])
        return Rule.of_paths(
            lambda path: not folder.contains(path),
            lambda kept, other: f"in {printable(value)}, a folder you prefer",
        )
    if name in ("path", "not-path") and value:
        first = name == "path"
        return Rule.of_paths(
            lambda path: fnmatch.fnmatchcase(path, value) != first,
            lambda kept, other: f"path {'matches' if first else 'does not match'} {value}",
        )
    raise ValueError(f"there is no keep rule {text!r}; the rules are {', '.join(_PLAIN)}, {', '.join(_WITH_ARGUMENT)}")


def _suffix(path: str) -> str:
    return os.path.splitext(path)[1][1:].lower()


def _is_named_as_copy(candidate: Candidate) -> bool:
    return _COPY_MARK.search(os.path.splitext(candidate.name)[0]) is not None


def _by_age(date: str, file: str, sign: int) -> Rule:
    def reason(kept: Candidate, other: Candidate) -> str:
        if kept.taken_ns == other.taken_ns:
            return f"same date, {file} file"
        return f"{date} date" if (kept.dated_ns, other.dated_ns) != (None, None) else f"{file} file"

    return Rule(rank=lambda one: (sign * one.taken_ns, sign * one.mtime_ns), reason=reason)


def _why_original(kept: Candidate, other: Candidate) -> str:
    date = kept.features.metadata.taken.partition("T")[0]
    return f"camera original: {kept.features.capture_time.camera}, taken {date}"


def _why_companions(kept: Candidate, other: Candidate) -> str:
    kinds = [f"{'an' if kind[0] in 'aeiou' else 'a'} {kind}" for kind in sorted(set(kept.companions))]
    beside = f"has {' and '.join(kinds)} beside it" if kinds else ""
    inside = f"holds more than its picture: {kept.features.embedded}" if kept.features.embedded else ""
    return "; ".join(filter(None, (beside, inside)))


def _why_pixels(kept: Candidate, other: Candidate) -> str:
    sizes = [f"{one.features.width}x{one.features.height}" for one in (kept, other)]
    return f"most pixels: {sizes[0]}, next {sizes[1]}"


def _why_size(which: str) -> Callable[[Candidate, Candidate], str]:
    return lambda kept, other: f"{which} file: {human_bytes(kept.size_bytes)}, next {human_bytes(other.size_bytes)}"


def _why_metadata(kept: Candidate, other: Candidate) -> str:
    most, next_most = (one.features.capture_time.fields for one in (kept, other))
    return f"most metadata: {counted(most, 'field')}, next {next_most}"


def _why_name(kept: Candidate, other: Candidate) -> str:
    return "name without a copy mark" if _is_named_as_copy(other) != _is_named_as_copy(kept) else "shortest name"


_PLAIN: Final = {
    "reference": Rule(lambda one: not one.is_reference, lambda kept, other: "in a reference folder"),
    "original": Rule(lambda one: not one.is_original, _why_original),
    "companions": Rule(
        lambda one: -len({*one.companions, *filter(None, one.features.embedded.split(", "))}), _why_companions
    ),
    "undoubted": Rule(lambda one: bool(one.doubt), lambda kept, other: f"another may be made from it: {other.doubt}"),
    "pixels": Rule(lambda one: -one.features.width * one.features.height, _why_pixels),
    "bytes": Rule(lambda one: -one.size_bytes, _why_size("largest")),
    "smallest": Rule(lambda one: one.size_bytes, _why_size("smallest")),
    "metadata": Rule(lambda one: -one.features.capture_time.fields, _why_metadata),
    "oldest": _by_age("oldest", "older", 1),
    "newest": _by_age("newest", "newer", -1),
    "name": Rule(lambda one: (_is_named_as_copy(one), len(one.name)), _why_name),
}
_WITH_ARGUMENT: Final = ("folder=DIR", "format=A,B", "path=PATTERN", "not-path=PATTERN")
