"""The first start as operations.md begins: ``clip-serve --model ViT-B-32`` downloads, exports and serves."""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from benchmarks.fixtures.server import QUIET, serving
from clip_client import SyncClipClient
from tests.fixtures.models.exports import load_model


@contextmanager
def _hub(weights: Path) -> Iterator[str]:
    """A stand-in for the Hugging Face hub that has one file in every repository; the block gets its address."""
    with weights.open("rb") as file:
        sha256 = hashlib.file_digest(file, "sha256").hexdigest()

    class Hub(SimpleHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def translate_path(self, path: str) -> str:
            return str(weights if "/resolve/" in path and path.endswith(".safetensors") else weights / "none")

        def send_error(self, code: int, *_: object) -> None:
            self.send_response(code)
            self.send_header("x-error-code", "EntryNotFound")
            self.send_header("content-length", "0")
            self.end_headers()

        def end_headers(self) -> None:
            self.send_header("etag", f'"{sha256}"')
            self.send_header("x-repo-commit", "0" * 40)
            super().end_headers()

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
