"""The time of capture in EXIF, and its meaning for two photos that look alike."""

import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from PIL import ExifTags, Image
from PIL.TiffImagePlugin import IFDRational as Rational

from clip_client.dedup.features.capture_time import classify_burst
from clip_client.dedup.metadata.summary import read_metadata
from clip_client.dedup.types import BURST, SAME_SCENE, Metadata
from tests.fixtures.images.image_files import encoded, picture, with_segment

NOON = 43_200_000
"""A whole second. Times are not taken from 0, where a sign cannot be wrong."""


def at(taken_ms: int | None, *, sequence: int | None = None, camera: str = "A") -> Metadata:
    return Metadata(taken_ms=taken_ms, has_sub_second=True, sequence=sequence, camera=camera)


def in_second(taken_ms: int, *, sequence: int | None = None) -> Metadata:
    return replace(at(taken_ms, sequence=sequence), has_sub_second=False)


MOMENTS = {
    "equal to the sub-second": (at(NOON), at(NOON), "", ""),
    "a millisecond later": (at(NOON), at(NOON + 1), BURST, SAME_SCENE),
    "last time of a burst": (at(NOON), at(NOON + 2_000), BURST, SAME_SCENE),
    "first time after a burst": (at(NOON), at(NOON + 2_001), SAME_SCENE, SAME_SCENE),
    "last time of a scene": (at(NOON), at(NOON + 60_000), SAME_SCENE, SAME_SCENE),
    "first time after a scene": (at(NOON), at(NOON + 60_001), "", ""),
    "equal seconds could be both": (in_second(NOON), in_second(NOON), BURST, ""),
    "sub-seconds of one photo could be both": (at(NOON + 120), in_second(NOON), BURST, ""),
    "the next second is another picture": (in_second(NOON), in_second(NOON + 1_000), BURST, SAME_SCENE),
    "one shot": (in_second(NOON, sequence=7), in_second(NOON, sequence=7), "", ""),
    "two shots at one time": (at(NOON, sequence=7), at(NOON, sequence=8), BURST, SAME_SCENE),
    "two shots in one second": (in_second(NOON, sequence=7), in_second(NOON, sequence=8), BURST, SAME_SCENE),
    "only one has a number": (in_second(NOON, sequence=7), in_second(NOON), BURST, ""),
    "another camera": (at(NOON), at(NOON + 120, camera="B"), "", ""),
    "no time": (at(NOON), at(None), "", ""),
}


@pytest.mark.parametrize(("first", "second", "same_form", "other_form"), MOMENTS.values(), ids=MOMENTS)
def test_times_tell_moments_apart(first: Metadata, second: Metadata, same_form: str, other_form: str) -> None:
    for one, other in ((first, second), (second, first)):
        assert classify_burst(one, other) == same_form
        assert classify_burst(one, other, same_form=False) == other_form


SHOT: dict[str, Any] = {"exposure_s": 1 / 60, "f_number": 2.8, "iso": 100.0, "exposure_bias": 0.0}
EXPOSURES: dict[str, tuple[dict[str, Any], bool]] = {
    "the same": ({}, False),
    "twice the time": ({"exposure_s": 1 / 30}, True),
    "a third of an EV more time": ({"exposure_s": 1 / 50}, True),
    "the time as a program rounds it": ({"exposure_s": 0.0167}, False),
    "another aperture": ({"f_number": 3.2}, True),
    "the aperture as a program rounds it": ({"f_number": 2.83}, False),
    "another sensitivity": ({"iso": 125.0}, True),
    "another bias": ({"exposure_bias": -0.3}, True),
    "the bias as a program rounds it": ({"exposure_bias": 0.01}, False),
    "an export without the aperture": ({"f_number": None}, False),
    "an export without the bias": ({"exposure_bias": None}, False),
    "an export without any": (dict.fromkeys(SHOT), False),
}


@pytest.mark.parametrize(("changed", "are_two"), EXPOSURES.values(), ids=EXPOSURES)
@pytest.mark.parametrize("later_ms", [0, 3_600_000])
def test_two_exposures_are_two_shots(changed: dict[str, Any], are_two: bool, later_ms: int) -> None:
    one, other = replace(at(NOON), **SHOT), replace(at(NOON + later_ms), **{**SHOT, **changed})
    for first, second in ((one, other), (other, one)):
        for same_form in (True, False):
            assert classify_burst(first, second, same_form=same_form) == (SAME_SCENE if are_two else "")
    assert classify_burst(one, replace(other, camera="B")) == ""


@pytest.mark.parametrize(
    ("first", "second", "are_shots", "are_frames"),
    [
        ("IMG_0001.JPG", "IMG_0002.jpg", True, True),
        ("DSC01234.JPG", "DSC01235 small.jpg", True, True),
        ("IMG_0001.JPG", "IMG_0001 (1).jpg", False, False),
        ("IMG_0001.JPG", "DSC_0002.jpg", False, False),
        ("IMG_0001.JPG", "IMG_00021.jpg", False, False),
        ("IMG_0001.JPG", "holiday.jpg", False, False),
        ("00001IMG_00001_BURST2019.jpg", "00002IMG_00002_BURST2019.jpg", False, True),
        ("frame 1.jpg", "frame 12.jpg", False, True),
        ("frame.jpg", "frame 1.jpg", False, False),
        ("frame 1.jpg", "frame 1.jpg", False, False),
    ],
)
def test_names_tell_the_frames_of_a_stack_and_of_a_burst_apart(
    first: str, second: str, are_shots: bool, are_frames: bool
) -> None:
    one, other = in_second(NOON), in_second(NOON)
    for names in ((first, second), (second, first)):
        assert classify_burst(one, other, same_form=False, names=names) == (SAME_SCENE if are_shots else "")
        assert classify_burst(one, other, names=names) == BURST
        assert classify_burst(one, other, is_proved=True, names=names) == (BURST if are_frames else "")
        # With sub-seconds the time says more than the names.
        assert classify_burst(at(NOON), at(NOON), same_form=False, names=names) == ""


def test_a_proof_does_not_count_against_what_shows_two_shots() -> None:
    for one, other in ((at(NOON), at(NOON + 120)), (in_second(NOON, sequence=7), in_second(NOON, sequence=8))):
        assert classify_burst(one, other, is_proved=True) == BURST


def photo_with(tags: Mapping[int, object], details: Mapping[int, object] | None = None, gps: int = 0) -> bytes:
    """A JPEG with these EXIF fields in its first directory and in the one of details, and this number of GPS."""
    made = Image.Exif()
    made.update({tag: value for tag, value in tags.items() if value is not None})
    if details:
        made.get_ifd(ExifTags.IFD.Exif).update({tag: value for tag, value in details.items() if value is not None})
    if gps:
        made.get_ifd(ExifTags.IFD.GPSInfo).update(dict.fromkeys((1, 3, 18)[:gps], "N"))
    return encoded(picture(size=(8, 8)), "JPEG", exif=made)


MAKE, MODEL, TAKEN, SUB_SECOND, NUMBER = 0x010F, 0x0110, 0x9003, 0x9291, 0x9211
SECOND = "2019:05:03 10:11:12"
SECOND_MS = 1_556_878_272_000


TIMES: list[tuple[str | None, str | None, int | None, bool]] = [
    (SECOND, "", SECOND_MS, False),
    (SECOND, "5", SECOND_MS + 500, True),
    (SECOND, "05", SECOND_MS + 50, True),
    (SECOND, "000", SECOND_MS, True),
    (SECOND, "1239999", SECOND_MS + 124, True),
    (SECOND, "25 ms", SECOND_MS + 250, True),
    (SECOND, "ms", SECOND_MS, False),
    (SECOND, None, SECOND_MS, False),
    (SECOND + "+02:00", "7", SECOND_MS + 700, True),
    (f"\0 {SECOND}\0", "\0 7\0", SECOND_MS + 700, True),
    (None, "25", None, False),
    ("1960:01:01 00:00:01", "25", -315_619_199_000 + 250, True),
    ("2019:05:03", "25", None, False),
    ("    :  :     :  :  ", "25", None, False),
]


@pytest.mark.parametrize(("taken", "sub_second", "taken_ms", "has_sub_second"), TIMES)
def test_the_time_of_capture_is_read_to_the_sub_second(
    taken: str | None, sub_second: str | None, taken_ms: int | None, has_sub_second: bool
) -> None:
    read = read_metadata(photo_with({}, {TAKEN: taken, SUB_SECOND: sub_second}))
    assert (read.taken_ms, read.has_sub_second) == (taken_ms, has_sub_second)


@pytest.mark.skipif(not hasattr(time, "tzset"), reason="Windows has no tzset")
def test_the_time_zone_of_the_computer_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as changed:
        changed.setenv("TZ", "XYZ-9")
        time.tzset()
        read = read_metadata(photo_with({}, {TAKEN: SECOND}))
    time.tzset()
    assert read.taken_ms == SECOND_MS


CAMERAS: list[tuple[str | None, str | None, str]] = [
    ("Canon", "Canon EOS 5D", "Canon EOS 5D"),
    ("NIKON CORPORATION", "NIKON D5", "NIKON D5"),
    (" Apple\0", "\0iPhone X ", "Apple iPhone X"),
    ("XXApple", "iPhone XX", "XXApple iPhone XX"),
    ("Canon", "", "Canon"),
    ("", "", ""),
    (None, "EOS 5D", "EOS 5D"),
    (None, None, ""),
]


@pytest.mark.parametrize(("make", "model", "camera"), CAMERAS)
def test_a_camera_is_its_make_and_model(make: str | None, model: str | None, camera: str) -> None:
    assert read_metadata(photo_with({MAKE: make, MODEL: model})).camera == camera


def test_all_fields_are_counted_and_the_number_of_a_shot_and_its_exposure_are_read() -> None:
    assert read_metadata(photo_with({MAKE: "a"})).fields == 1
    # The first directory counts its pointers to the two others.
    assert read_metadata(photo_with({MAKE: "a", MODEL: "b"}, {TAKEN: SECOND, SUB_SECOND: "1"}, 3)).fields == 4 + 5
    for tags, more, number in (({}, 7, 7), ({NUMBER: 7}, None, 7), ({NUMBER: 7}, 8, 8), ({}, "seven", None)):
        assert read_metadata(photo_with(tags, {NUMBER: more})).sequence == number
    details: dict[int, object] = {0x829A: Rational(1, 60), 0x829D: 2.8, 0x8827: (100, 200), 0x9204: Rational(-1, 3)}
    read = read_metadata(photo_with({}, details))
    assert [read.exposure_s, read.f_number, read.iso, read.exposure_bias] == pytest.approx([1 / 60, 2.8, 100, -1 / 3])
    nothing = read_metadata(photo_with({}, {0x829A: Rational(1, 0), 0x829D: "wide"}))
    assert (nothing.exposure_s, nothing.f_number, nothing.iso, nothing.exposure_bias) == (None,) * 4


def test_damaged_files_say_what_can_be_read() -> None:
    data = photo_with({MAKE: "a"}, {TAKEN: SECOND})
    for nothing in (b"", b"no image", data[:40]):
        assert read_metadata(nothing) == Metadata()
    read = read_metadata(with_segment(data, 0xE1, b"http://ns.adobe.com/xap/1.0/\0<x"))
    assert read.taken_ms == SECOND_MS
