"""``clip-client review`` as a process: its address, its end, and searches that fail."""

import json
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest

from clip_client.cli.commands.review import has_screen
from clip_client.cli.main import main
from clip_client.testing import FakeTriton, Reply
from tests.fixtures.fakes import Serve
from tests.fixtures.images.image_files import encoded, picture


class Process:
    def __init__(self, *arguments: str) -> None:
        command = [sys.executable, "-m", "clip_client", "review", "--no-browser", *arguments]
        self.running = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert self.running.stdout is not None
        self.url = self.running.stdout.readline().partition(": ")[2].strip().rstrip("/")

    def get(self, path: str) -> str:
        return httpx.get(self.url + path, trust_env=False, timeout=30).text

    def state(self) -> Any:
        """Return the state that the page polls, after the search has ended."""
        while (state := json.loads(self.get("/state")))["phase"] == "scanning":
            time.sleep(0.01)
        return state

    def end(self, by: int) -> tuple[int, str]:
        self.running.send_signal(by)
        _, errors = self.running.communicate(timeout=30)
        return self.running.returncode, errors


@pytest.fixture
def album(tmp_path: Path) -> Path:
    folder = tmp_path / "album"
    folder.mkdir()
    for name in ("a", "b"):
        (folder / f"{name}.png").write_bytes(encoded(picture(seed=1), "PNG"))
    return folder


@pytest.fixture
def review(tmp_path: Path) -> Callable[..., Process]:
    return lambda *words: Process(*map(str, words), "--transfer", "original", "--store", str(tmp_path / "store"))


@pytest.mark.parametrize(
    ("model", "found"),
    [(FakeTriton(has_text=True), "+1 copy"), (FakeTriton(), "--towers image,text"), (None, "without a model")],
    ids=["both towers", "no text tower", "no model"],
)
def test_the_command_serves_pages_that_search_with_its_model_until_it_is_interrupted(
    review: Callable[..., Process], serve: Serve, album: Path, model: FakeTriton | None, found: str
) -> None:
    process = review(album, *(["--without-model"] if model is None else ["--url", serve(model).url]))
    state = process.state()
    assert (state["phase"], state["totals"][0]["groups"]) == ("ready", 1)
    assert "b.png" in process.get("/groups/1")
    page = process.get("/search?q=a+red+dog")
    assert (found in page, page.count("<figure")) == (True, int(found == "+1 copy"))
    assert process.end(signal.SIGINT) == (130, "clip-client: interrupted\n")


def test_a_failed_search_is_explained_on_the_page(review: Callable[..., Process], serve: Serve, album: Path) -> None:
    (server := serve(FakeTriton())).answer_always(Reply(status=grpc.StatusCode.INTERNAL, details="it is broken"))
    process, said = review(album, "--url", server.url), server.url.rpartition("/")[2]
    state = process.state()
    assert (state["phase"], said in state["error"], said in process.get("/")) == ("failed", True, True), state
    assert process.end(signal.SIGTERM)[0] == 143


def test_a_port_that_is_taken_is_named(album: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        command = ["review", str(album), "--no-browser", "--port", port, "--without-model"]
        assert main([*command, "--store", str(tmp_path / "store")]) == 1
    assert f"port {port} cannot be used (Address already in use); choose another with --port" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("platform", "environment", "expected"),
    [
        ("linux", {"DISPLAY": ":0"}, True),
        ("linux", {"WAYLAND_DISPLAY": "wayland-0"}, True),
        ("linux", {"SSH_CONNECTION": "1"}, False),
        ("darwin", {}, True),
        ("darwin", {"SSH_CONNECTION": "1"}, False),
        ("win32", {}, True),
    ],
)
def test_a_browser_opens_only_where_there_is_a_screen(
    platform: str, environment: dict[str, str], *, expected: bool
) -> None:
    assert has_screen(platform, environment) is expected
