"""The processor time that the images of one request share."""

from __future__ import annotations

import threading
from contextlib import AbstractContextManager
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest
from PIL import AvifImagePlugin

from preprocess_ensemble.contract import ImageStatus
from preprocess_ensemble.imaging import pillow_decoder
from preprocess_ensemble.imaging.decode import DecodeError, DecodeLimits
from preprocess_ensemble.imaging.formats import identify
from preprocess_ensemble.imaging.pillow_decoder import large_image_lock
from preprocess_ensemble.imaging.time_budget import DecodeTimeBudget
from tests.fixtures.images import phone_files

if TYPE_CHECKING:
    from collections.abc import Callable

LIMITS = DecodeLimits(max_pixels=100_000_000)


def limits_for(budget: DecodeTimeBudget, file: bytes) -> AbstractContextManager[DecodeLimits]:
    return budget.limits_for(file, identify(file))


def clock_of(*costs: float) -> Callable[[], float]:
    """A clock to read at the start and at the end of each block; the blocks take ``costs`` seconds."""
    readings = iter([reading for cost in costs for reading in (100.0, 100.0 + cost)])
    return lambda: next(readings)


def pixels_allowed(budget: DecodeTimeBudget, images: int) -> list[int]:
    allowed = []
    for _ in range(images):
        with limits_for(budget, b"x") as limits:
            allowed.append(limits.max_pixels)
    return allowed


def test_each_image_is_charged_what_it_took() -> None:
    costs = [0.0] * 100 + [3.0, 6.75, 0.125, 0.125, 0.0]
    allowed = pixels_allowed(DecodeTimeBudget(LIMITS, clock=clock_of(*costs)), len(costs))
    assert set(allowed[:-1]) == {100_000_000}
    assert allowed[-1] == 16_000_000, "the images before it took ten seconds"


def test_an_image_that_fails_is_charged_as_well() -> None:
    budget = DecodeTimeBudget(LIMITS, clock=clock_of(11.0, 0.0))
    with pytest.raises(DecodeError, match="broken"), limits_for(budget, b"x"):
        raise DecodeError(ImageStatus.CORRUPT, "broken")
    assert pixels_allowed(budget, 1) == [16_000_000]


@pytest.mark.parametrize(
    ("first_s", "status", "file", "expected"),
    [
        (11.0, ImageStatus.TOO_LARGE, b"x" * 100, ImageStatus.LIMIT),
        (10.0, ImageStatus.TOO_LARGE, b"x", ImageStatus.LIMIT),
        (9.0, ImageStatus.TOO_LARGE, b"x", ImageStatus.TOO_LARGE),
        (11.0, ImageStatus.CORRUPT, b"x", ImageStatus.CORRUPT),
        (11.0, ImageStatus.TOO_LARGE, b"x" * 101, ImageStatus.TOO_LARGE),
    ],
    ids=["spent", "just spent", "not spent", "for another reason", "too many bytes"],
)
def test_an_image_that_only_the_budget_refuses_says_so(
    first_s: float, status: ImageStatus, file: bytes, expected: ImageStatus
) -> None:
    limits = DecodeLimits(max_pixels=100_000_000, max_bytes=100)
    budget = DecodeTimeBudget(limits, clock=clock_of(first_s, 0.0))
    pixels_allowed(budget, 1)
    with pytest.raises(DecodeError) as caught, limits_for(budget, file):
        raise DecodeError(status, "The image has 20 MP.")
    assert caught.value.status is expected
    why = ", because the images before it in its request took more than 10 s of processor time"
    reason = f"{why}; send it again with fewer images" if expected is ImageStatus.LIMIT else ""
    assert caught.value.message == f"The image has 20 MP{reason}."


def test_a_smaller_limit_stays() -> None:
    budget = DecodeTimeBudget(DecodeLimits(max_pixels=1000), clock=clock_of(11.0, 0.0))
    assert pixels_allowed(budget, 2) == [1000, 1000]


class _Cost(float):
    """A number whose subtraction lasts until another thread has done its own, or 0.2 s if that one has to wait."""

    met: Callable[[], object]

    def __rsub__(self, left: float) -> float:
        self.met()
        return left - float(self)


class _Reading(float):
    met: Callable[[], object]

    def __sub__(self, start: float) -> float:
        cost = _Cost(float(self) - float(start))
        cost.met = self.met
        return cost


def test_no_charge_is_lost_between_two_threads() -> None:
    """The first thread reads what is left, and writes it after the second has charged its own time, if it can."""
    first_subtracts, second_is_done = threading.Event(), threading.Event()

    def first() -> None:
        first_subtracts.set()
        second_is_done.wait(0.2)

    readings: dict[str, list[float]] = {}
    for name, met in (("first", first), ("second", lambda: None)):
        end = _Reading(6.0)
        end.met = met
        readings[name] = [0.0, end]
    budget = DecodeTimeBudget(LIMITS, clock=lambda: readings[threading.current_thread().name].pop(0))

    def decode() -> None:
        with limits_for(budget, b"x"):
            if threading.current_thread().name == "second":
                assert first_subtracts.wait(30)
        if threading.current_thread().name == "second":
            second_is_done.set()

    threads = [threading.Thread(target=decode, name=name) for name in readings]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    readings[threading.current_thread().name] = [0.0, 0.0]
    assert pixels_allowed(budget, 1) == [16_000_000], "two of six seconds are more than ten"


def test_a_decoder_with_threads_of_its_own_is_charged_the_time_that_passes() -> None:
    limits = DecodeLimits(max_pixels=100_000_000)
    budget = DecodeTimeBudget(limits, clock=clock_of(0.0, 0.0), elapsed=clock_of(11.0))
    with limits_for(budget, phone_files.heic()):
        pass
    assert pixels_allowed(budget, 1) == [16_000_000]


def test_waiting_for_a_large_image_of_another_request_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    readings = iter([0.0, 1.0, 101.0, 109.5])  # the block begins, it waits, it has the lock, it ends
    monkeypatch.setattr(pillow_decoder, "time", SimpleNamespace(monotonic=lambda: next(readings)))
    budget = DecodeTimeBudget(LIMITS, clock=clock_of(0.0, 0.5, 0.0))
    with limits_for(budget, phone_files.heic()), large_image_lock(40_000_000):
        pass
    assert pixels_allowed(budget, 2) == [100_000_000, 100_000_000], "it took nine and a half seconds, not 109"
    assert pixels_allowed(budget, 1) == [16_000_000]


@pytest.mark.parametrize(("threads", "allowed"), [(1, 16_000_000), (0, 100_000_000)])
def test_avif_is_charged_what_its_thread_computes_if_there_is_one(
    threads: int, allowed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(AvifImagePlugin, "DEFAULT_MAX_THREADS", threads)
    budget = DecodeTimeBudget(LIMITS, clock=clock_of(*[11.0, 0.0][1 - threads :]), elapsed=clock_of(1.0))
    with limits_for(budget, b"\0\0\0\x1cftypavif"):
        pass
    assert pixels_allowed(budget, 1) == [allowed]


def test_a_request_that_overdraws_its_budget_gets_nothing_more() -> None:
    budget = DecodeTimeBudget(LIMITS, clock=clock_of(11.0, 48.0, 1.0, 0.0))
    assert pixels_allowed(budget, 3) == [100_000_000, 16_000_000, 16_000_000]
    with pytest.raises(DecodeError) as caught, limits_for(budget, b"x"):
        pass
    assert caught.value.status is ImageStatus.LIMIT
    assert caught.value.message == (
        "The images before it in its request took more than 60 s of processor time; send it again with fewer images."
    )
