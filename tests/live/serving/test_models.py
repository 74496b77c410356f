"""The Python models inside a real tritonserver: bad rows among good ones, bombs, and metrics."""

from __future__ import annotations

import re
import urllib.request
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import psutil

from preprocess_ensemble.contract import DEFAULT_NAMES, ENSEMBLE, PREPROCESSOR, ImageStatus
from preprocess_ensemble.model_repository.config import installed_passport
from tests.fixtures.images import image_files
from tests.live.raw import infer

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from benchmarks.fixtures.server import Server

LARGE = image_files.jpeg(size=(1204, 1001))
GOOD = (LARGE, image_files.jpeg(size=(300, 280)), image_files.encoded(image_files.picture(), "PNG"))
GROWTH_BYTES = 300 * 2**20
"""Far more than small images need, far less than a decoded bomb."""
TEXTS = [
    b"a dog on the beach",
    "ein Hund am Strand \U0001f436".encode(),
    b"Cafe\xcc\x81 &amp; <b>tea</b>",
    b"word " * 200,
]


def bad_images() -> dict[bytes, ImageStatus]:
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


def counted(server: Server) -> Counter[str]:
    """Every sample of the tokenizer's own metrics; tests/unit/backends has those of images."""
    with urllib.request.urlopen(server.metrics_url) as response:
        lines = re.findall(r"^(clip_tokenize_\S+) (\S+)$", response.read().decode(), re.MULTILINE)
    return Counter({name: int(float(value)) for name, value in lines})


def test_bad_files_are_named_and_change_no_neighbour(server: Server) -> None:
    bad = bad_images()
    alone = [infer(server.grpc_url, ENSEMBLE, [data], outputs=["embedding"])["embedding"][0] for data in GOOD]
    rows = [GOOD[0], *bad, GOOD[1], GOOD[2]]
    answer = infer(server.grpc_url, ENSEMBLE, rows, outputs=["embedding", "status", "error"])
    assert answer["status"].ravel().tolist() == [0, *bad.values(), 0, 0]
    assert np.isnan(answer["embedding"][1:-2]).all()
    for vector, expected in zip(answer["embedding"][[0, -2, -1]], alone, strict=True):
        assert np.array_equal(vector, expected)
    assert b"900.0 megapixels (30000 x 30000); the limit is 128." in answer["error"][4, 0]


def test_bombs_cost_no_memory(server: Server) -> None:
    bad, process = list(bad_images()), server.stub(PREPROCESSOR)
    Path(f"/proc/{process.pid}/clear_refs").write_text("5")  # VmHWM starts again: proc(5)
    before = psutil.Process(process.pid).memory_info().rss
    with ThreadPoolExecutor(4) as executor:
        list(executor.map(lambda _: infer(server.grpc_url, PREPROCESSOR, bad, outputs=["status"]), range(8)))
    status = Path(f"/proc/{process.pid}/status").read_text()
    peak_kib = int(status.partition("VmHWM:")[2].split()[0])
    assert peak_kib * 1024 - before < GROWTH_BYTES


def test_bad_texts_have_a_status_change_no_neighbour_and_are_counted(pair_server: Server) -> None:
    def embed(*texts: bytes) -> dict[str, NDArray[Any]]:
        outputs = ("embedding", "status", "error", "fingerprint", "truncated")
        return infer(pair_server.grpc_url, DEFAULT_NAMES.text, texts, outputs=outputs, tensor="text")

    bad = {
        b"": ImageStatus.EMPTY,
        b" \n": ImageStatus.EMPTY,
        b"caf\xe9": ImageStatus.NOT_UTF8,
        b"x" * 65_537: ImageStatus.TOO_LARGE,
    }
    alone = embed(*(text for text in TEXTS for _ in range(2)))
    before = counted(pair_server)
    mixed = embed(*(text for pair in zip(TEXTS, bad, strict=True) for text in pair))
    assert counted(pair_server) - before == {
        'clip_tokenize_texts_total{status="OK"}': 4,
        'clip_tokenize_texts_total{status="EMPTY"}': 2,
        'clip_tokenize_texts_total{status="NOT_UTF8"}': 1,
        'clip_tokenize_texts_total{status="TOO_LARGE"}': 1,
        "clip_tokenize_truncated_total": 1,
        'clip_tokenize_requests_total{rows="5-8"}': 1,
    }
    assert mixed["embedding"][::2].tobytes() == alone["embedding"][::2].tobytes()
    assert np.isnan(mixed["embedding"][1::2]).all()
    assert mixed["status"].ravel().tolist() == [number for status in bad.values() for number in (0, status)]
    assert [bool(text) for text in mixed["error"].ravel()] == [False, True] * 4
    assert mixed["truncated"].ravel().tolist() == [False] * 6 + [True, False]
    passport = installed_passport(pair_server.repository)
    assert passport is not None
    assert passport.text is not None
    assert {tuple(row) for row in mixed["fingerprint"]} == {passport.text.fingerprint}
    assert passport.text.fingerprint != passport.fingerprint


def test_no_model_has_loaded_pytorch(pair_server: Server) -> None:
    names = DEFAULT_NAMES
    for model in (names.tokenize, names.text_encoder, names.preprocess, names.encoder):
        assert "torch" not in Path(f"/proc/{pair_server.stub(model).pid}/maps").read_text(encoding="utf-8"), model
