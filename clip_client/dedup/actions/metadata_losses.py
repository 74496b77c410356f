"""The fields of a duplicate that the kept photo lacks, wherever a program has written them."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Final

from clip_client.dedup.files.field_names import DATES, rank
from clip_client.dedup.files.fields import Fields, read_attributes, read_fields, read_sidecar_fields

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from clip_client.dedup.files.fields import Value
    from clip_client.dedup.photo import Photo
    from clip_client.dedup.types import Metadata

_MOST_NAMES: Final = 4
"""Fields that a sentence names; people look into the files for the others."""
_IN_METADATA: Final = frozenset({"rating", "keywords"})
"""Fields that :class:`~clip_client.dedup.types.Metadata` holds from all places; of others it holds the first."""


def what_is_lost(copy: Photo, kept: Photo, sidecars: Iterable[bytes] = (), *, also: Sequence[str] = ()) -> str:
    """Name the metadata that would be lost if ``copy`` moved in favour of ``kept``, in one sentence; empty if none.

    It compares all fields of both files but those that Metadata holds, which :func:`~.merging.loss` compares, and
    housekeeping (:mod:`~clip_client.dedup.files.field_names`). ``sidecars`` are the XMP packets beside the kept photo;
    ``also`` are names to add to a sentence. Of files with the same bytes only the extended attributes can differ.
    """
    lost = read_attributes(copy.path).lost_in([read_attributes(kept.path)])
    if copy.sha256 != kept.sha256:
        ours, theirs = _fields_of(copy.path, copy.sha256), _fields_of(kept.path, kept.sha256)
        if ours.is_unreadable:
            return "Its metadata cannot be read, so it cannot be compared with that of the kept photo."
        in_file = ours.lost_in([theirs, *map(read_sidecar_fields, sidecars)])
        compared = _compared(copy.metadata)
        lost |= {
            name: values - compared.get(name, set()) for name, values in in_file.items() if name not in _IN_METADATA
        }
    names = sorted((name for name, values in lost.items() if values), key=rank)
    return f"It has metadata that the kept photo lacks: {_some([*also, *names])}." if names else ""


@lru_cache(maxsize=256)
def _fields_of(path: str, sha256: str) -> Fields:
    """Read the fields of a file once while its content stays: a kept photo is compared with each of its copies."""
    return read_fields(path)


def _compared(metadata: Metadata) -> dict[str, set[Value]]:
    """Return the values that Metadata holds: the first of each field."""
    words = {name: " ".join(text.split()) for name, text in (("title", metadata.title), ("caption", metadata.caption))}
    return {name: {text} for name, text in (*words.items(), *((name, metadata.taken) for name in DATES))}


def _some(names: Sequence[str]) -> str:
    further = len(names) - _MOST_NAMES
    return joined(names if further <= 0 else [*names[:_MOST_NAMES], f"{further} more"])


def joined(names: Sequence[str]) -> str:
    """Return ``"a, b and c"``."""
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))
