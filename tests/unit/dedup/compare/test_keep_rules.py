"""Which of several copies is kept, where they are equal in all but their names and dates."""

from __future__ import annotations

import io
import itertools
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from PIL import Image, ImageEnhance

from clip_client.dedup.aligned import ENLARGED, MADE_LATER
from clip_client.dedup.compare.keep_rules import DEFAULT_RULES, KeepRules, converted_from_lossy
from clip_client.dedup.features.image_features import extract_features
from clip_client.dedup.photo import ImageFeatures, Photo
from clip_client.dedup.types import CaptureTime, Companion, LibraryPhoto, Metadata
from tests.fixtures.images.camera_files import as_lossless, camera_jpeg, exif
from tests.fixtures.images.image_files import encoded, picture

if TYPE_CHECKING:
    from pathlib import Path


def candidate(path: str, *, mtime_ns: int = 0, taken_ms: int | None = None, size_bytes: int = 9) -> Photo:
    features = ImageFeatures(width=8, height=8, capture_time=CaptureTime(taken_ms=taken_ms))
    return Photo(path=path, sha256="00", size_bytes=size_bytes, mtime_ns=mtime_ns, features=features)


def kept(rules: KeepRules, *candidates: Photo) -> tuple[str, str]:
    """Return the path of the kept one and the reason."""
    best, *others = sorted(candidates, key=rules.rank)
    assert all(sorted(order, key=rules.rank)[0] is best for order in itertools.permutations(candidates))
    return best.path, rules.reason(best, *others)


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
    assert kept(KeepRules(), copy, original) == ("Copy of a.jpg", "older file")
    copy = candidate("a.jpg", mtime_ns=20, taken_ms=5)
    original = candidate("Copy of a.jpg", mtime_ns=10, taken_ms=5)
    assert kept(KeepRules(), copy, original) == ("Copy of a.jpg", "same date, older file")


def test_the_path_decides_last() -> None:
    assert kept(KeepRules(), candidate("b/1.jpg"), candidate("a/1.jpg")) == ("a/1.jpg", "first in order of the paths")


def test_ties_of_other_rules_are_broken_in_the_same_way() -> None:
    copy, original = candidate("a (1).jpg"), candidate("a.jpg")
    assert kept(KeepRules(["bytes"]), copy, original) == ("a.jpg", "name without a copy mark")
    assert kept(KeepRules(["newest"]), copy, original) == ("a.jpg", "name without a copy mark")
    assert kept(KeepRules(["newest"]), copy, candidate("a.jpg", mtime_ns=-1)) == ("a (1).jpg", "newer file")


def test_the_rule_can_be_asked_for_earlier() -> None:
    large, small = photo("a (1).jpg", features=ImageFeatures(width=40, height=30)), photo()
    assert kept(KeepRules(), large, small)[0] == "a (1).jpg"
    assert kept(KeepRules(["name", *DEFAULT_RULES]), large, small) == ("a.jpg", "name without a copy mark")


def test_photos_knows_name_and_date_better() -> None:
    known = LibraryPhoto(path="L/originals/A.jpg", library="L", uuid="A", name="IMG_1 copy.JPG", taken_ns=5)
    inside = Photo(
        path=known.path,
        sha256="00",
        size_bytes=9,
        mtime_ns=99,
        features=ImageFeatures(width=8, height=8),
        in_library=known,
    )
    assert inside.taken_ns == 5
    outside = candidate("IMG_1.JPG", mtime_ns=5)
    assert kept(KeepRules(["name"]), inside, outside) == ("IMG_1.JPG", "name without a copy mark")


def of_file(name: str, data: bytes) -> Photo:
    return Photo(path=name, sha256="00", size_bytes=len(data), mtime_ns=0, features=extract_features(data)[0])


ORIGINAL = camera_jpeg()
REASON = "camera original: Canon EOS 5D, taken 2019-05-03"


def opened(data: bytes = ORIGINAL) -> Image.Image:
    return Image.open(io.BytesIO(data))


EXPORTS = {
    "a PNG without EXIF": as_lossless(ORIGINAL, "PNG"),
    "a TIFF without EXIF": as_lossless(ORIGINAL, "TIFF"),
    "a PNG with all EXIF": as_lossless(ORIGINAL, "PNG", exif=exif()),
    "upscaled": encoded(opened().resize((256, 192)), "JPEG", quality=98),
    "brightened": encoded(ImageEnhance.Brightness(opened()).enhance(1.3), "JPEG", quality=100),
    "an export of Lightroom": camera_jpeg(quality=100, Software="Adobe Photoshop Lightroom Classic 9.2 (Windows)"),
    "upscaled, EXIF of the original": encoded(opened().resize((256, 192)), "JPEG", quality=98, exif=exif()),
}


@pytest.mark.parametrize("kind", EXPORTS)
def test_a_camera_original_is_kept_before_every_larger_export(kind: str) -> None:
    export = EXPORTS[kind]
    assert len(export) > len(ORIGINAL)
    assert kept(KeepRules(), of_file("a", export), of_file("original.jpg", ORIGINAL)) == ("original.jpg", REASON)


def test_of_two_originals_pixels_decide_and_bytes_do_not() -> None:
    large = of_file("z", camera_jpeg((128, 96)))
    assert kept(KeepRules(), of_file("a", ORIGINAL), large) == ("z", "most pixels: 128x96, next 64x48")
    larger = of_file("z", camera_jpeg(quality=99))
    assert kept(KeepRules(), of_file("a", ORIGINAL), larger) == ("a", "first in order of the paths")
    assert kept(KeepRules(["bytes"]), of_file("a", ORIGINAL), larger)[1].startswith("largest file")


def test_a_smaller_copy_with_all_metadata_is_not_kept_before_the_whole_photo() -> None:
    """A thumbnail by a program that copies EXIF as it is, beside the whole photo that a messenger has emptied."""
    small = of_file("a", camera_jpeg((32, 24), size_in_exif=(128, 96)))
    whole = of_file("z", encoded(picture(size=(128, 96)), "JPEG"))
    assert kept(KeepRules(), small, whole) == ("z", "most pixels: 128x96, next 32x24")
    original = of_file("z", camera_jpeg((128, 96)))
    assert kept(KeepRules(), small, original) == ("z", REASON)


@pytest.mark.parametrize(
    "changes",
    [
        {"Make": None, "Model": None},
        {"DateTimeOriginal": None},
        {"Software": "GIMP 2.10.34"},
        {"Software": "Adobe Photoshop CC"},
        {"Software": "Picasa"},
        {"Software": "paint.net 5.0"},
        {"ProcessingSoftware": "darktable 4.2"},
        {"LensModel": None, "FNumber": None, "MakerNote": None},  # as a scanner does
        {"ExifImageWidth": 4000, "ExifImageHeight": 3000},
    ],
)
def test_what_no_camera_leaves_is_no_original(changes: dict[str, Any]) -> None:
    assert not of_file("a.jpg", camera_jpeg(**changes)).is_original


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"Software": None},
        {"Software": "12.4.1"},
        {"Software": "G973FXXU3ASG8"},
        {"Software": "HDR+ 1.0.345618096zd"},
        {"Software": "Windows Phone 8.1"},
        {"MakerNote": None, "LensModel": None},
        {"MakerNote": None, "FNumber": None},
        {"LensModel": None, "FNumber": None},
        {"LensModel": None, "FNumber": None, "MakerNote": None, "gps": True},
        {"ExifImageWidth": None, "ExifImageHeight": None},
        {"Make": None},
    ],
)
def test_what_cameras_and_phones_write_is_an_original(changes: dict[str, Any]) -> None:
    assert of_file("a.jpg", camera_jpeg(**changes)).is_original


def test_the_rule_has_a_place_of_its_own_in_the_order() -> None:
    export = of_file("a", EXPORTS["a TIFF without EXIF"])
    original = of_file("z", ORIGINAL)
    assert kept(KeepRules(["bytes", "original"]), export, original)[0] == "a"
    assert kept(KeepRules(["original", "bytes"]), export, original)[0] == "z"


def beside(*kinds: str) -> tuple[Companion, ...]:
    return tuple(Companion(path=f"{kind}.x", kind=kind) for kind in kinds)


CAMERA = ImageFeatures(
    width=8,
    height=8,
    format="JPEG",
    capture_time=CaptureTime(camera="Canon EOS 5D"),
    metadata=Metadata(taken="2019-05-03", has_exposure=True),
)
PREFERRED: dict[str, dict[str, Any]] = {
    "reference": {"is_reference": True},
    "original": {"features": CAMERA},
    "companions": {"companions": beside("film", "sidecar")},
    "undoubted": {"sha256": "11"},
    "pixels": {"features": ImageFeatures(width=9, height=8, format="PNG")},
    "lossy": {"sha256": "22"},
    "siblings": {"files": 2},
    "metadata": {"features": ImageFeatures(width=8, height=8, format="PNG", capture_time=CaptureTime(fields=1))},
    "oldest": {"mtime_ns": -1},
    "name": {"path": "z.jpg"},
}
"""What speaks for a photo by each rule and by no other."""
KNOWN: dict[str, Any] = {"doubts": {"00": MADE_LATER, "22": MADE_LATER}, "converted": {"00", "11"}}


def plain(**more: Any) -> Photo:
    features = ImageFeatures(width=8, height=8, format="PNG")
    given = {"path": "z (1).jpg", "sha256": "00", "size_bytes": 9, "features": features}
    return Photo(**{**given, "companions": beside("sidecar", "sidecar"), **more})


def test_the_default_rules_decide_in_their_order() -> None:
    assert tuple(PREFERRED) == DEFAULT_RULES
    for rule, later in itertools.combinations(DEFAULT_RULES, 2):
        first, second = plain(**PREFERRED[rule]), plain(**PREFERRED[later])
        assert min([second, first], key=KeepRules(**KNOWN).rank) is first, f"{rule} comes before {later}"
        assert min([first, second], key=KeepRules([later], **KNOWN).rank) is second, f"{later} alone decides otherwise"


@pytest.mark.parametrize("rule", PREFERRED)
def test_each_rule_decides_alone_and_both_ways_round(rule: str) -> None:
    preferred, other = plain(**PREFERRED[rule]), plain()
    assert kept(KeepRules([rule], **KNOWN), other, preferred)[0] == preferred.path
    assert KeepRules([rule], **KNOWN).reason(preferred, other) != "first in order of the paths"


def test_oldest_and_newest_fall_back_to_the_time_of_the_file() -> None:
    taken_later = plain(features=ImageFeatures(width=8, height=8, capture_time=CaptureTime(taken_ms=2)), mtime_ns=1)
    no_date = plain(path="b.jpg", mtime_ns=1_000_000)
    assert kept(KeepRules(["oldest"]), taken_later, no_date) == ("b.jpg", "oldest date")
    assert kept(KeepRules(["newest"]), taken_later, no_date) == ("z (1).jpg", "newest date")


def photo(path: str = "a.jpg", **more: Any) -> Photo:
    given: dict[str, Any] = {
        "sha256": "00",
        "size_bytes": 1,
        "mtime_ns": 0,
        "features": ImageFeatures(width=4, height=3),
        **more,
    }
    return Photo(path=path, **given)


@pytest.mark.parametrize(
    ("rule", "kept", "other", "reason"),
    [
        ("reference", {"is_reference": True}, {}, "in a reference folder"),
        ("original", {"features": CAMERA}, {}, "camera original: Canon EOS 5D, taken 2019-05-03"),
        ("companions", {"companions": beside("RAW file")}, {}, "has a RAW file beside it"),
        ("companions", {"features": ImageFeatures(embedded="film")}, {}, "holds more than its picture: film"),
        (
            "companions",
            {
                "companions": beside("edited version", "RAW file", "RAW file"),
                "features": ImageFeatures(embedded="film"),
            },
            {"companions": beside("sidecar")},
            "has a RAW file and an edited version beside it; holds more than its picture: film",
        ),
        ("pixels", {"features": ImageFeatures(width=40, height=30)}, {}, "most pixels: 40x30, next 4x3"),
        ("siblings", {"files": 3}, {}, "3 files with its bytes"),
        ("bytes", {"size_bytes": 2000}, {}, "largest file: 2.0 kB, next 1 B"),
        ("smallest", {}, {"size_bytes": 2000}, "smallest file: 1 B, next 2.0 kB"),
        (
            "metadata",
            {"features": ImageFeatures(capture_time=CaptureTime(fields=3))},
            {},
            "most metadata: 3 fields, next 0",
        ),
        (
            "oldest",
            {"features": ImageFeatures(capture_time=CaptureTime(taken_ms=1))},
            {"mtime_ns": 10**9},
            "oldest date",
        ),
        ("newest", {"mtime_ns": 10**9}, {}, "newer file"),
        (
            "newest",
            {"features": ImageFeatures(capture_time=CaptureTime(taken_ms=1)), "mtime_ns": 1},
            {"features": ImageFeatures(capture_time=CaptureTime(taken_ms=1))},
            "same date, newer file",
        ),
        ("format=heic,jpg", {"path": "z.HEIC"}, {}, "format heic rather than jpg"),
        ("format= .X3F , .jpg", {"path": "z.x3f"}, {}, "format x3f rather than jpg"),
        ("bytes", {}, {"is_by_link": True, "size_bytes": 9}, "the other is a link to a file that was not searched"),
        ("path=*/originals/*", {"path": "x/originals/z.jpg"}, {}, "path matches */originals/*"),
        ("not-path=*WhatsApp*", {"path": "z.jpg"}, {"path": "WhatsApp/a.jpg"}, "path does not match *WhatsApp*"),
    ],
)
def test_each_rule_prefers_and_says_why(rule: str, kept: dict[str, Any], other: dict[str, Any], reason: str) -> None:
    rules = KeepRules([rule])
    best, second = photo(**{"path": "z.jpg", **kept}), photo(**other)
    assert rules.rank(best) < rules.rank(second)
    assert rules.reason(best, second) == reason


def test_a_reason_says_what_excluded_a_file_that_the_deciding_rule_prefers() -> None:
    enlarged = photo("enlarged.jpg", sha256="11", size_bytes=208_000)
    whole, sent = photo("whole.jpg", size_bytes=143_000), photo("sent.jpg", size_bytes=20_800)
    rules = KeepRules(["undoubted", "bytes"], {"11": ENLARGED})
    reason = "largest file: 143 kB, next 20.8 kB"
    assert kept(rules, whole, sent) == ("whole.jpg", reason)
    said = f"another may be made from it: {ENLARGED}; then {reason}"
    assert kept(rules, whole, sent, enlarged) == ("whole.jpg", said)
    assert kept(rules, whole, sent, replace(enlarged, sha256="22", is_by_link=True)) == ("whole.jpg", reason)


def test_doubts_count_where_the_rule_has_its_place() -> None:
    doubted, other = photo("a.jpg", sha256="11"), photo("b.jpg")
    assert kept(KeepRules().with_doubts({"11": MADE_LATER}), doubted, other)[0] == "b.jpg"
    assert kept(KeepRules(["name"]).with_doubts({"11": MADE_LATER}), doubted, other)[0] == "a.jpg"
    assert kept(KeepRules(doubts={"11": MADE_LATER}).with_doubts({}), doubted, other)[0] == "a.jpg"


@pytest.mark.parametrize("lossless", ["PNG", "TIFF"])
def test_a_lossy_file_is_kept_before_what_was_converted_from_it(lossless: str) -> None:
    """Neither has metadata: as a messenger or a browser leaves them."""
    sent = encoded(picture(size=(64, 48)), "JPEG")
    converted = as_lossless(sent, lossless)
    assert len(converted) > len(sent)
    png, jpeg = replace(of_file("a", converted), sha256="11"), of_file("z", sent)
    rules = KeepRules(converted=converted_from_lossy([[png, jpeg]]))
    assert kept(rules, png, jpeg) == ("z", f"the {lossless} file was converted from it")
    # Without equal pixels, the lossy file may have been made from the other one.
    for pictures in ([[png], [jpeg]], [[png, png]], [[jpeg]]):
        assert converted_from_lossy(pictures) == frozenset()
    assert kept(KeepRules(), png, jpeg)[0] == "a"


def test_of_two_contents_the_one_with_more_files_is_kept() -> None:
    once, backed_up = photo("a.jpg"), photo("z.jpg", files=2)
    assert kept(KeepRules(), once, backed_up) == ("z.jpg", "2 files with its bytes")
    larger = replace(once, features=ImageFeatures(width=40, height=30))
    assert kept(KeepRules(), larger, backed_up)[0] == "a.jpg"


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


def test_the_first_rule_that_prefers_one_photo_decides() -> None:
    small, large = photo("s.heic"), photo("l.jpg", features=ImageFeatures(width=40, height=30))
    assert KeepRules(["format=heic", "pixels"]).rank(small) < KeepRules(["format=heic", "pixels"]).rank(large)
    assert KeepRules(["pixels", "format=heic"]).rank(large) < KeepRules(["pixels", "format=heic"]).rank(small)


@pytest.mark.parametrize("name", ["biggest", "format=", "pixels=3", "path"])
def test_an_unknown_rule_is_refused_with_the_known_ones(name: str) -> None:
    with pytest.raises(ValueError, match="there is no keep rule") as caught:
        KeepRules([name])
    known = "reference, original, companions, undoubted, pixels, lossy, siblings, bytes, smallest"
    known += ", metadata, oldest, newest, name"
    forms = "folder=DIR, format=A,B, path=PATTERN, not-path=PATTERN"
    assert str(caught.value) == f"there is no keep rule {name!r}; the rules are {known}, {forms}"
