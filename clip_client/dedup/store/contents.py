"""The content of each file when it was last read, and the contents that show one picture."""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Final

from clip_client._storage.sqlite import Tables
from clip_client.dedup.group import DuplicateGroup
from clip_client.dedup.store.decisions import DIFFERENT, Decision
from clip_client.dedup.types import SAFE_TIERS, PhotoFile

_FILES_AT_ONCE: Final = 900
_CHAIN: Final = """
WITH RECURSIVE chain AS (
    SELECT * FROM copies WHERE {} IN ({{}}) UNION SELECT copies.* FROM copies JOIN chain ON {}
) SELECT * FROM chain
"""
_ABOVE: Final = _CHAIN.format("sha256", "copies.sha256 = chain.picture")
_BELOW: Final = _CHAIN.format("picture", "copies.picture = chain.sha256")


class FileIndex(Tables):
    """The contents of files. If the table is lost, all files are read again."""

    def known(self, files: Sequence[PhotoFile]) -> dict[str, str]:
        found = {}
        question = "SELECT path, sha256, size_bytes, mtime_ns, ctime_ns FROM files WHERE path IN ({})"
        for start in range(0, len(files), _FILES_AT_ONCE):
            by_name = {_name(file.path): file for file in files[start : start + _FILES_AT_ONCE]}
            for name, sha256, *version in self._found(question, list(by_name)):
                file = by_name[name]
                # Compare the ctime, too: a program can write into a file and set its time of modification back.
                if [file.size_bytes, file.mtime_ns, file.ctime_ns] == version:
                    found[file.path] = sha256.hex()
        return found

    def paths_of(self, contents: Collection[str]) -> dict[str, list[str]]:
        # Make the index with the first question: few commands ask one.
        self._connection.execute("CREATE INDEX IF NOT EXISTS files_by_content ON files (sha256)")
        found: dict[str, list[str]] = {sha256: [] for sha256 in contents}
        question = "SELECT path, sha256 FROM files WHERE sha256 IN ({}) ORDER BY path"
        for name, sha256 in self._found(question, [bytes.fromhex(sha256) for sha256 in contents]):
            found[sha256.hex()].append(os.fsdecode(name))
        return found

    def unchanged(self, paths: Iterable[str]) -> set[str]:
        files = []
        for path in paths:
            with suppress(OSError):
                files.append(PhotoFile.of(path, os.stat(path)))
        return set(self.known(files))

    def contents_below(self, path: str) -> set[str]:
        name = _name(path)
        first = os.path.join(name, b"")
        question = "SELECT sha256 FROM files WHERE path = ? OR path >= ? AND path < ?"
        # With the byte after the separator instead of the separator, the prefix sorts right after the folder's paths.
        after = first[:-1] + bytes([first[-1] + 1])
        return {sha256.hex() for (sha256,) in self._connection.execute(question, (name, first, after))}

    def sha256_of(self, path: str, hash_file: Callable[[str], str]) -> str:
        """Return a file's SHA-256, by ``hash_file`` if it is new or changed; ``""`` for an empty or unreadable file."""
        try:
            file = PhotoFile.of(path, os.stat(path))
        except OSError:
            return ""
        known = self.known([file]).get(path)
        if known is None and (known := hash_file(path)):
            self.remember([(file, known)])
        return known or ""

    def remember(self, files: Iterable[tuple[PhotoFile, str]]) -> None:
        if rows := [
            (_name(file.path), file.size_bytes, file.mtime_ns, bytes.fromhex(sha256), file.ctime_ns)
            for file, sha256 in files
        ]:
            self._write("INSERT OR REPLACE INTO files VALUES (?, ?, ?, ?, ?)", rows)

    def forget(self, paths: Iterable[str]) -> None:
        self._write("DELETE FROM files WHERE path = ?", [(_name(path),) for path in paths])


def _name(path: str) -> bytes:
    return os.fsencode(os.path.abspath(path))


class ProvenCopies(Tables):
    """Contents that show one picture. If the table is lost, copies are proved again."""

    def record(self, groups: Collection[DuplicateGroup]) -> None:
        contents = {bytes.fromhex(member.sha256) for group in groups for member in group.members}
        pictures = (pair for group in groups for pair in _pictures(group).items())
        rows = {bytes.fromhex(copy): bytes.fromhex(of) for copy, of in pictures if copy != of}
        with self.transaction():
            known = list(self._found("SELECT sha256, picture FROM copies WHERE sha256 IN ({})", list(contents)))
            # Keep the row of a photo that its group keeps: it may be a copy of a photo that this search did not see.
            outdated = [(copy,) for copy, of in known if copy in rows or of in contents]
            self._connection.executemany("DELETE FROM copies WHERE sha256 = ?", outdated)
            self._connection.executemany("INSERT INTO copies VALUES (?, ?)", rows.items())

    def pictures_of(self, contents: Collection[str], decisions: Iterable[Decision] = ()) -> dict[str, str]:
        """Return content -> the content that names its picture, maybe itself. ``decisions`` override the proofs."""
        apart = [decision.contents for decision in decisions if decision.what == DIFFERENT]
        above = self._copies(_ABOVE, set(contents).union(*apart))
        separated = set[str]()
        for different in apart:
            of = {content: _top(content, above) for content in different}
            number = Counter(of.values())
            separated.update(content for content in different if number[of[content]] > 1)
        above = {copy: of for copy, of in above.items() if copy not in separated}
        return {content: _top(content, above) for content in contents}

    def copies_of(self, pictures: Collection[str], decisions: Iterable[Decision] = ()) -> dict[str, list[str]]:
        found = defaultdict[str, list[str]](list)
        for copy, picture in self.pictures_of(sorted(self._copies(_BELOW, pictures)), decisions).items():
            if copy != picture:
                found[picture].append(copy)
        return dict(found)

    def _copies(self, question: str, contents: Collection[str]) -> dict[str, str]:
        keys = [bytes.fromhex(content) for content in contents]
        return {copy.hex(): of.hex() for copy, of in self._found(question, keys)}


def _top(content: str, above: Mapping[str, str]) -> str:
    """Follow ``above`` from a content to its end. Searches of different photos may have proved a circle."""
    passed = set[str]()
    while content in above and content not in passed:
        passed.add(content)
        content = above[content]
    return content


def _pictures(group: DuplicateGroup) -> dict[str, str]:
    content_at = {member.path: member.sha256 for member in group.members}
    rank = {content: place for place, content in enumerate(dict.fromkeys(content_at.values()))}
    above: dict[str, str] = {}
    for member in group.members[1:]:
        if member.tier in SAFE_TIERS and not member.other_shot:
            of = group.members[0].sha256
        elif member.copy_of in content_at and member.copy_tier in SAFE_TIERS:
            of = content_at[member.copy_of]
        else:
            continue
        best, other = sorted((_top(member.sha256, above), _top(of, above)), key=lambda content: rank[content])
        if best != other:
            above[other] = best
    return {content: _top(content, above) for content in rank}
