"""Which photo of a group is kept: an ordered list of rules, the first that tells two photos apart decides."""

from __future__ import annotations

import fnmatch
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from clip_client.dedup.table import human_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from clip_client.dedup.looks import Look

DEFAULT_RULES: Final = ("reference", "companions", "pixels", "bytes", "metadata", "oldest")


@dataclass(frozen=True, kw_only=True, eq=False)
class Candidate:
    """A file that might be the one to keep."""

    path: str
    sha256: str
    size_bytes: int
    mtime_ns: int
    look: Look
    is_reference: bool = False
    companions: tuple[str, ...] = ()
    """Kinds of what belongs to it, such as ``"RAW file"``."""

    @property
    def suffix(self) -> str:
        """Ending of the name without the dot, in lower case."""
        return os.path.splitext(self.path)[1][1:].lower()

    @property
    def taken_ns(self) -> int:
        """When it was taken, else when the file was last changed."""
        taken_ms = self.look.moment.taken_ms
        return self.mtime_ns if taken_ms is None else taken_ms * 1_000_000


@dataclass(frozen=True, kw_only=True)
class Rule:
    """One rule: the candidate with the smallest ``rank`` is kept, and ``reason`` says so."""

    rank: Callable[[Candidate], Any]
    reason: Callable[[Candidate, Candidate], str]
    """Of the kept one and the next best."""


class KeepRules:
    """An ordered list of rules. The path decides where no rule does, so the choice never depends on anything else.

    The names: ``reference`` (in a reference folder), ``companions`` (has a RAW file, a film or sidecars beside it),
    ``pixels`` (most), ``bytes`` (most), ``metadata`` (most EXIF fields), ``oldest`` (taken first), ``newest``,
    ``format=heic,jpg`` (earlier in the list), ``path=PATTERN`` (matches the shell pattern) and ``not-path=PATTERN``.
    Raises ValueError for a name that is none of these.
    """

    def __init__(self, names: Sequence[str] = DEFAULT_RULES) -> None:
        self.names = tuple(names)
        self._rules = [_rule(name) for name in self.names]

    def rank(self, candidate: Candidate) -> tuple[Any, ...]:
        """Return a key that sorts the best candidate first."""
        return (*(rule.rank(candidate) for rule in self._rules), os.fsencode(candidate.path))

    def reason(self, kept: Candidate, other: Candidate) -> str:
        """Say which rule prefers ``kept`` to ``other``."""
        for rule in self._rules:
            if rule.rank(kept) != rule.rank(other):
                return rule.reason(kept, other)
        return "first in order of the paths"


def _rule(text: str) -> Rule:
    name, _, value = text.partition("=")
    if name in _PLAIN and not value:
        return _PLAIN[name]
    if name == "format" and value:
        wanted = {suffix.strip(" .").lower(): place for place, suffix in enumerate(value.split(","))}
        return Rule(
            rank=lambda candidate: wanted.get(candidate.suffix, len(wanted)),
            reason=lambda kept, other: f"format {kept.suffix} rather than {other.suffix}",
        )
    if name in ("path", "not-path") and value:
        first = name == "path"
        return Rule(
            rank=lambda candidate: fnmatch.fnmatchcase(candidate.path, value) != first,
            reason=lambda kept, other: f"path {'matches' if first else 'does not match'} {value}",
        )
    raise ValueError(
        f"there is no keep rule {text!r}; the rules are {', '.join(_PLAIN)}, format=A,B, path=PATTERN, not-path=PATTERN"
    )


def _size(candidate: Candidate) -> str:
    return f"{candidate.look.width}x{candidate.look.height}"


_PLAIN: Final = {
    "reference": Rule(
        rank=lambda candidate: not candidate.is_reference, reason=lambda kept, other: "in a reference folder"
    ),
    "companions": Rule(
        rank=lambda candidate: -len(set(candidate.companions)),
        reason=lambda kept, other: f"has a {' and a '.join(sorted(set(kept.companions)))} beside it",
    ),
    "pixels": Rule(
        rank=lambda candidate: -candidate.look.width * candidate.look.height,
        reason=lambda kept, other: f"most pixels: {_size(kept)}, next {_size(other)}",
    ),
    "bytes": Rule(
        rank=lambda candidate: -candidate.size_bytes,
        reason=lambda kept, other: (
            f"largest file: {human_bytes(kept.size_bytes)}, next {human_bytes(other.size_bytes)}"
        ),
    ),
    "metadata": Rule(
        rank=lambda candidate: -candidate.look.moment.fields,
        reason=lambda kept, other: f"most metadata: {kept.look.moment.fields} fields, next {other.look.moment.fields}",
    ),
    "oldest": Rule(
        rank=lambda candidate: candidate.taken_ns,
        reason=lambda kept, other: "oldest date",
    ),
    "newest": Rule(
        rank=lambda candidate: -candidate.taken_ns,
        reason=lambda kept, other: "newest date",
    ),
}
