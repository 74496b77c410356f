"""The preprocessing inside a real tritonserver: fast path, bad files among good ones, bombs, and metrics."""

from __future__ import annotations

import re
import urllib.request
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from benchmarks.fixtures.server import Server, serving
from preprocess_ensemble.contract import PREPROCESSOR, ImageStatus
from preprocess_ensemble.imaging import turbojpeg_decoder
from preprocess_ensemble.imaging.decode import decode
from preprocess_ensemble.imaging.transform import PreprocessConfig, preprocess
from preprocess_ensemble.model_repository.config import installed_passport
from tests.fixtures.images import image_files
from tests.live.raw import infer

LARGE = image_files.jpeg(size=(1204, 1001))
GOOD = (LARGE, image_files.jpeg(size=(300, 280)), image_files.encoded(image_files.picture(), "PNG"))
LIGHT_BYTES = 400 * 2**20
"""Far more than the interpreter and small images need, far less than a decoded bomb."""


@pytest.fixture(scope="module")
def bad() -> dict[bytes, ImageStatus]:
    """Files that are refused, some of them large."""
    return {
        b"": ImageStatus.EMPTY,
        b"no image": ImageStatus.NOT_AN_IMAGE,
        LARGE[: len(LARGE) // 2]: ImageStatus.TRUNCATED,
        image_files.png_bomb(): ImageStatus.TOO_LARGE,
        image_files.jpeg_header(65_000, 65_000): ImageStatus.TOO_LARGE,
        image_files.endless_tiff(): ImageStatus.LIMIT,
        image_files.jpeg(icc_profile=bytes(9_000_000)): ImageStatus.LIMIT,
    }


@pytest.fixture(scope="module")
def config(tiny_repository: Path) -> PreprocessConfig:
    passport = installed_passport(tiny_repository)
    assert passport is not None
    return PreprocessConfig.from_mapping(passport.preprocess)


def metrics(server: Server) -> Counter[str]:
    """Return every sample of this model's own metrics, by name and sorted labels."""
    with urllib.request.urlopen(server.metrics_url) as response:
        text = response.read().decode()
    found: Counter[str] = Counter()
    for name, labels, value in re.findall(r"^(clip_preprocess_\w+)\{([^}]*)\} (\S+)$", text, re.MULTILINE):
        found[f"{name} {' '.join(sorted(labels.split(',')))}"] = int(float(value))
    return found


def test_large_files_take_the_fast_path(server: Server, config: PreprocessConfig) -> None:
    answer = infer(server.grpc_url, "clip_preprocess", GOOD, outputs=["pixels"])
    for pixels, data in zip(answer["pixels"], GOOD, strict=True):
        assert np.array_equal(pixels, preprocess(decode(data, at_least=config.decode_at_least), config))
    assert not np.array_equal(answer["pixels"][0], preprocess(decode(LARGE), config))


def test_metrics_count_images_decode_paths_and_requests(server: Server) -> None:
    before = metrics(server)
    infer(server.grpc_url, "clip_preprocess", [*GOOD, b"no image", b""], outputs=["status"])
    infer(server.grpc_url, "clip_preprocess", [LARGE], outputs=["model"])  # decodes nothing
    decoder = "pillow" if turbojpeg_decoder.library() is None else "turbojpeg"
    assert metrics(server) - before == {
        'clip_preprocess_images_total status="OK"': 3,
        'clip_preprocess_images_total status="NOT_AN_IMAGE"': 1,
        'clip_preprocess_images_total status="EMPTY"': 1,
        f'clip_preprocess_decoded_total decoder="{decoder}" route="scaled"': 1,
        f'clip_preprocess_decoded_total decoder="{decoder}" route="small"': 1,
        'clip_preprocess_decoded_total decoder="pillow" route="not_jpeg"': 1,
        'clip_preprocess_requests_total rows="5-8"': 1,
    }


def test_bad_files_are_named_and_change_no_neighbour(server: Server, bad: dict[bytes, ImageStatus]) -> None:
    alone = [infer(server.grpc_url, "clip_image", [data], outputs=["embedding"])["embedding"][0] for data in GOOD]
    rows = [GOOD[0], *bad, GOOD[1], GOOD[2]]
    answer = infer(server.grpc_url, "clip_image", rows, outputs=["embedding", "status", "error"])
    assert answer["status"].ravel().tolist() == [0, *bad.values(), 0, 0]
    assert np.isnan(answer["embedding"][1:-2]).all()
    for vector, expected in zip(answer["embedding"][[0, -2, -1]], alone, strict=True):
        assert np.array_equal(vector, expected)
    assert b"900.0 megapixels (30000 x 30000); the limit is 128." in answer["error"][4, 0]


def test_bombs_cost_no_memory(tiny_repository: Path, bad: dict[bytes, ImageStatus]) -> None:
    with serving(tiny_repository) as fresh:
        with ThreadPoolExecutor(4) as executor:
            list(
                executor.map(
                    lambda _: infer(fresh.grpc_url, "clip_preprocess", list(bad), outputs=["status"]), range(8)
                )
            )
        status = Path(f"/proc/{fresh.stub(PREPROCESSOR).pid}/status").read_text()
    peak_kib = int(status.partition("VmHWM:")[2].split()[0])
    assert peak_kib * 1024 < LIGHT_BYTES
