"""Which of several copies is kept, and the rule that the report names."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from clip_client.dedup.aligned import MADE_LATER, UNPROVED
from clip_client.dedup.compare.keep_rules import DEFAULT_RULES, KeepRules, converted_from_lossy
from clip_client.dedup.features.image_features import extract_features
from clip_client.dedup.photo import ImageFeatures, Photo
from clip_client.dedup.types import Companion, LibraryPhoto, Metadata
from tests.fixtures.images.camera_files import as_lossless, camera_jpeg
from tests.fixtures.images.image_files import encoded, picture

NS = 10**18
"""In 2001. A time before 1980 is no time."""
MS = NS // 10**6
S = 10**9
HOUR_NS = 3_600 * 10**9


def photo(path: str = "a.jpg", *, taken_ms: int | None = None, width: int = 8, **more: Any) -> Photo:
    features = ImageFeatures(width=width, height=8, format="PNG", metadata=Metadata(taken_ms=taken_ms))
    given: dict[str, Any] = {"sha256": "00", "size_bytes": 9, "features": features, **more}
    return Photo(path=path, **given)


def of_file(name: str, data: bytes) -> Photo:
    return Photo(path=name, sha256="00", size_bytes=len(data), features=extract_features(data)[0])


def kept(rules: KeepRules, *candidates: Photo) -> tuple[str, str]:
    """Return the path of the kept one and the reason."""
    best, *others = sorted(candidates, key=rules.rank)
    assert all(sorted(order, key=rules.rank)[0] is best for order in itertools.permutations(candidates))
    return best.path, rules.reason(best, *others)


COPIES = """Copy of a|Copy (2) of a|Kopie von a|a copy|a copy 2|a_copy|a-copy1|a - Copy|a - Copy (2)|a - Kopie
a (1)|a(1)|a 2|a~2"""
NO_COPIES = ["copyright", "IMG_1234", "photocopy", "2", "trip 2019", "a(b)"]


@pytest.mark.parametrize(
    ("name", "is_copy"),
    [*((name, True) for name in COPIES.replace("\n", "|").split("|")), *((name, False) for name in NO_COPIES)],
)
def test_the_original_is_kept_rather_than_what_is_named_a_copy(name: str, is_copy: bool) -> None:
    # A longer name in a later folder: nothing but the mark speaks for it.
    original = "z/" + "a" * 30 + ".jpg"
    expected = (original, "name without a copy mark") if is_copy else (f"{name}.jpg", "shortest name")
    assert kept(KeepRules(), photo(f"{name}.jpg"), photo(original)) == expected


def test_photos_knows_name_and_date_better() -> None:
    known = LibraryPhoto(path="L/originals/A.jpg", library="L", uuid="A", name="IMG_1 copy.JPG", taken_ns=NS)
    inside = photo(known.path, mtime_ns=NS + 99, in_library=known)
    assert inside.taken_ns == NS
    expected = ("IMG_1.JPG", "name without a copy mark")
    assert kept(KeepRules(["name"]), inside, photo("IMG_1.JPG", mtime_ns=NS)) == expected


@pytest.mark.parametrize(
    ("is_original", "changes"),
    [
        (False, {"Make": None, "Model": None}),
        (False, {"DateTimeOriginal": None}),
        (False, {"Software": "GIMP 2.10.34"}),
        (False, {"Software": "paint.net 5.0"}),
        (False, {"Software": "Adobe Photoshop Lightroom Classic 9.2 (Windows)"}),
        (False, {"ProcessingSoftware": "darktable 4.2"}),
        (False, {"LensModel": None, "FNumber": None, "MakerNote": None}),  # as a scanner does
        (False, {"ExifImageWidth": 4000, "ExifImageHeight": 3000}),
        (True, {}),
        (True, {"Software": None}),
        (True, {"Software": "12.4.1"}),
        (True, {"Software": "Windows Phone 8.1"}),
        (True, {"MakerNote": None, "LensModel": None}),
        (True, {"MakerNote": None, "FNumber": None}),
        (True, {"LensModel": None, "FNumber": None}),
        (True, {"LensModel": None, "FNumber": None, "MakerNote": None, "gps": True}),
        (True, {"Make": None}),
    ],
)
def test_an_original_has_what_cameras_write_and_no_trace_of_another_program(
    is_original: bool, changes: dict[str, Any]
) -> None:
    assert of_file("a.jpg", camera_jpeg(**changes)).is_original is is_original


def beside(*kinds: str) -> tuple[Companion, ...]:
    return tuple(Companion(path=f"{kind}.x", kind=kind) for kind in kinds)


CAMERA = ImageFeatures(
    width=8, height=8, format="JPEG", metadata=Metadata(camera="Canon EOS 5D", taken="2019-05-03", has_exposure=True)
)
PREFERRED: dict[str, dict[str, Any]] = {
    "reference": {"is_reference": True},
    "companions": {"companions": beside("film", "sidecar")},
    "undoubted": {"sha256": "11"},
    "original": {"features": CAMERA},
    "pixels": {"width": 9},
    "lossy": {"sha256": "22"},
    "siblings": {"files": 2},
    "metadata": {"features": ImageFeatures(width=8, height=8, format="PNG", metadata=Metadata(fields=1))},
    "oldest": {"mtime_ns": NS},
    "name": {"path": "z.jpg"},
}
"""What speaks for a photo by each rule and by no other."""
KNOWN: dict[str, Any] = {"doubts": {"00": MADE_LATER, "22": MADE_LATER}, "converted": {"00", "11"}}


def plain(**more: Any) -> Photo:
    return photo(**{"path": "z (1).jpg", "companions": beside("sidecar", "sidecar"), **more})


def test_the_default_rules_decide_in_their_order_and_others_in_that_which_is_given() -> None:
    assert tuple(PREFERRED) == DEFAULT_RULES
    for rule, later in itertools.combinations(DEFAULT_RULES, 2):
        first, second = plain(**PREFERRED[rule]), plain(**PREFERRED[later])
        assert min([second, first], key=KeepRules(**KNOWN).rank) is first, f"{rule} comes before {later}"
        for rules in ([later], [later, rule]):
            assert min([first, second], key=KeepRules(rules, **KNOWN).rank) is second, f"{later} decides"


@pytest.mark.parametrize(
    ("rule", "best", "other", "reason"),
    [
        # Without a rule, age and name decide, and at last the path.
        ("", {"path": "Copy of a.jpg", "mtime_ns": NS}, {"mtime_ns": NS + S}, "earlier date of the file"),
        ("", {"mtime_ns": NS + S - 1}, {"path": "Copy of a.jpg", "mtime_ns": NS}, "name without a copy mark"),
        ("", {"taken_ms": MS + 999}, {"path": "Copy of a.jpg", "taken_ms": MS}, "name without a copy mark"),
        ("", {"path": "Copy of a.jpg", "mtime_ns": NS, "taken_ms": MS}, {"mtime_ns": NS + S, "taken_ms": MS},
         "same date of capture, earlier date of the file"),
        ("", {"path": "a (1).jpg"}, {"path": "a copy.jpg"}, "shortest name"),
        ("", {"path": "a/1.jpg"}, {"path": "b/1.jpg"}, "first in order of the paths"),
        ("siblings", {}, {"path": "a (1).jpg"}, "name without a copy mark"),
        ("newest", {}, {"path": "a (1).jpg"}, "name without a copy mark"),
        ("reference", {"is_reference": True}, {}, "in a reference folder"),
        ("original", {"features": CAMERA}, {}, "camera original: Canon EOS 5D, taken 2019-05-03"),
        ("companions", {"companions": beside("RAW file")}, {}, "has a RAW file beside it"),
        ("companions", {"features": ImageFeatures(embedded="film")}, {}, "holds more than its picture: film"),
        ("companions", {"companions": beside("edited version", "RAW file", "RAW file")}, {"companions": beside("film")},
         "has a RAW file and an edited version beside it"),
        ("pixels", {"width": 40}, {}, "most pixels: 40x8, next 8x8"),
        ("siblings", {"files": 3}, {}, "3 files with its bytes"),
        ("metadata", PREFERRED["metadata"], {}, "most metadata: 1 field, next 0"),
        ("oldest", {"mtime_ns": NS - 27 * HOUR_NS}, {"taken_ms": MS}, "oldest date"),
        ("newest", {"taken_ms": MS + 1000}, {"mtime_ns": NS}, "newest date"),
        ("newest", {"mtime_ns": NS + S}, {"mtime_ns": NS}, "later date of the file"),
        ("newest", {"taken_ms": MS, "mtime_ns": NS + S}, {"taken_ms": MS, "mtime_ns": NS},
         "same date of capture, later date of the file"),
        # The date in EXIF is that of a clock without a time zone, and the time of a file is in UTC.
        ("oldest", {"taken_ms": MS}, {"mtime_ns": NS - 25 * HOUR_NS}, "oldest date"),
        ("newest", {"taken_ms": MS}, {"mtime_ns": NS + 25 * HOUR_NS}, "newest date"),
        ("newest", {}, {"not_kept": "a snapshot", "mtime_ns": NS + 25 * HOUR_NS}, "the other is in a snapshot"),
        ("reference", {"is_by_link": True}, {"not_kept": "a recycle bin", "is_reference": True},
         "the other is in a recycle bin"),
        ("format=heic,jpg", {"path": "z.HEIC"}, {}, "format heic rather than jpg"),
        ("format= .X3F , .jpg", {"path": "z.x3f"}, {}, "format x3f rather than jpg"),
        ("siblings", {}, {"is_by_link": True, "files": 99}, "the other is a link to a file that was not searched"),
        ("path=*/originals/*", {"path": "x/originals/z.jpg"}, {}, "path matches */originals/*"),
        ("not-path=*WhatsApp*", {"path": "z.jpg"}, {"path": "WhatsApp/a.jpg"}, "path does not match *WhatsApp*"),
    ],
)  # fmt: skip
def test_each_rule_prefers_and_says_why(rule: str, best: dict[str, Any], other: dict[str, Any], reason: str) -> None:
    one = photo(**{"path": "z.jpg", **best})
    assert kept(KeepRules([rule] if rule else []), photo(**other), one) == (one.path, reason)


@pytest.mark.parametrize("rule", ["oldest", "newest"])
@pytest.mark.parametrize(
    "unknown",
    [
        *(
            {"mtime_ns": (days * 24 + hours) * HOUR_NS}
            for days, hours in ((-134_774, 0), (0, 5), (300, 0), (3_652, -13))
        ),
        {"mtime_ns": 2**63 - 1},
        *({"mtime_ns": 0, "taken_ms": day * 86_400_000 + 5_000} for day in (-134_774, 0, 3_652)),
    ],
)
def test_the_first_day_of_a_clock_is_neither_old_nor_new(rule: str, unknown: dict[str, Any]) -> None:
    """Windows counts from 1601, Unix from 1970, FAT and many cameras from 1980; a copy may have the time 0."""
    known, other = photo("z.jpg", mtime_ns=NS), photo("a.jpg", **unknown)
    assert kept(KeepRules([rule]), known, other) == ("z.jpg", "the date of the other is unknown")


def test_a_photo_that_shows_all_is_kept_before_one_that_is_not_proved_to() -> None:
    rules = KeepRules(["undoubted"], {"11": UNPROVED})
    reason = "another may be made from it, and is not proved to show all of it"
    assert kept(rules, photo("z.jpg"), photo("a.jpg", sha256="11")) == ("z.jpg", reason)


def test_a_reason_says_what_excluded_a_file_that_the_deciding_rule_prefers() -> None:
    enlarged = photo("enlarged.jpg", sha256="11", width=208)
    whole, sent = photo("whole.jpg", width=143), photo("sent.jpg", width=20)
    rules = KeepRules(["undoubted", "pixels"], {"11": MADE_LATER})
    reason = "most pixels: 143x8, next 20x8"
    assert kept(rules, whole, sent) == ("whole.jpg", reason)
    said = f"another may be made from it: {MADE_LATER}; then {reason}"
    assert kept(rules, whole, sent, enlarged) == ("whole.jpg", said)
    assert kept(rules, whole, sent, replace(enlarged, sha256="22", is_by_link=True)) == ("whole.jpg", reason)


@pytest.mark.parametrize("lossless", ["PNG", "TIFF", "WebP"])
def test_a_lossy_file_is_kept_before_what_was_converted_from_it(lossless: str) -> None:
    """Neither has metadata: as a messenger or a browser leaves them."""
    sent = encoded(picture(size=(64, 48)), "JPEG")
    converted = as_lossless(sent, lossless, **({"lossless": True} if lossless == "WebP" else {}))
    png, jpeg = replace(of_file("a", converted), sha256="11"), of_file("z", sent)
    rules = KeepRules(converted=converted_from_lossy([[png, jpeg]]))
    assert kept(rules, png, jpeg) == ("z", f"the {lossless} file was converted from it")
    # Without equal pixels, the lossy file may have been made from the other one.
    for pictures in ([[png], [jpeg]], [[png, png]], [[jpeg]]):
        assert converted_from_lossy(pictures) == frozenset()
    assert kept(KeepRules(), png, jpeg)[0] == "a"


def test_a_preferred_folder_counts_at_any_depth_and_under_any_name(tmp_path: Path) -> None:
    (tmp_path / "Best" / "2019").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "Best")
    inside, beside = str(tmp_path / "Best" / "2019" / "z.jpg"), str(tmp_path / "Best of all.jpg")
    for name in ("Best", "link"):
        folder = str(tmp_path / name)
        rules = KeepRules([f"folder={folder}"])
        assert kept(rules, photo(inside), photo(beside)) == (inside, f"in {folder}, a folder you prefer")
    gone = KeepRules([f"folder={tmp_path / 'gone'}"])
    assert kept(gone, photo(inside), photo(beside)) == (inside, "shortest name")


@pytest.mark.parametrize("name", ["biggest", "format=", "pixels=3", "path"])
def test_an_unknown_rule_is_refused_with_the_known_ones(name: str) -> None:
    with pytest.raises(ValueError, match="there is no keep rule") as caught:
        KeepRules([name])
    known = "reference, original, companions, undoubted, pixels, lossy, siblings"
    known += ", metadata, oldest, newest, name"
    forms = "folder=DIR, format=A,B, path=PATTERN, not-path=PATTERN"
    assert str(caught.value).endswith(f"{name!r}; the rules are {known}, {forms}")
