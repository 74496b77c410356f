"""Downloads from the hub: weights, resumed, verified and refused with the remedies; tokenizers, as they are written.

tests/unit/text/ compares the ids that a tokenizer gives.
"""

import hashlib
import json
import re
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any, ClassVar

import huggingface_hub
import pytest
from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError

from preprocess_ensemble.export.model_source import ExportError, WrongChoice
from preprocess_ensemble.export.tokenizer_files import write_tokenizer
from preprocess_ensemble.text.tokenizer import TOKENIZER_FILE, TokenizerConfig
from tests.fixtures.models.exports import python
from tests.fixtures.texts.tokenizers import write_gemma, write_xlm_roberta

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
CONTENT = bytes(range(256)) * 98_304  # 25 MB, many times what is read at once


class Hub(BaseHTTPRequestHandler):
    sha256: ClassVar[str]
    sent_ranges: ClassVar[list[str | None]]
    breaks: ClassVar[list[str]]
    """Ends of the next answers after a quarter of the file: ``"stall"`` waits until the client has gone, ``"close"``
    does not."""

    def do_GET(self) -> None:
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
            self.wfile.write(CONTENT[start : start + len(CONTENT) // 4 if end else None])
            self.close_connection = bool(end)
            if end == "stall":
                with suppress(ConnectionResetError):
                    self.rfile.read(1)

    do_HEAD = do_GET

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
    """Start a download in a process of its own, because huggingface_hub reads its settings when it is imported."""
    folders = {"HF_HOME": str(home), "HF_HUB_CACHE": str(home)}
    return python("-c", program, HF_ENDPOINT=endpoint, HF_HUB_OFFLINE="0", HF_HUB_DISABLE_TELEMETRY="1", **folders)


def download(endpoint: str, home: Path, program: str = DOWNLOAD) -> subprocess.CompletedProcess[str]:
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
    begun = [int(str(sent).removeprefix("bytes=").removesuffix("-")) for sent in Hub.sent_ranges]
    assert begun[:2] == [0, kept]
    assert kept < begun[2] < len(CONTENT)
    assert len(begun) == 3
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


def test_the_file_of_clip_is_the_same_everywhere(tmp_path: Path) -> None:
    # The fingerprint of each text tower depends on it: another digest means that all must be exported again.
    config, digests = write_tokenizer(tmp_path, {"context_length": 77})
    assert config == TokenizerConfig(kind="clip-bpe", clean="lower", context_length=77)
    assert digests == {TOKENIZER_FILE: "af77101a709a4d2f188a1efd497c92e71f5b38b17e3575af0f7dac96770c032c"}


@pytest.fixture
def exported(tmp_path: Path) -> Path:
    (folder := tmp_path / "exported").mkdir()
    return folder


def test_a_tokenizer_of_the_hub(tmp_path: Path, exported: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_gemma(tmp_path)
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", lambda repository, file: f"{tmp_path}/{file}")
    cfg = {"hf_tokenizer_name": "timm/ViT-B-32-SigLIP2-256", "tokenizer_kwargs": {"clean": "canonicalize"}}
    config, _ = write_tokenizer(exported, {**cfg, "context_length": 64, "vocab_size": 256000})
    assert config == TokenizerConfig(kind="hf", clean="canonicalize", context_length=64)
    written = json.loads((exported / TOKENIZER_FILE).read_text(encoding="utf-8"))
    assert (written["padding"]["pad_token"], written["padding"]["strategy"]) == ("<pad>", {"Fixed": 64})


def test_settings_that_the_hub_lacks_are_no_error_and_those_that_it_may_have_are(
    tmp_path: Path, exported: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_xlm_roberta(tmp_path)
    error: Exception = EntryNotFoundError.__new__(EntryNotFoundError, "404")

    def download_one(_: str, file: str) -> str:
        if file == TOKENIZER_FILE:
            return str(tmp_path / file)
        raise error

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", download_one)
    write_tokenizer(exported, {"hf_tokenizer_name": "xlm-roberta-base"})
    error = LocalEntryNotFoundError("only the cache was searched")
    with pytest.raises(ExportError, match="only the cache was searched"):
        write_tokenizer(exported, {"hf_tokenizer_name": "xlm-roberta-base"})


def test_a_tokenizer_of_a_folder_pads_as_its_settings_say(tmp_path: Path, exported: Path) -> None:
    write_gemma(tmp_path)
    settings = tmp_path / "tokenizer_config.json"
    settings.write_text('{"padding_side": "left", "pad_token": "<pad>"}', encoding="utf-8")
    write_tokenizer(exported, {"hf_tokenizer_name": str(tmp_path)})
    written = json.loads((exported / TOKENIZER_FILE).read_text(encoding="utf-8"))
    assert written["padding"]["direction"] == "Left"
    settings.write_text('{"pad_token": "<none>"}', encoding="utf-8")
    with pytest.raises(ExportError, match="has no pad_token"):
        write_tokenizer(exported, {"hf_tokenizer_name": str(tmp_path)})


@pytest.mark.parametrize(
    ("text_cfg", "kind", "words"),
    [
        ({"tokenizer_mode": "clips"}, WrongChoice, "tokenizer_mode"),
        ({"tokenizer_kwargs": {"reduction_mask": "simple"}}, WrongChoice, "reduction_mask"),
        ({"tokenizer_kwargs": {"clean": "upper"}}, WrongChoice, "upper"),
        ({"vocab_size": 64}, WrongChoice, "has 64 tokens, and CLIP's tokenizer 49,408"),
        ({"hf_tokenizer_name": "/"}, ExportError, "cannot be loaded"),
    ],
)
def test_what_is_not_known_is_refused(
    tmp_path: Path, text_cfg: dict[str, Any], kind: type[ExportError], words: str
) -> None:
    with pytest.raises(kind, match=words):
        write_tokenizer(tmp_path, text_cfg)
    assert list(tmp_path.iterdir()) == []
