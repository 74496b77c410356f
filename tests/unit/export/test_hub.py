"""Downloads of weights from a server that speaks the hub's routes: resumed, verified, and refused with the remedies."""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
import time
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import TYPE_CHECKING, ClassVar

import pytest

from tests.paths import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

REPOSITORY = "laion/CLIP-ViT-B-32-laion2B-s34B-b79K"
FILE = "open_clip_model.safetensors"
DOWNLOAD = f"""
import sys
from preprocess_ensemble.errors import ReportedError
from preprocess_ensemble.export.hub import download_weights
try:
    print(download_weights("ViT-B-32", "laion2b_s34b_b79k", {REPOSITORY!r}, {FILE!r}))
except ReportedError as error:
    sys.exit(str(error))
"""
CONTENT = bytes(range(256)) * 98_304  # 25 MB; huggingface_hub writes pieces of 10 MB


class Hub(BaseHTTPRequestHandler):
    """The hub's answers for one file."""

    sha256: ClassVar[str]
    sent_ranges: ClassVar[list[str | None]]
    breaks: ClassVar[list[str]]
    """How the next answers end halfway: ``"stall"`` waits until the client has gone, ``"close"`` does not."""

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def _answer(self) -> None:
        if self.path != f"/{REPOSITORY}/resolve/main/{FILE}":
            self.send_error(404)
            return
        asked = self.headers.get("Range")
        start = int(match[1]) if (match := re.fullmatch(r"bytes=(\d+)-", asked or "")) else 0
        self.send_response(206 if start else 200)
        self.send_header("ETag", f'"{self.sha256}"')
        self.send_header("X-Linked-Etag", f'"{self.sha256}"')
        self.send_header("X-Linked-Size", str(len(CONTENT)))
        self.send_header("X-Repo-Commit", "0" * 40)
        self.send_header("Content-Length", str(len(CONTENT) - start))
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(CONTENT) - 1}/{len(CONTENT)}")
        self.end_headers()
        if self.command == "GET":
            self.sent_ranges.append(asked)
            end = self.breaks.pop(0) if self.breaks else ""
            self.wfile.write(CONTENT[start : start + len(CONTENT) // 2 if end else None])
            self.close_connection = bool(end)
            if end == "stall":
                with suppress(ConnectionResetError):
                    self.rfile.read(1)

    def log_message(self, format: str, *arguments: object) -> None:
        pass


@pytest.fixture
def hub() -> Iterator[str]:
    Hub.sha256 = hashlib.sha256(CONTENT).hexdigest()
    Hub.sent_ranges, Hub.breaks = [], []
    with ThreadingHTTPServer(("127.0.0.1", 0), Hub) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def start(endpoint: str, home: Path, program: str = DOWNLOAD) -> subprocess.Popen[str]:
    """In a process of its own, because huggingface_hub reads its settings when it is imported."""
    settings = {
        "HF_ENDPOINT": endpoint,
        "HF_HOME": str(home),
        "HF_HUB_CACHE": str(home),
        "HF_HUB_DISABLE_TELEMETRY": "1",
    }
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HF_")} | settings
    command = [sys.executable, "-c", program]
    return subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def download(endpoint: str, home: Path, program: str = DOWNLOAD) -> subprocess.CompletedProcess[str]:
    """Run :func:`start` to its end."""
    with start(endpoint, home, program) as process:
        output, errors = process.communicate()
    return subprocess.CompletedProcess(process.args, process.returncode, output, errors)


def test_a_killed_and_a_broken_download_are_continued_and_the_cache_is_used_afterwards(
    hub: str, tmp_path: Path
) -> None:
    Hub.breaks = ["stall", "close"]
    with start(hub, tmp_path) as process:
        while not any(path.stat().st_size for path in tmp_path.rglob("*.partial")):
            assert process.poll() is None
            time.sleep(0.01)
        process.kill()
    (partial,) = tmp_path.rglob("*.partial")
    kept = partial.stat().st_size
    finished = download(hub, tmp_path)
    assert finished.returncode == 0, finished.stderr
    with open(finished.stdout.strip(), "rb") as file:
        assert file.read() == CONTENT
    assert Hub.sent_ranges == [None, f"bytes={kept}-", f"bytes={kept + (10 << 20)}-"]
    assert not list(tmp_path.rglob("*.partial"))
    again = download(hub, tmp_path)
    assert again.stdout == finished.stdout
    assert len(Hub.sent_ranges) == 3


def test_damaged_weights_are_deleted(hub: str, tmp_path: Path) -> None:
    Hub.sha256 = "ab" * 32
    finished = download(hub, tmp_path)
    assert finished.returncode == 1
    assert f"The downloaded weights {FILE} are damaged (SHA-256 " in finished.stderr
    Hub.sha256 = hashlib.sha256(CONTENT).hexdigest()
    assert download(hub, tmp_path).returncode == 0


def test_a_hub_that_lacks_the_file_is_one_message(hub: str, tmp_path: Path) -> None:
    finished = download(hub, tmp_path, DOWNLOAD.replace(REPOSITORY, "nobody/nothing"))
    assert finished.returncode == 1
    assert "Traceback" not in finished.stderr
    assert "tried: nobody/nothing" in finished.stderr
