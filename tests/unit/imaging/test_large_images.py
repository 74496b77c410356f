"""Large pictures are decoded one at a time, so that a batch of them needs the memory of one."""

from __future__ import annotations

import sys
import threading
import types
from typing import Any

import pytest

from preprocess_ensemble.imaging import turbojpeg_decoder
from preprocess_ensemble.imaging.decode import decode_image
from tests.fixtures.images import image_files

HEIGHT, WIDTH = 5000, 8000
"""40 megapixels: large as a whole, and small at an eighth."""
NOT_BEFORE_S = 0.5
"""A second decoder that need not wait is there in a few milliseconds."""


def large_jpeg(**options: Any) -> bytes:
    """Return a small file whose header states a large picture; the decoder of the test never reads its pixels."""
    changed = bytearray(image_files.jpeg(**options))
    frame = changed.index(b"\xff\xc2" if options.get("progressive") else b"\xff\xc0")
    changed[frame + 5 : frame + 9] = HEIGHT.to_bytes(2, "big") + WIDTH.to_bytes(2, "big")
    return bytes(changed)


@pytest.mark.parametrize(
    ("options", "waits"),
    [({"progressive": True}, True), ({}, False)],
    ids=["progressive, which is in memory as a whole", "baseline, scaled while it is read"],
)
def test_a_second_large_picture_waits_for_the_first(
    options: dict[str, Any], waits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if turbojpeg_decoder.library() is None:
        pytest.skip("PyTurboJPEG and libturbojpeg are not both installed")
    real = sys.modules["turbojpeg"]
    data = large_jpeg(**options)
    first, second = threading.Event(), threading.Event()
    waited: list[bool] = []

    class Waiting(real.TurboJPEG):  # type: ignore[name-defined,misc]
        def __init__(self) -> None:
            super().__init__()
            decompress: Any = self._TurboJPEG__decompress  # type: ignore[has-type]

            def decompress_waiting(handle: Any, source: Any, size: int, *arguments: Any) -> Any:
                if size != len(data):
                    return decompress(handle, source, size, *arguments)
                if first.is_set():
                    second.set()
                else:
                    first.set()
                    waited.append(not second.wait(NOT_BEFORE_S if waits else 30))
                return 0

            self._TurboJPEG__decompress = decompress_waiting

    package = types.ModuleType("turbojpeg")
    vars(package)["TurboJPEG"] = Waiting
    monkeypatch.setitem(sys.modules, "turbojpeg", package)
    turbojpeg_decoder.installed.cache_clear()
    try:
        threads = [threading.Thread(target=decode_image, args=(data,), kwargs={"at_least": (64, 64)}) for _ in "ab"]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        turbojpeg_decoder.installed.cache_clear()
    assert waited == [waits]
    assert second.is_set()
