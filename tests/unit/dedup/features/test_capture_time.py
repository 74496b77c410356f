"""What times and shot numbers say about two photos that look alike."""

from __future__ import annotations

import pytest

from clip_client.dedup.features.capture_time import CaptureTime, classify_burst
from clip_client.dedup.types import BURST, SAME_SCENE


def capture_time(
    taken_ms: int | None, *, sub_second: bool = True, sequence: int | None = None, camera: str = "A"
) -> CaptureTime:
    return CaptureTime(taken_ms=taken_ms, has_sub_second=sub_second, sequence=sequence, camera=camera)


NOON = 43_200_000
"""A whole second. Times are not taken from 0, where a sign cannot be wrong."""


@pytest.mark.parametrize(
    ("first", "second", "same_form", "other_form"),
    [
        pytest.param(capture_time(NOON), capture_time(NOON), "", "", id="equal to the sub-second"),
        pytest.param(capture_time(NOON), capture_time(NOON + 1), BURST, SAME_SCENE, id="a millisecond later"),
        pytest.param(capture_time(NOON), capture_time(NOON + 2_000), BURST, SAME_SCENE, id="last time of a burst"),
        pytest.param(
            capture_time(NOON), capture_time(NOON + 2_001), SAME_SCENE, SAME_SCENE, id="first time after a burst"
        ),
        pytest.param(
            capture_time(NOON), capture_time(NOON + 60_000), SAME_SCENE, SAME_SCENE, id="last time of a scene"
        ),
        pytest.param(capture_time(NOON), capture_time(NOON + 60_001), "", "", id="first time after a scene"),
        pytest.param(
            capture_time(NOON, sub_second=False),
            capture_time(NOON, sub_second=False),
            BURST,
            "",
            id="equal seconds could be both",
        ),
        pytest.param(
            capture_time(NOON + 120),
            capture_time(NOON, sub_second=False),
            BURST,
            "",
            id="sub-seconds of one photo could be both",
        ),
        pytest.param(
            capture_time(NOON, sub_second=False),
            capture_time(NOON + 1_000, sub_second=False),
            BURST,
            SAME_SCENE,
            id="the next second is another picture",
        ),
        pytest.param(
            capture_time(NOON, sub_second=False, sequence=7),
            capture_time(NOON, sub_second=False, sequence=7),
            "",
            "",
            id="one shot",
        ),
        pytest.param(
            capture_time(NOON, sequence=7),
            capture_time(NOON, sequence=8),
            BURST,
            SAME_SCENE,
            id="two shots at one time",
        ),
        pytest.param(
            capture_time(NOON, sub_second=False, sequence=7),
            capture_time(NOON, sub_second=False, sequence=8),
            BURST,
            SAME_SCENE,
            id="two shots in one second",
        ),
        pytest.param(
            capture_time(NOON, sub_second=False, sequence=7),
            capture_time(NOON, sub_second=False),
            BURST,
            "",
            id="only one has a number",
        ),
        pytest.param(capture_time(NOON), capture_time(NOON + 120, camera="B"), "", "", id="another camera"),
        pytest.param(capture_time(NOON), capture_time(None), "", "", id="no time"),
    ],
)
def test_times_tell_moments_apart(first: CaptureTime, second: CaptureTime, same_form: str, other_form: str) -> None:
    for one, other in ((first, second), (second, first)):
        assert classify_burst(one, other) == same_form
        assert classify_burst(one, other, same_form=False) == other_form
