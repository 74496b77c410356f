"""``clip-client search`` with a server whose vectors are those of the bytes: what is printed, and what is refused."""

import csv
import hashlib
import io
import json
import os
import select
import shutil
import subprocess
import sys
import termios
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from clip_client.cli.main import main
from clip_client.testing import FakeTriton
from tests.fixtures.commands import Printed, Run
from tests.fixtures.fakes import Serve
from tests.fixtures.images.image_files import encoded, picture
from tests.fixtures.packaging.pages import programs

COLOURS = {"red": (255, 0, 0), "green": (0, 255, 0), "blue": (0, 0, 255)}


def vector(data: bytes) -> NDArray[np.float32]:
    """Return the colour of a picture, or the one that a text names; a text that names none has a direction."""
    try:
        colour = np.asarray(Image.open(io.BytesIO(data)).convert("RGB").resize((1, 1)), np.float32).ravel()
    except UnidentifiedImageError:
        words = data.decode().split()
        named = [COLOURS[word] for word in words if word in COLOURS]
        seed = int.from_bytes(hashlib.sha256(data).digest()[:4], "little")
        colour = np.asarray(np.sum(named, axis=0) if named else np.random.default_rng(seed).normal(size=3), np.float32)
    unit: NDArray[np.float32] = np.asarray(colour / np.linalg.norm(colour), np.float32)
    return unit


@pytest.fixture(scope="module")
def server(serve: Serve) -> FakeTriton:
    return serve(FakeTriton(dimension=3, vector=vector, has_text=True))


@pytest.fixture
def album(tmp_path: Path) -> Path:
    folder = tmp_path / "album"
    folder.mkdir()
    for name, colour in {**COLOURS, "yellow": (255, 255, 0), "pink": (255, 90, 90)}.items():
        tinted = np.asarray(picture(seed=len(name)).convert("L"))[..., None] / 255 * 0.2 + 0.8
        pixels = Image.fromarray((tinted * np.array(colour)).astype(np.uint8))
        (folder / f"{name}.png").write_bytes(encoded(pixels, "PNG"))
    shutil.copy(folder / "red.png", folder / "red again.png")
    return folder


@pytest.fixture
def run(run: Run, server: FakeTriton, tmp_path: Path) -> Run:
    """Run a command that ends with this code, and return what it prints."""

    def with_server(command: str, *words: object, code: int = 0) -> Printed:
        store = [] if command == "embed" else ["--store", tmp_path / "store"]
        return run(main, command, "--url", server.url, *store, *words, code=code)

    return with_server


def names(printed: str) -> list[str]:
    return [os.path.basename(line.split("\t")[1]) for line in printed.splitlines()]


def test_a_folder_is_embedded_first_and_once(run: Run, server: FakeTriton, album: Path) -> None:
    printed = run("search", "a", "red", "thing", album)
    assert names(printed.out)[:2] == ["red.png", "pink.png"]
    assert printed.out.splitlines()[0].endswith("\t\t1")
    assert "weights of this model are random" in printed.err
    assert "5 pictures, of 5 different files compared" in printed.err  # of six files
    said = run("search", "red", "--since", "1999", code=1).err
    assert "There is no photo that fits" in said
    assert "5 different files left out by --since: 5 have no date" in said
    before = len([one for one in server.requests if one.model == "clip_image"])
    assert names(run("search", "green", "+", "red", "--in", album).out)[0] == "yellow.png"
    assert names(run("search", "red").out)[0] == "red.png"  # all that the store knows
    assert names(run("search", "red", "--in", album / "red again.png").out) == ["red again.png"]  # a longer name
    assert len([one for one in server.requests if one.model == "clip_image"]) == before


def test_files_that_are_no_photos_are_counted_by_kind(run: Run, album: Path) -> None:
    for name in ("notes.txt", "more.txt", "film.mov"):
        (album / name).touch()
    said = run("search", "red", album, "--json", "-")
    assert json.loads(said.out)["skipped"] == {".txt": 2, ".mov": 1}
    assert "3 files skipped, not named like photos: 2 .txt, 1 .mov" in said.err


def test_each_output_has_the_same_pictures(run: Run, album: Path, tmp_path: Path) -> None:
    plain = names(run("search", "red", album).out)
    found: dict[str, Any] = json.loads(run("search", "red", "--json", "-").out)
    assert [os.path.basename(one["path"]) for one in found["photos"]] == plain
    assert [os.path.basename(path) for path in found["photos"][0]["copies"]] == ["red again.png"]
    assert (found["photos"][0]["format"], found["compared"], found["is_random"]) == ("PNG", 5, True)
    rows = list(csv.DictReader(run("search", "red", "--csv", "-", "--copies").out.splitlines()))
    assert [os.path.basename(row["path"]) for row in rows if not row["copy_of"]] == plain
    assert [os.path.basename(row["path"]) for row in rows if row["copy_of"]] == ["red again.png"]
    page = tmp_path / "page.html"
    printed = run("search", "red", album, "--copies", "--report", page).out
    assert sorted(names(printed)) == sorted([*plain, "red again.png"])
    assert page.read_text().count("<img") == 5
    assert "<title>red</title>" in page.read_text(), "the folder is not a part of the query"
    assert json.loads(run("search", "red", album, "--json", "-").out)["query"] == "red"


def test_a_camera_writes_nothing_to_the_terminal_but_its_name(run: Run, album: Path) -> None:
    exif = Image.Exif()
    exif[0x0110] = "A\x1b[31mB\nC"
    (album / "camera.png").write_bytes(encoded(picture(), "PNG", exif=exif))
    rows = list(csv.DictReader(run("search", "red", album, "--csv", "-").out.splitlines()))
    assert {row["camera"] for row in rows} == {"", r"A[31mB\nC"}


def test_a_terminal_shows_a_table_and_small_pictures(server: FakeTriton, album: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "clip_client", "search", "red", str(album), "--top", "2", "--preview", "--copies"]
    # A parent that has imported readline gives its children a COLUMNS, which would override the terminal's size.
    environment = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
    reader, writer = os.openpty()
    printed = b""
    for rows in (30, 0):  # as a serial line says it
        termios.tcsetwinsize(writer, (rows, 250))
        options = ["--url", server.url, "--store", str(tmp_path / "store")]
        with subprocess.Popen(
            [*command, *options], stdin=writer, stdout=writer, stderr=writer, env=environment
        ) as process:
            while process.poll() is None or select.select([reader], [], [], 0.1)[0]:
                if select.select([reader], [], [], 0.1)[0]:
                    printed += os.read(reader, 65536)
        assert process.returncode == 0, printed.decode()
    text = printed.decode()
    assert "red.png" in text
    assert text.count("+1 copy") == 2, text
    assert "▀" in text
    assert "Traceback" not in text


def test_null_ends_each_path_of_a_query_of_photos_words_signs_and_weights(run: Run, album: Path) -> None:
    printed = run("search", album / "yellow.png", "-", "2:green", album, "--null", "--top", "2").out
    assert printed.split("\0") == [str(album / "red.png"), str(album / "pink.png"), ""]


def test_vectors_that_embed_wrote_are_searched_by_path(run: Run, album: Path, tmp_path: Path) -> None:
    vectors = tmp_path / "vectors.parquet"
    run("embed", album, "--output", vectors)
    assert names(run("search", "blue", vectors, "--top", "1").out) == ["blue.png"]
    assert names(run("similar", album / "red.png", "--in", vectors, "--top", "2").out) == ["red again.png", "pink.png"]
    said = run("search", "blue", vectors, "--camera", "x", code=1).err
    assert "files of vectors can be filtered only by --in-folder" in said
    assert "which can only be searched alone" in run("search", "blue", vectors, "--in", album, code=2).err


def test_the_example_fills_a_database_and_searches_it(
    run: Run, server: FakeTriton, album: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """docs/search.md, with the local mode of qdrant-client in the place of a server."""
    monkeypatch.chdir(album.parent)
    (album / "damaged.png").touch()
    run("embed", album, "--output", "vectors.parquet")
    ((_, code, _),) = programs("search.md", __file__)
    assert code.count("\n") <= 15
    for there, here in (("http://localhost:6333", ":memory:"), ("localhost:8001", server.url), ("dog", "red")):
        code = code.replace(there, here)
    exec(code, {})
    found = [line.partition(" ")[2] for line in capsys.readouterr().out.splitlines()]
    assert sorted(map(os.path.basename, found[:2])) == ["red again.png", "red.png"]
    assert (os.path.basename(found[2]), len(found)) == ("pink.png", 6)


@pytest.mark.parametrize("command", ["search", "similar"])
def test_a_damaged_photo_is_named_before_any_is_embedded(command: str, run: Run, album: Path, tmp_path: Path) -> None:
    (tmp_path / "empty.jpg").touch()
    said = run(command, tmp_path / "empty.jpg", "--in", album, code=1).err
    assert "empty.jpg cannot be searched for: " in said
    assert not (tmp_path / "store" / "vectors").exists()


def test_a_model_without_a_text_tower_says_so_before_new_photos_are_embedded(
    run: Run, serve: Serve, album: Path, tmp_path: Path
) -> None:
    said = run("search", "red", album, "--url", serve(FakeTriton()).url, code=1).err
    assert "--towers image,text" in said
    assert not (tmp_path / "store" / "vectors").exists()


def test_what_is_called_like_a_word_is_one(run: Run, album: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (album / "red").mkdir()
    (album / "blue").touch()
    monkeypatch.chdir(album)
    assert run("search", "blue", "red", ".").err.splitlines()[-2:] == [
        "clip-client: blue is searched for as a word; write ./blue for the file of that name",
        "clip-client: red is searched for as a word; write ./red for the folder of that name",
    ]
    (album / "24").mkdir()
    assert run("search", "24/7", ".").err.endswith("24/7 is searched for as words; there is no such file or folder\n")
    run("search", "black/white", ".")
    assert "there is no file or folder red/nothing like it" in run("search", "red/nothing like it", code=1).err


def test_a_folder_with_a_space_in_its_name_is_a_place_unless_its_words_are_given_one_by_one(
    run: Run, album: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody who writes quotation marks around a name that exists means the folder."""
    monkeypatch.chdir(album.parent)
    (album.parent / "dark blue").mkdir()
    shutil.copy(album / "red.png", album.parent / "dark blue" / "only.png")
    found = run("search", "dark", "dark blue")
    assert names(found.out) == ["only.png"]
    note = "clip-client: dark blue is searched as a folder; without quotation marks it would be words"
    assert found.err.splitlines()[-1] == note
    assert len(names(run("search", "dark", "blue", "--in", album).out)) > 1
    assert note not in run("search", "dark", "./dark blue").err
    assert names(run("search", "2:dark blue", "--in", "dark blue").out) == ["only.png"], "a weight is of words"
    note = "clip-client: there is no folder drak blue; did you mean 'dark blue'? It is searched for as words."
    assert run("search", "drak blue", "--in", album).err.splitlines()[-1] == note
    nothing_else = run("search", "dark blue", code=1).err.splitlines()
    assert nothing_else[0].startswith("clip-client: dark blue is searched as a folder")
    assert "the query is empty" in nothing_else[1]
