"""The first start as operations.md begins: ``clip-serve --model ViT-B-32`` downloads, exports and serves."""

from __future__ import annotations

import hashlib
import shutil
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import TYPE_CHECKING

import pytest

from benchmarks.fixtures.server import QUIET, serving
from clip_client import SyncClipClient
from preprocess_ensemble.export.exporter import load_model

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@contextmanager
def _hub(weights: Path) -> Iterator[str]:
    """A stand-in for the Hugging Face hub that has one file in every repository; the block gets its address."""
    with weights.open("rb") as file:
        sha256 = hashlib.file_digest(file, "sha256").hexdigest()
    size = weights.stat().st_size

    class Hub(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_HEAD(self) -> None:
            known = "/resolve/" in self.path and self.path.endswith(".safetensors")
            self.send_response(200 if known else 404)
            self.send_header("content-length", str(size if known else 0))
            if known:
                self.send_header("etag", f'"{sha256}"')
                self.send_header("x-repo-commit", "0" * 40)
            else:
                self.send_header("x-error-code", "EntryNotFound")
            self.end_headers()

        def do_GET(self) -> None:
            self.do_HEAD()
            if self.path.endswith(".safetensors"):
                with weights.open("rb") as file:
                    shutil.copyfileobj(file, self.wfile)

        def log_message(self, *_: object) -> None:
            """Nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Hub) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.mark.timeout(1800)
@pytest.mark.long
def test_the_first_start_downloads_the_weights_even_if_their_cache_is_in_the_repository(
    photos: Path, tmp_path: Path
) -> None:
    from safetensors.torch import save_file

    weights, repository = tmp_path / "weights.safetensors", tmp_path / "models"
    save_file(
        {name: value.contiguous() for name, value in load_model("ViT-B-32", "random:0").state_dict().items()}, weights
    )
    with _hub(weights) as hub:
        environment = {
            "HF_ENDPOINT": hub,
            "HF_HOME": str(repository / ".weights"),
            "HF_HUB_CACHE": str(repository / ".weights" / "hub"),
        }
        with (
            serving(repository, *QUIET, "--model", "ViT-B-32", environment=environment) as server,
            SyncClipClient(server.grpc_url) as clip,
        ):
            clip.embed([photos / "coffee.jpg"]).raise_for_errors()
    assert list((repository / ".weights").rglob("*.safetensors"))
