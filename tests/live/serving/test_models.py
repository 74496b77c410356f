"""The Python models inside a real tritonserver: bombs, bad texts among good ones, and what they load.

Bad images among good ones are in test_fuzz.py and tests/live/client/test_local.py.
"""

import re
import urllib.request
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from numpy.typing import NDArray

from benchmarks.fixtures.server import Server
from preprocess_ensemble.contract import DEFAULT_NAMES, ImageStatus
from tests.fixtures.images import image_files
from tests.fixtures.models.exports import installed, text_of
from tests.live.raw import infer

GROWTH_BYTES = 300 * 2**20  # far more than small images need, far less than a decoded bomb
TEXTS = [b"a dog on the beach", "ein Hund \U0001f436".encode(), b"Cafe\xcc\x81 &amp; <b>tea</b>", b"word " * 200]


def counted(server: Server) -> Counter[str]:
    """Every sample of the tokenizer's own metrics; tests/unit/backends has those of images."""
    with urllib.request.urlopen(server.metrics_url) as response:
        lines = re.findall(r"^(clip_tokenize_\S+) (\S+)$", response.read().decode(), re.MULTILINE)
    return Counter({name: int(float(value)) for name, value in lines})


def test_bombs_cost_no_memory(server: Server) -> None:
    bombs = {
        image_files.png_bomb(): ImageStatus.TOO_LARGE,
        image_files.jpeg_header(65_000, 65_000): ImageStatus.TOO_LARGE,
        image_files.endless_tiff(): ImageStatus.LIMIT,
        image_files.jpeg(icc_profile=bytes(9_000_000)): ImageStatus.LIMIT,
    }
    folder = Path(f"/proc/{server.stub(DEFAULT_NAMES.preprocess).pid}")
    (folder / "clear_refs").write_text("5")  # VmHWM starts again: proc(5)
    before = psutil.Process(int(folder.name)).memory_info().rss
    with ThreadPoolExecutor(4) as executor:
        ask = partial(
            infer, server.grpc_url, DEFAULT_NAMES.image, list(bombs), outputs=["embedding", "status", "error"]
        )
        answers = list(executor.map(lambda _: ask(), range(8)))
    peak_kib = int((folder / "status").read_text().partition("VmHWM:")[2].split()[0])
    assert peak_kib * 1024 - before < GROWTH_BYTES
    assert answers[0]["status"].ravel().tolist() == list(bombs.values())
    said = b"900.0 megapixels (30000 x 30000); the limit is 128: save a smaller copy and use it."
    assert said in answers[0]["error"][0, 0]


def test_bad_texts_have_a_status_change_no_neighbour_and_are_counted(pair_server: Server) -> None:
    def embed(*texts: bytes) -> dict[str, NDArray[Any]]:
        outputs = ("embedding", "status", "error", "fingerprint", "truncated")
        return infer(pair_server.grpc_url, DEFAULT_NAMES.text, texts, outputs=outputs, tensor="text")

    bad = {b"": ImageStatus.EMPTY, b" \n": ImageStatus.EMPTY, b"caf\xe9": ImageStatus.NOT_UTF8}
    bad[b"x" * 65_537] = ImageStatus.TOO_LARGE
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
    # Texts share one matrix product, whose kernel depends on the number of its rows.
    assert np.allclose(mixed["embedding"][::2], alone["embedding"][::2], rtol=0, atol=1e-6)
    assert np.isnan(mixed["embedding"][1::2]).all()
    assert mixed["status"].ravel().tolist() == [number for status in bad.values() for number in (0, status)]
    assert [bool(text) for text in mixed["error"].ravel()] == [False, True] * 4
    assert mixed["truncated"].ravel().tolist() == [False] * 6 + [True, False]
    assert {tuple(row) for row in mixed["fingerprint"]} == {text_of(installed(pair_server.repository)).fingerprint}


def test_no_model_has_loaded_pytorch(pair_server: Server) -> None:
    names = DEFAULT_NAMES
    for model in (names.tokenize, names.text_encoder, names.preprocess, names.encoder):
        assert "torch" not in Path(f"/proc/{pair_server.stub(model).pid}/maps").read_text(encoding="utf-8"), model
