"""Which files belong to a photo, by their names alone, in any folder."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clip_client.dedup.files.file_types import FILM, SIDECAR, companions, differing_companion, what_would_be_lost
from clip_client.dedup.files.reading import sha256_of
from clip_client.dedup.types import RAW, Companion
from tests.fixtures.albums import write

if TYPE_CHECKING:
    from collections.abc import Iterable

KINDS = {".cr2": RAW, ".dng": RAW, ".mov": FILM, ".xmp": SIDECAR}
PHOTOS = {".jpg", ".heic"}
NAMES = [
    f"{stem}{middle}{suffix}"
    for stem in ("a", "A", "b")
    for middle in ("", ".jpg", ".cr2")
    for suffix in (".jpg", ".JPG", ".heic", ".cr2", ".DNG", ".mov", ".xmp", ".txt")
]


def split(name: str) -> tuple[str, str]:
    return os.path.splitext(name.lower())


def belongs(companion: str, photo: str, names: Iterable[str]) -> bool:
    """The rule in words: same name up to the ending, or the whole name and an ending, and no second photo like it.

    What has the whole name of such a companion belongs to its photo, too.
    """
    stem, suffix = split(photo)
    owner, kind = split(companion)[0], KINDS.get(split(companion)[1])
    if kind is None or companion == photo:
        return False
    same_name = [name for name in names if name.lower() == photo.lower()]
    same_stem = [name for name in names if split(name)[0] == stem]
    photos = [name for name in same_stem if split(name)[1] in PHOTOS]
    raws = [name for name in same_stem if KINDS.get(split(name)[1]) == RAW]
    if owner == photo.lower():
        return len(same_name) < 2
    if owner != stem:
        beside = [name for name in names if name.lower() == owner and split(name)[0] == stem]
        return KINDS.get(suffix) != RAW and len(beside) == 1 and belongs(beside[0], photo, names)
    if KINDS.get(suffix) == RAW:
        return kind != RAW and len(raws) < 2 and not photos
    return len(photos) < 2


@settings(max_examples=150, deadline=None, derandomize=True)
@given(names=st.lists(st.sampled_from(NAMES), min_size=1, max_size=9, unique=True))
def test_companions_are_those_of_the_rule_in_words(names: list[str]) -> None:
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.path.isdir("/dev/shm") else None) as folder:
        for name in names:
            Path(folder, name).touch()
        if len(os.listdir(folder)) < len(names):
            return  # this file system knows no case
        photos = [name for name in names if split(name)[1] in PHOTOS or KINDS.get(split(name)[1]) == RAW]
        found = companions(os.path.join(folder, photo) for photo in photos)
        expected = {
            os.path.join(folder, photo): tuple(
                Companion(path=os.path.join(folder, name), kind=KINDS[split(name)[1]])
                for name in sorted(names)
                if belongs(name, photo, names)
            )
            for photo in photos
        }
        assert found == {photo: own for photo, own in expected.items() if own}


def test_photos_that_are_gone_have_no_companions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "a.xmp", b"x")
    gone = [str(tmp_path / name) for name in ("b.cr2", "b.jpg", "gone/a.jpg", "gone/a.cr2")]
    assert companions(gone) == {}
    monkeypatch.chdir(tmp_path)
    assert companions(["a.jpg"]) == {"a.jpg": (Companion(path="a.xmp", kind=SIDECAR),)}


@pytest.mark.parametrize(
    ("own", "of_kept", "lost", "differing"),
    [
        ({}, {}, "", ""),
        ({}, {"k.xmp": b"1"}, "", ""),
        ({"c.cr2": b"1"}, {}, RAW, RAW),
        ({"c.cr2": b"1"}, {"k.dng": b"1"}, "", ""),
        ({"c.cr2": b"1"}, {"k.mov": b"1"}, RAW, RAW),  # the same bytes, of another kind
        ({"c.cr2": b"1"}, {"k.cr2": b"2"}, "", RAW),
        ({"c.cr2": b"1"}, {"k.cr2": b"11"}, "", RAW),
        ({"c.cr2": b"1"}, {"k.cr2": b"2", "k.dng": b"1"}, "", ""),
        ({"c.cr2": b"1", "c.mov": b"1"}, {"k.cr2": b"1"}, FILM, FILM),
        ({"c.cr2": b"1", "c.mov": b"1"}, {"k.cr2": b"1", "k.mov": b"2"}, "", FILM),
        ({"c.xmp": b""}, {"k.xmp": b""}, "", ""),
        ({"c.xmp": b""}, {"k.xmp": b"1"}, "", SIDECAR),
        ({"c.xmp": b"1"}, {"k.xmp": None}, "", SIDECAR),  # it is gone
    ],
)
def test_what_a_photo_would_take_along(
    tmp_path: Path, own: dict[str, bytes | None], of_kept: dict[str, bytes | None], lost: str, differing: str
) -> None:
    for name, data in {**own, **of_kept}.items():
        if data is not None:
            write(tmp_path / name, data)
    mine, others = (
        [Companion(path=str(tmp_path / name), kind=KINDS[split(name)[1]]) for name in names] for names in (own, of_kept)
    )
    assert what_would_be_lost(mine, others) == lost
    assert differing_companion(mine, others, sha256_of) == differing
    assert bool(differing_companion(mine, others, lambda _: "")) == (bool(differing) or any(own.values()))


def test_files_that_cannot_be_read_are_no_copies(tmp_path: Path) -> None:
    gone = [Companion(path=str(tmp_path / name), kind=SIDECAR) for name in ("1.xmp", "2.xmp")]
    assert differing_companion(gone[:1], gone[1:], lambda _: "the same") == SIDECAR
