"""Damaged files, and the bugs that they have found: a slice here, and 100,000 with ``make fuzz``.

Each file goes through decode and transform, on the fast path and with the server's limits, in a process of its own.
Within 5 s of processor time and 4 GiB of memory it must end as pixels or as a status other than INTERNAL. A JPEG file
must have the same status with exact and with scaled decode.
"""

from __future__ import annotations

import io
import multiprocessing
import os
import resource
import signal
import struct
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.sharedctypes import Synchronized
from typing import Any

import pytest
from PIL import Image, ImageFile

from preprocess_ensemble.contract import ImageStatus
from preprocess_ensemble.imaging.decode import DecodeError, DecodeLimits, decode
from preprocess_ensemble.imaging.formats import identify
from preprocess_ensemble.imaging.limits import large_image_lock
from preprocess_ensemble.imaging.transform import PreprocessConfig, preprocess
from tests.fixtures.images import image_files
from tests.fixtures.images.damaged_files import Inputs
from tests.fixtures.images.good_files import refused, two

INPUTS = int(os.environ.get("FUZZ_INPUTS", "1000"))
SEED = int(os.environ.get("FUZZ_SEED", "7"))
HANG_S = 5.0
STANDSTILL_S = 60
MEMORY_BYTES = 4 * 2**30
CHUNK = 5000
CONFIG = PreprocessConfig(size=(224, 224), mean=(0.5, 0.5, 0.5), std=(0.25, 0.25, 0.25))


def attempt(data: bytes, at_least: tuple[int, int] | None) -> ImageStatus:
    try:
        pixels = preprocess(decode(data, DecodeLimits(), at_least=at_least), CONFIG)
    except DecodeError as error:
        return error.status
    except Exception:
        return ImageStatus.INTERNAL
    return ImageStatus.OK if pixels.shape == (*CONFIG.size, 3) else ImageStatus.INTERNAL


def passes_header(data: bytes) -> bool:
    """Whether the format's reader opens the file and its size is within the limits, so that the pixels are tried."""
    image_format = identify(data)
    if image_format is None or image_format.opener is None:
        return False
    try:
        with image_format.opener(io.BytesIO(data)) as image:
            return bool(image.width * image.height <= DecodeLimits().max_pixels)
    except Exception:  # whatever Pillow's reader raises
        return False


def try_inputs(numbers: range, current: Synchronized[int], results: Any) -> None:
    """Try some inputs in this process, which the kernel ends at one that takes too long."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    # libtiff prints a complaint about every file to the standard error stream.
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    inputs = Inputs(SEED)
    statuses: Counter[str] = Counter()
    findings = {}
    for number in numbers:
        current.value = number
        signal.setitimer(signal.ITIMER_PROF, HANG_S)
        signal.alarm(STANDSTILL_S)
        data = inputs[number]
        status = attempt(data, CONFIG.decode_at_least)
        statuses[status.name] += 1
        statuses["passed the header"] += status is ImageStatus.OK or passes_header(data)
        if status is ImageStatus.INTERNAL or (data[:2] == b"\xff\xd8" and attempt(data, None) is not status):
            findings[number] = status.name
    results.send((statuses, findings))


def in_own_process(numbers: range) -> tuple[Counter[str], dict[int, str]]:
    """Try some inputs in a new process; one that ends it is the finding."""
    context = multiprocessing.get_context("spawn")
    current = context.Value("q", -1)
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=try_inputs, args=(numbers, current, sender))
    process.start()
    sender.close()
    try:
        found: tuple[Counter[str], dict[int, str]] = receiver.recv()
    except EOFError:
        process.join()
        return Counter(), {current.value: f"ended its process: {process.exitcode}"}
    process.join()
    return found


@pytest.mark.timeout(120 + INPUTS // 10)
def test_damaged_files_end_as_pixels_or_with_a_status() -> None:
    chunks = [range(start, min(start + CHUNK, INPUTS)) for start in range(0, INPUTS, CHUNK)]
    statuses: Counter[str] = Counter()
    findings: dict[int, str] = {}
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as executor:
        for counted, wrong in executor.map(in_own_process, chunks):
            statuses += counted
            findings |= wrong
    assert findings == {}, f"Inputs({SEED})[number] is the file"
    passed = statuses.pop("passed the header")
    assert statuses.total() == INPUTS
    assert passed >= 0.3 * INPUTS
    assert {"OK", "CORRUPT", "TRUNCATED", "UNSUPPORTED_FORMAT", "TOO_LARGE", "LIMIT"} <= statuses.keys()


@pytest.mark.parametrize("at_least", [None, (16, 16)])
def test_found_a_jpeg_with_exif_that_pillow_cannot_open(at_least: tuple[int, int] | None) -> None:
    data = image_files.jpeg(exif=b"Exif\0\0")
    table = data.index(b"\xff\xdb")
    broken = data[: table + 2] + struct.pack(">H", 5) + b"\x00\x01\x02" + data[table:]
    assert refused(broken, at_least=at_least).status is ImageStatus.CORRUPT


def test_found_an_animation_with_a_huge_canvas() -> None:
    """4 KB that took 1.9 GB: within the megapixels, but the decoder holds an animation's canvas several times."""
    data = bytearray(two("WEBP"))
    canvas = data.index(b"VP8X") + 12  # 24 bits of width - 1, then of height - 1
    data[canvas : canvas + 6] = (9999).to_bytes(3, "little") + (4999).to_bytes(3, "little")
    assert refused(bytes(data)).status is ImageStatus.TOO_LARGE


def test_found_large_images_needing_memory_all_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    data = image_files.encoded(Image.new("1", (5700, 5700)), "PNG")  # 32.5 megapixels
    started, prepare = threading.Event(), ImageFile.ImageFile.load_prepare

    def note_and_prepare(self: ImageFile.ImageFile) -> None:
        if self.width == 5700:
            started.set()
        prepare(self)

    monkeypatch.setattr(ImageFile.ImageFile, "load_prepare", note_and_prepare)
    with ThreadPoolExecutor(1) as executor, large_image_lock(32_000_001):
        decoded = executor.submit(decode, data)
        decode(image_files.file("PNG", size=(20, 20)))  # a small image does not wait
        assert not started.wait(0.5), "it would start within milliseconds"
    assert decoded.result().size == (5700, 5700)
