"""Files of several requests in the threads of one preprocessor, and the processor time of one request."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest
from PIL import AvifImagePlugin, QoiImagePlugin

from preprocess_ensemble.contract import ImageStatus
from preprocess_ensemble.imaging.formats import identify
from preprocess_ensemble.imaging.limits import DecodeError, DecodeLimits, DecodeTimeBudget, large_image_lock
from preprocess_ensemble.imaging.preprocessor import Preprocessor
from preprocess_ensemble.imaging.transform import PreprocessConfig
from tests.fixtures.images import image_files

CONFIG = PreprocessConfig(size=(16, 16), mean=(0, 0, 0), std=(1, 1, 1))


@pytest.mark.parametrize("count", [1, 3])
def test_the_caller_is_one_of_the_threads_that_share_the_files(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    together, seen = threading.Barrier(count, timeout=60), set[int]()
    original = QoiImagePlugin.QoiImageFile.load_prepare

    def meet(self: QoiImagePlugin.QoiImageFile) -> None:
        together.wait()
        seen.add(threading.get_ident())
        original(self)

    monkeypatch.setattr(QoiImagePlugin.QoiImageFile, "load_prepare", meet)
    preprocessor = Preprocessor(CONFIG, threads=3)
    file = image_files.encoded(image_files.picture(size=(8, 8)), "QOI")
    _, outcomes = preprocessor.run([[file] * count])
    preprocessor.close()
    assert {outcome.status for outcome in outcomes} == {ImageStatus.OK}
    assert len(seen) == count
    assert threading.get_ident() in seen


LIMITS = DecodeLimits(max_pixels=100_000_000)
HEIC = b"\0\0\0\x1cftypheic"
AVIF = b"\0\0\0\x1cftypavif"
Clock = Callable[..., None]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Sets what each block takes, in seconds: by the thread's own clock, or by one on the wall."""

    def set_clock(*costs: float, wall: bool = False) -> None:
        readings = iter([reading for cost in costs for reading in (100.0, 100.0 + cost)])
        monkeypatch.setattr(time, "monotonic" if wall else "thread_time", lambda: next(readings))

    return set_clock


def allowed(budget: DecodeTimeBudget, images: int = 1, file: bytes = b"x") -> list[int]:
    """Return how many pixels each of some images may have."""
    found, known = [], identify(file)
    for _ in range(images):
        with budget.limits_for(file, has_own_threads=known is not None and known.has_own_threads) as limits:
            found.append(limits.max_pixels)
    return found


def refused(budget: DecodeTimeBudget, error: DecodeError, file: bytes = b"x") -> DecodeError:
    """Return what becomes of the ``error`` of an image."""
    with pytest.raises(DecodeError) as caught, budget.limits_for(file, has_own_threads=False):
        raise error
    return caught.value


def test_each_image_is_charged_what_it_took(clock: Clock) -> None:
    costs = [0.0] * 100 + [3.0, 6.75, 0.125, 0.125, 0.0]
    clock(*costs)
    found = allowed(DecodeTimeBudget(LIMITS), len(costs))
    assert set(found[:-1]) == {100_000_000}
    assert found[-1] == 16_000_000, "the images before it took ten seconds"


@pytest.mark.parametrize("most", [1000, 100_000_000])
def test_an_image_that_fails_is_charged_as_well(most: int, clock: Clock) -> None:
    clock(11.0, 0.0)
    budget = DecodeTimeBudget(DecodeLimits(max_pixels=most))
    assert refused(budget, DecodeError(ImageStatus.CORRUPT, "broken")).message == "broken"
    assert allowed(budget) == [min(most, 16_000_000)]


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
    first_s: float, status: ImageStatus, file: bytes, expected: ImageStatus, clock: Clock
) -> None:
    clock(first_s, 0.0)
    budget = DecodeTimeBudget(DecodeLimits(max_pixels=100_000_000, max_bytes=100))
    allowed(budget)
    error = refused(budget, DecodeError(status, "The image has 20 MP: save a smaller copy and use it."), file)
    why = ", because the images before it in its request took more than 10 s of processor time"
    smaller = ": save a smaller copy and use it"
    reason = f"{why}; send it again with fewer images" if expected is ImageStatus.LIMIT else smaller
    assert (error.status, error.message) == (expected, f"The image has 20 MP{reason}.")


def test_a_request_that_overdraws_its_budget_gets_nothing_more(clock: Clock) -> None:
    clock(11.0, 48.0, 1.0, 0.0)
    budget = DecodeTimeBudget(LIMITS)
    assert allowed(budget, 3) == [100_000_000, 16_000_000, 16_000_000]
    with pytest.raises(DecodeError) as caught:
        allowed(budget)
    assert (caught.value.status, caught.value.message) == (
        ImageStatus.LIMIT,
        "The images before it in its request took more than 60 s of processor time; send it again with fewer images.",
    )


def test_no_charge_is_lost_between_two_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first thread reads what is left, and writes it after the second has charged its own time, if it can."""
    first_subtracts, second_is_done = threading.Event(), threading.Event()

    class Seconds(float):
        def __sub__(self, start: float) -> Seconds:
            return Seconds(float(self) - float(start))

        def __rsub__(self, left: float) -> float:  # the charge: it waits for the other, or 0.2 s if that has to wait
            if threading.current_thread().name == "first":
                first_subtracts.set()
                second_is_done.wait(0.2)
            return left - float(self)

    readings = {name: [Seconds(0.0), Seconds(6.0)] for name in ("first", "second")}
    readings[threading.current_thread().name] = [Seconds(0.0)] * 2
    monkeypatch.setattr(time, "thread_time", lambda: readings[threading.current_thread().name].pop(0))
    budget = DecodeTimeBudget(LIMITS)

    def decode() -> None:
        with budget.limits_for(b"x", has_own_threads=False):
            assert threading.current_thread().name == "first" or first_subtracts.wait(30)
        if threading.current_thread().name == "second":
            second_is_done.set()

    threads = [threading.Thread(target=decode, name=name) for name in ("first", "second")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert allowed(budget) == [16_000_000], "two of six seconds are more than ten"


@pytest.mark.parametrize(
    ("file", "avif_threads", "charged"),
    [(HEIC, 1, "wall"), (AVIF, 0, "wall"), (AVIF, 1, "thread"), (b"x", 0, "thread")],
)
def test_a_decoder_with_threads_of_its_own_is_charged_the_time_that_passes(
    file: bytes, avif_threads: int, charged: str, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(AvifImagePlugin, "DEFAULT_MAX_THREADS", avif_threads)
    clock(11.0 if charged == "wall" else 1.0, wall=True)
    clock(*[11.0] * (charged == "thread"), 0.0)
    budget = DecodeTimeBudget(LIMITS)
    allowed(budget, file=file)
    assert allowed(budget) == [16_000_000]


def test_waiting_for_a_large_image_of_another_request_is_free(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    clock(0.0, 0.5, 0.0)
    readings = iter([0.0, 1.0, 101.0, 109.5])  # the block begins, it waits, it has the lock, it ends
    monkeypatch.setattr(time, "monotonic", lambda: next(readings))
    budget = DecodeTimeBudget(LIMITS)
    with budget.limits_for(b"heic", has_own_threads=True), large_image_lock(40_000_000):
        pass
    assert allowed(budget, 2) == [100_000_000, 100_000_000], "it took nine and a half seconds, not 109"
    assert allowed(budget) == [16_000_000]
