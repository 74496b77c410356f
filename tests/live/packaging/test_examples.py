"""The notebook and the scripts in examples/, and the code in docs/client.md, do what they say with the small model."""

import ast
import asyncio
import contextlib
import io
import json
import runpy
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from benchmarks.fixtures.server import Server, free_port
from tests.fixtures.packaging.pages import programs
from tests.paths import ROOT

EXAMPLES = ROOT / "examples"


@pytest.fixture
def album(photos: Path, tmp_path: Path) -> Path:
    """Five photos, and a file that is not an image."""
    album = tmp_path / "album"
    album.mkdir()
    for path in sorted(photos.iterdir())[:5]:
        shutil.copy(path, album)
    (album / "text.jpg").write_bytes(b"no image")
    return album


@contextlib.contextmanager
def running(*command: object, **environment: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, *map(str, command)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=ROOT,
        env={"PATH": "", **environment},
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


def run_script(name: str, monkeypatch: pytest.MonkeyPatch, *arguments: object) -> None:
    monkeypatch.setattr("sys.argv", [name, *map(str, arguments)])
    runpy.run_path(str(EXAMPLES / name), run_name="__main__")


def test_similar_photos(
    server: Server, album: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    photo = next(album.glob("astronaut.*"))
    command = (album, photo, "--vectors", tmp_path / "vectors", "--url", server.grpc_url, "--top", 2)
    run_script("similar_photos.py", monkeypatch, *command)
    first, *answer = capsys.readouterr().out.splitlines()
    assert first == "6 new photos, 1 of them cannot be read"
    assert answer[0] == str(photo)
    assert answer[1].split() == ["1.0000", str(photo)]
    assert len(answer) == 3

    run_script("similar_photos.py", monkeypatch, *command)
    assert capsys.readouterr().out.splitlines() == answer, "nothing is embedded again"
    run_script("similar_photos.py", monkeypatch, album, album / "text.jpg", *command[2:])
    assert "NOT_AN_IMAGE" in capsys.readouterr().out


def test_folder_watcher(server: Server, album: Path, tmp_path: Path) -> None:
    options = ("--url", server.grpc_url, "--every", 0.05, "--at-least", 0.999)
    with running(EXAMPLES / "folder_watcher.py", album, *options) as watcher:
        assert watcher.stdout is not None
        lines = iter(watcher.stdout.readline, "")
        assert "NOT_AN_IMAGE" in next(lines)
        assert next(lines) == "watching 5 photos\n"
        photo = next(album.glob("astronaut.*"))
        shutil.copy(photo, tmp_path / "copy.png")
        (tmp_path / "copy.png").rename(album / "copy.png")
        assert next(lines) == f"{album / 'copy.png'} looks like {photo} (1.0000)\n"


def test_fastapi_service(server: Server, album: Path) -> None:
    pytest.importorskip("fastapi")
    port = free_port()
    command = ("-m", "uvicorn", "--app-dir", EXAMPLES, "fastapi_service:app", "--port", port)
    with (
        running(*command, CLIP_URL=server.grpc_url) as service,
        httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as http,
    ):
        health = None
        while health is None:
            assert service.poll() is None, service.stdout and service.stdout.read()
            with contextlib.suppress(httpx.ConnectError):
                health = http.get("/health")
            time.sleep(0.05)
        assert (health.status_code, health.json()["ok"]) == (200, True)
        answer = http.post("/embed", files={"photo": next(album.glob("astronaut.*")).read_bytes()})
        assert (answer.status_code, len(answer.json()["vector"])) == (200, 512)
        assert answer.json()["vector_id"].startswith(health.json()["model"])
        answer = http.post("/embed", files={"photo": b"no image"})
        assert (answer.status_code, answer.json()["code"]) == (422, "NOT_AN_IMAGE")


def run_cells(cells: list[Any], **parameters: object) -> list[str]:
    """Run code cells as Jupyter does, and return what each shows."""
    names: dict[str, Any] = {"__name__": "__main__"}
    shown = []
    for cell in cells:
        steps, last = ast.parse("".join(cell["source"])).body, None
        if isinstance(steps[-1], ast.Expr):
            last = ast.Expression(steps.pop().value)  # type: ignore[attr-defined]
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            exec(compile(ast.Module(steps, []), "<cell>", "exec"), names)
            value = eval(compile(last, "<cell>", "eval"), names) if last else ""
        shown.append(printed.getvalue() or repr(value))
        if "parameters" in cell["metadata"].get("tags", ()):
            names.update(parameters)
    return shown


def test_notebook(tiny_repository: Path, album: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    notebook = json.loads((EXAMPLES / "first_steps.ipynb").read_text(encoding="utf-8"))
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert [(cell["outputs"], cell["execution_count"]) for cell in cells] == [([], None)] * len(cells), "results"
    monkeypatch.chdir(tmp_path)
    shutil.copy(next(album.glob("astronaut.*")), album / "copy.png")

    async def in_a_loop() -> list[str]:  # as in Jupyter
        return run_cells(cells, PHOTOS=str(album), URL=f"local:{tiny_repository}")

    _, model, batch, errors, table, similar, loaded, duplicates, closed = asyncio.run(in_a_loop())
    assert model.startswith("ModelInfo('tiny_clip/random:0@")
    assert batch.startswith("EmbeddingBatch(7 x 512 float32, 1 failed, ")
    assert "NOT_AN_IMAGE" in errors
    assert "vector: fixed_size_list<" in table
    assert similar.startswith("1.000  ")
    assert len(similar.splitlines()) == 5
    assert loaded == batch
    assert duplicates.startswith("exact ")
    assert "[closed]" in closed


def test_python_on_the_client_page_runs(
    tiny_pair_repository: Path,
    album: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    photos = sorted(album.iterdir())
    shutil.copy(photos[0], "photo.jpg")

    async def run(block: str) -> None:
        names = {"images": photos, "source": photos, "photos": photos, "lines": ["a dog", "a cat"]}
        waiting = eval(compile(block, "client.md", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT), names)
        if waiting is not None:
            await waiting

    for _, code, _ in programs("client.md", __file__):
        asyncio.run(run(code.replace("localhost:8001", f"local:{tiny_pair_repository}")))
    printed = capsys.readouterr().out.splitlines()
    assert printed[0] == f"1.0000 {photos[0]}"
    assert len(printed) == 5
