"""Which contents show one picture, as the last searches for duplicates proved it, so that other lists show it once."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator
from typing import TYPE_CHECKING, Final

from clip_client.dedup.store.sqlite import Database
from clip_client.dedup.types import SAFE_TIERS

if TYPE_CHECKING:
    from clip_client.dedup.group import DuplicateGroup
    from clip_client.dedup.store.decisions import Decision

_AT_ONCE: Final = 900
"""Contents in one query; old versions of SQLite allow 999 values."""


class ProvenCopies(Database):
    """A table in the store. It may be lost at any time: then copies are proved once more."""

    # A picture is named by the content that its group keeps. That content has no row of its own.
    SCHEMA = """
    CREATE TABLE IF NOT EXISTS copies (sha256 BLOB PRIMARY KEY, picture BLOB NOT NULL) WITHOUT ROWID;
    CREATE INDEX IF NOT EXISTS copies_by_picture ON copies (picture)
    """
    DURABLE = False

    def record(self, groups: Iterable[DuplicateGroup]) -> None:
        """Write down the copies that move by default if nothing else keeps them, in place of what was known of them."""
        contents = set[bytes]()
        rows = dict[bytes, bytes]()
        for group in groups:
            contents.update(bytes.fromhex(member.sha256) for member in group.members)
            rows.update((bytes.fromhex(copy), bytes.fromhex(of)) for copy, of in _pictures(group).items() if copy != of)
        with self._transaction():
            self._connection.executemany("DELETE FROM copies WHERE sha256 = ?", [(one,) for one in contents])
            self._connection.executemany("INSERT INTO copies VALUES (?, ?)", rows.items())

    def pictures_of(self, contents: Collection[str], decisions: Iterable[Decision] = ()) -> dict[str, str]:
        """Return content -> the content that names its picture, which is itself if no copy of it is known.

        Contents are SHA-256 in hexadecimal. ``decisions`` about different photos undo what was proved before them.
        """
        pictures = {content: content for content in contents}
        pictures.update(self._found("sha256", contents))
        for decision in decisions:
            if decision.what == "different":
                for content in decision.contents & pictures.keys():
                    if pictures[content] in decision.contents:
                        pictures[content] = content
        return pictures

    def copies_of(self, pictures: Collection[str]) -> dict[str, list[str]]:
        """Return the content that names a picture -> its other contents, for those that have any."""
        found = defaultdict[str, list[str]](list)
        for copy, picture in self._found("picture", pictures):
            found[picture].append(copy)
        return dict(found)

    def _found(self, column: str, contents: Collection[str]) -> Iterator[tuple[str, str]]:
        keys = [bytes.fromhex(content) for content in contents]
        for start in range(0, len(keys), _AT_ONCE):
            some = keys[start : start + _AT_ONCE]
            question = f"SELECT sha256, picture FROM copies WHERE {column} IN ({', '.join('?' * len(some))})"
            for copy, picture in self._connection.execute(question, some):
                yield copy.hex(), picture.hex()


def _pictures(group: DuplicateGroup) -> dict[str, str]:
    """Return content -> the content that names its picture, for the members of a group: the best of the copies."""
    content_at = {member.path: member.sha256 for member in group.members}
    contents = list(dict.fromkeys(member.sha256 for member in group.members))  # best first
    number = {content: place for place, content in enumerate(contents)}
    above = list(range(len(contents)))

    def first(place: int) -> int:
        while above[place] != place:
            place = above[place]
        return place

    for member in group.members[1:]:
        if member.tier in SAFE_TIERS and not member.other_shot:
            of = contents[0]
        elif member.copy_of in content_at and member.copy_tier in SAFE_TIERS:
            of = content_at[member.copy_of]
        else:
            continue
        one, other = sorted((first(number[member.sha256]), first(number[of])))
        above[other] = one
    return {content: contents[first(place)] for content, place in number.items()}
