"""Which of several copies is kept, where they are equal in all but their names and dates."""

from __future__ import annotations

import itertools

import pytest

from clip_client.dedup.keep import DEFAULT_RULES, Candidate, KeepRules
from clip_client.dedup.looks import Look
from clip_client.dedup.moments import Moment
from clip_client.dedup.photos_library import LibraryPhoto


def candidate(path: str, *, mtime_ns: int = 0, taken_ms: int | None = None, size_bytes: int = 9) -> Candidate:
    look = Look(width=8, height=8, moment=Moment(taken_ms=taken_ms))
    return Candidate(path=path, sha256="00", size_bytes=size_bytes, mtime_ns=mtime_ns, look=look)


def kept(rules: KeepRules, *candidates: Candidate) -> tuple[str, str]:
    """Return the path of the kept one and the reason."""
    best, second, *_ = sorted(candidates, key=rules.rank)
    assert all(sorted(order, key=rules.rank)[0] is best for order in itertools.permutations(candidates))
    return best.path, rules.reason(best, second)


@pytest.mark.parametrize(
    "copy",
    [
        "Copy of a.jpg",
        "Copy (2) of a.jpg",
        "Kopie von a.jpg",
        "a copy.jpg",
        "a copy 2.jpg",
        "a_copy.jpg",
        "a-copy1.jpg",
        "a - Copy.jpg",
        "a - Copy (2).jpg",
        "a - Kopie.jpg",
        "a (1).jpg",
        "a(1).jpg",
        "a 2.jpg",
        "a~2.jpg",
    ],
)
def test_the_original_is_kept_rather_than_what_is_named_a_copy(copy: str) -> None:
    # A longer name in a later folder: nothing but the mark speaks for it.
    original = "z/" + "a" * 30 + ".jpg"
    assert kept(KeepRules(), candidate(copy), candidate(original)) == (original, "name without a copy mark")


@pytest.mark.parametrize(
    "name", ["copyright.jpg", "IMG_1234.jpg", "photocopy.jpg", "2.jpg", "trip 2019.jpg", "a(b).jpg"]
)
def test_a_name_that_only_looks_like_a_copy_is_none(name: str) -> None:
    assert kept(KeepRules(), candidate(name), candidate(name + "-long.jpg"))[1] == "shortest name"


def test_an_older_file_is_kept_before_a_better_name() -> None:
    copy, original = candidate("a.jpg", mtime_ns=20), candidate("Copy of a.jpg", mtime_ns=10)
    assert kept(KeepRules(), copy, original) == ("Copy of a.jpg", "oldest date")
    copy = candidate("a.jpg", mtime_ns=20, taken_ms=5)
    original = candidate("Copy of a.jpg", mtime_ns=10, taken_ms=5)
    assert kept(KeepRules(), copy, original) == ("Copy of a.jpg", "same date, oldest file")


def test_the_path_decides_last() -> None:
    assert kept(KeepRules(), candidate("b/1.jpg"), candidate("a/1.jpg")) == ("a/1.jpg", "first in order of the paths")


def test_ties_of_other_rules_are_broken_in_the_same_way() -> None:
    copy, original = candidate("a (1).jpg"), candidate("a.jpg")
    assert kept(KeepRules(["bytes"]), copy, original) == ("a.jpg", "name without a copy mark")
    assert kept(KeepRules(["newest"]), copy, original) == ("a.jpg", "name without a copy mark")
    assert kept(KeepRules(["newest"]), copy, candidate("a.jpg", mtime_ns=-1)) == ("a (1).jpg", "newest date")


def test_the_rule_can_be_asked_for_earlier() -> None:
    large, small = candidate("a (1).jpg", size_bytes=99), candidate("a.jpg")
    assert kept(KeepRules(), large, small)[0] == "a (1).jpg"
    assert kept(KeepRules(["name", *DEFAULT_RULES]), large, small) == ("a.jpg", "name without a copy mark")


def test_photos_knows_name_and_date_better() -> None:
    known = LibraryPhoto(path="L/originals/A.jpg", library="L", uuid="A", name="IMG_1 copy.JPG", taken_ns=5)
    inside = Candidate(
        path=known.path, sha256="00", size_bytes=9, mtime_ns=99, look=Look(width=8, height=8), in_library=known
    )
    assert inside.taken_ns == 5
    outside = candidate("IMG_1.JPG", mtime_ns=5)
    assert kept(KeepRules(["name"]), inside, outside) == ("IMG_1.JPG", "name without a copy mark")
