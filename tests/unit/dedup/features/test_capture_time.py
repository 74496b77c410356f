"""What times and shot numbers say about two photos that look alike."""

from __future__ import annotations

import pytest

from clip_client.dedup.features.capture_time import Moment, difference
from clip_client.dedup.types import BURST, SAME_SCENE


def moment(taken_ms: int | None, *, sub_second: bool = True, sequence: int | None = None, camera: str = "A") -> Moment:
    return Moment(taken_ms=taken_ms, has_sub_second=sub_second, sequence=sequence, camera=camera)


NOON = 43_200_000
"""A whole second. Times are not taken from 0, where a sign cannot be wrong."""


@pytest.mark.parametrize(
    ("first", "second", "same_form", "other_form"),
    [
        pytest.param(moment(NOON), moment(NOON), "", "", id="equal to the sub-second"),
        pytest.param(moment(NOON), moment(NOON + 1), BURST, SAME_SCENE, id="a millisecond later"),
        pytest.param(moment(NOON), moment(NOON + 2_000), BURST, SAME_SCENE, id="last time of a burst"),
        pytest.param(moment(NOON), moment(NOON + 2_001), SAME_SCENE, SAME_SCENE, id="first time after a burst"),
        pytest.param(moment(NOON), moment(NOON + 60_000), SAME_SCENE, SAME_SCENE, id="last time of a scene"),
        pytest.param(moment(NOON), moment(NOON + 60_001), "", "", id="first time after a scene"),
        pytest.param(
            moment(NOON, sub_second=False), moment(NOON, sub_second=False), BURST, "", id="equal seconds could be both"
        ),
        pytest.param(
            moment(NOON + 120), moment(NOON, sub_second=False), BURST, "", id="sub-seconds of one photo could be both"
        ),
        pytest.param(
            moment(NOON, sub_second=False),
            moment(NOON + 1_000, sub_second=False),
            BURST,
            SAME_SCENE,
            id="the next second is another picture",
        ),
        pytest.param(
            moment(NOON, sub_second=False, sequence=7),
            moment(NOON, sub_second=False, sequence=7),
            "",
            "",
            id="one shot",
        ),
        pytest.param(moment(NOON, sequence=7), moment(NOON, sequence=8), BURST, SAME_SCENE, id="two shots at one time"),
        pytest.param(
            moment(NOON, sub_second=False, sequence=7),
            moment(NOON, sub_second=False, sequence=8),
            BURST,
            SAME_SCENE,
            id="two shots in one second",
        ),
        pytest.param(
            moment(NOON, sub_second=False, sequence=7),
            moment(NOON, sub_second=False),
            BURST,
            "",
            id="only one has a number",
        ),
        pytest.param(moment(NOON), moment(NOON + 120, camera="B"), "", "", id="another camera"),
        pytest.param(moment(NOON), moment(None), "", "", id="no time"),
    ],
)
def test_times_tell_moments_apart(first: Moment, second: Moment, same_form: str, other_form: str) -> None:
    for one, other in ((first, second), (second, first)):
        assert difference(one, other) == same_form
        assert difference(one, other, same_form=False) == other_form
