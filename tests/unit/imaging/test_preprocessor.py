"""Files of several requests at once, in the threads of one preprocessor."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from PIL import QoiImagePlugin

from preprocess_ensemble.contract import ImageStatus
from preprocess_ensemble.imaging.decode import decode
from preprocess_ensemble.imaging.preprocessor import Preprocessor
from preprocess_ensemble.imaging.transform import PreprocessConfig, preprocess
from tests.fixtures.images import image_files

CONFIG = PreprocessConfig(size=(16, 16), mean=(0, 0, 0), std=(1, 1, 1))
FILES = [image_files.encoded(image_files.picture(size=(20 + number, 18)), "PNG") for number in range(20)]


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_results_keep_the_order_of_the_files(threads: int) -> None:
    preprocessor = Preprocessor(CONFIG, threads=threads)
    batches: list[list[list[bytes]]] = [[], [[]], [FILES[:1]], [FILES[:3], [], [b"", *FILES[3:]]]]
    for requests in batches:
        pixels, outcomes = preprocessor.run(requests)
        files = [file for request in requests for file in request]
        assert [outcome.status for outcome in outcomes] == [ImageStatus.OK if f else ImageStatus.EMPTY for f in files]
        for row, file in zip(pixels, files, strict=True):
            assert np.array_equal(row, preprocess(decode(file), CONFIG) if file else np.zeros_like(row))
    preprocessor.close()


@pytest.mark.parametrize("count", [1, 3])
def test_files_are_spread_over_the_threads_of_which_the_caller_is_one(
    count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
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
