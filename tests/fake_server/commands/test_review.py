"""``clip-client review`` as a process: its address, its end, and searches that fail."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import time
from http.client import HTTPConnection
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import grpc
import pytest
from anyio import to_thread

from clip_client.cli.commands.review import has_screen
from clip_client.cli.main import main
from clip_client.testing import FakeTriton, Reply
from tests.fixtures.images.image_files import encoded, picture

if TYPE_CHECKING:
    from pathlib import Path


class Process:
    """A running ``clip-client review``, and a browser that has its address."""

    def __init__(self, *arguments: str) -> None:
        command = [sys.executable, "-m", "clip_client", "review", "--no-browser", *arguments]
        self.running = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert self.running.stdout is not None
        self.address = urlsplit(self.running.stdout.readline().partition(": ")[2].strip())

    def get(self, path: str) -> str:
        connection = HTTPConnection("127.0.0.1", self.address.port or 0, timeout=30)
        connection.request("GET", self.address.path.rstrip("/") + path)
        response = connection.getresponse()
        text = response.read().decode()
        connection.close()
        return text

    def state(self) -> Any:
        """What the page polls, once the search has ended."""
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


async def test_the_command_serves_pages_until_it_is_interrupted(album: Path, tmp_path: Path) -> None:
    def use(url: str) -> None:
        process = Process(str(album), "--url", url, "--transfer", "original", "--store", str(tmp_path / "store"))
        state = process.state()
        assert (state["phase"], state["totals"][0]["groups"]) == ("ready", 1)
        assert "b.png" in process.get("/groups/1")
        assert process.end(signal.SIGINT) == (130, "clip-client: interrupted\n")

    async with FakeTriton() as server:
        await to_thread.run_sync(use, server.url)


async def test_the_pages_search_by_words_with_the_model_of_the_command(album: Path, tmp_path: Path) -> None:
    def use(url: str, *options: str) -> str:
        where = ["--transfer", "original", "--store", str(tmp_path / "store"), *options]
        process = Process(str(album), *([] if "--without-model" in options else ["--url", url]), *where)
        process.state()
        page = process.get("/search?q=a+red+dog")
        process.end(signal.SIGINT)
        return page

    async with FakeTriton(has_text=True) as server:
        page = await to_thread.run_sync(use, server.url)
        assert page.count("<figure") == 1
        assert "+1 copy" in page
        assert "without a model" in await to_thread.run_sync(use, server.url, "--without-model")
    async with FakeTriton() as server:
        assert "--towers image,text" in await to_thread.run_sync(use, server.url)


async def test_a_search_that_fails_is_explained_on_the_page(album: Path, tmp_path: Path) -> None:
    def use(url: str, folder: Path) -> tuple[Any, str]:
        process = Process(str(folder), "--url", url, "--transfer", "original", "--store", str(tmp_path / "store"))
        state, page = process.state(), process.get("/")
        assert process.end(signal.SIGTERM)[0] == 143
        return state, page

    async with FakeTriton() as server:
        server.answer_always(Reply(status=grpc.StatusCode.INTERNAL, details="the model is broken"))
        state, page = await to_thread.run_sync(use, server.url, album)
        assert (state["phase"], server.url.rpartition("/")[2] in state["error"]) == ("failed", True), state
        assert server.url.rpartition("/")[2] in page
        (tmp_path / "empty").mkdir()
        state, _ = await to_thread.run_sync(use, server.url, tmp_path / "empty")
        assert state["error"] == "there is no photo to compare in the given paths"


async def test_a_port_that_is_taken_is_named(album: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        async with FakeTriton() as server:
            where = [str(album), "--url", server.url, "--store", str(tmp_path / "store")]
            command = ["review", "--no-browser", "--port", port, *where]
            assert await to_thread.run_sync(main, command) == 1
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
