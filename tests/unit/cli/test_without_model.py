"""``dedup --without-model``: bytes, pixels, perceptual hashes and alignment need neither a model nor a network."""

import contextlib
import csv
import json
import os
import pty
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from PIL import Image

from clip_client.cli.main import main
from clip_client.dedup.types import NO_MODEL
from tests.fixtures.albums import refusing, write
from tests.fixtures.commands import Run
from tests.fixtures.images.camera_files import packet
from tests.fixtures.images.image_files import jpeg
from tests.fixtures.images.scenes import scene


def test_copies_are_found_and_moved_and_the_output_names_no_model(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLIP_URL", "127.0.0.1:1")  # no server is asked
    (photos := tmp_path / "photos").mkdir()
    (picture := scene(1, (640, 480))).save(photos / "a.jpg", quality=95)
    (photos / "b.jpg").write_bytes((photos / "a.jpg").read_bytes())
    picture.resize((320, 240), Image.Resampling.LANCZOS).save(photos / "half.jpg", quality=90)
    scene(2, (640, 480)).save(photos / "other.jpg")
    words = ["dedup", str(photos), "--without-model", "--store", str(tmp_path / "store")]
    files = ["--json", str(tmp_path / "found.json"), "--csv", str(tmp_path / "found.csv")]
    said = run(main, *words, *files, "--report", tmp_path / "page.html").err
    assert "Searched without a model: crops and heavy edits may be missing." in said
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["model"] == NO_MODEL
    (group,) = found["groups"]
    moves = {(member["tier"], member["verdict"]["moves"]) for member in group["members"][1:]}
    assert moves == {("exact", "by default"), ("re-encoded", "by default")}
    rows = csv.DictReader((tmp_path / "found.csv").read_text().splitlines())
    cosines = [group["min_similarity"], *(member["similarity"] for member in group["members"])]
    assert (cosines, [row["similarity"] for row in rows]) == ([None] * 4, [""] * 3), "nothing computed one"
    page = (tmp_path / "page.html").read_text()
    assert re.search("<h1>2 photos, .*, can move safely</h1>", page)
    assert "1.0000" not in page
    assert "without a model" in page
    assert "<code>none</code>" not in page
    before = sorted(photos.iterdir())
    assert main([*words, "--apply", "--dry-run"]) == 0
    assert sorted(photos.iterdir()) == before
    assert main([*words, "--apply", "--report", str(tmp_path / "page.html")]) == 0
    assert re.search("<h1>This search moves 2 photos, .*</h1>", (tmp_path / "page.html").read_text())
    assert len(list(photos.glob("*.jpg"))) == 2


def test_a_machine_without_a_model_is_told_of_it(tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if ONNX Runtime cannot be imported, or not in time: the model is looked for first."""
    monkeypatch.setenv("CLIP_REPOSITORY", str(tmp_path / "none"))
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    photo = write(tmp_path / "a.jpg", b"x")
    said = run(main, "dedup", photo, "--url", "auto:127.0.0.1:1", "--store", tmp_path / "store", code=1).err
    assert "no model is on this machine, and no server responds at 127.0.0.1:1: search without any model" in said


def test_what_only_a_copy_says_is_saved_if_the_command_says_so(tmp_path: Path) -> None:
    write(tmp_path / "photos" / "a.jpg", jpeg())
    write(tmp_path / "photos" / "b.jpg", jpeg(xmp=packet('xmp:Rating="5">')))
    words = ["dedup", str(tmp_path / "photos"), "--without-model", "--store", str(tmp_path / "store"), "--apply"]
    for more, left in (([], {"a.jpg", "b.jpg"}), (["--merge-metadata"], {"a.jpg", "a.jpg.xmp"})):
        assert main([*words, "--keep", "path=*/a.jpg", *more]) == 0
        assert {path.name for path in (tmp_path / "photos").iterdir() if path.is_file()} == left


@pytest.mark.parametrize(("option", "first", "rows"), [("--json", "{", None), ("--csv", "group,kept,tier,path,", 3)])
def test_what_standard_output_is_named_for_is_alone_there(
    search: list[str], option: str, first: str, rows: int | None, run: Run
) -> None:
    printed = run(main, *search, option, "-", "--quiet")
    assert (printed.out.startswith(first), printed.err) == (True, "")
    assert len(json.loads(printed.out)["groups"]) == 1 if rows is None else printed.out.count("\n") == rows


def shown_in_terminal(command: Sequence[str]) -> list[str]:
    """Run a command in a terminal of 200 columns; return the lines of its standard output."""
    ours, theirs = pty.openpty()
    environment = {**os.environ, "COLUMNS": "200", "TERM": "dumb"}
    words = [sys.executable, "-m", "clip_client", *command]
    with subprocess.Popen(words, stdout=theirs, stderr=subprocess.DEVNULL, env=environment):
        os.close(theirs)
        said = b""
        with contextlib.suppress(OSError):  # Linux raises when the other side is closed
            while part := os.read(ours, 65536):
                said += part
        os.close(ours)
    return said.decode().splitlines()


def test_a_terminal_shows_the_groups_in_plain_words(search: list[str]) -> None:
    lines = shown_in_terminal(search)
    head, _, members = "\n".join(lines).partition("   keep ")
    assert re.fullmatch(r"1\. .* to free in 1 copy: identical, byte for byte;? kept: .*", " ".join(head.split()))
    assert members.splitlines()[1].split()[0] == "copy"
    assert "--apply would move 1 photo" in lines[-1]


def test_a_terminal_says_once_why_a_photo_stays(search: list[str]) -> None:
    said = "\n".join(shown_in_terminal([*search, "--reference", search[1]]))
    assert "It is in a reference folder." in said
    assert "--dry-run says why" not in said
    assert "--apply would move nothing" in said


def test_a_terminal_shows_what_a_person_chose_and_not_what_the_search_suggests(search: list[str], run: Run) -> None:
    one, other = (str(path) for path in sorted(Path(search[1]).iterdir()))
    for kept, moves in ((one, other), (other, one)):
        run(main, "decide", "keep", kept, moves, *search[3:])
        said = "\n".join(shown_in_terminal([*search, "--act-on", "chosen"]))
        assert f"would move: {moves}; kept: {kept}" in said
        assert ("   keep " in said, "would move 1 photo" in said) == (False, True)


def test_a_search_of_no_picture_fails_and_lists_why(tmp_path: Path, run: Run) -> None:
    text = write(tmp_path / "text.jpg", b"This is no image.")
    words = ["dedup", text, "--without-model", "--store", tmp_path / "store", "--report", tmp_path / "page.html"]
    output = run(main, *words, code=1)
    assert (output.out, "NOT_AN_IMAGE" in output.err, "no photo to compare" in output.err) == ("", True, True)
    assert "0 photos compared, 1 file not compared" in output.err
    assert "no duplicates" not in output.err
    assert "<h1>No photo was compared</h1>" in (tmp_path / "page.html").read_text()


def test_a_photo_alone_is_not_said_to_have_no_duplicates(tmp_path: Path, run: Run) -> None:
    scene(1).save(photo := tmp_path / "photo.png")
    output = run(main, "dedup", photo, "--without-model", "--store", tmp_path / "store")
    assert "1 photo compared, no other to compare it with" in output.err


def test_files_compared_by_bytes_only_count_apart(tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    data = jpeg()
    for name, some in (("a", data[:-40]), ("b", data[:-40]), ("c", data[:-50]), ("d", b"no image"), ("e", b"no image")):
        write(tmp_path / "photos" / f"{name}.jpg", some)
    write(tmp_path / "photos" / "closed" / "f.jpg", data)
    refused = PermissionError(13, "Permission denied")  # root may look everywhere
    monkeypatch.setattr(os, "scandir", refusing(os.scandir, refused, tmp_path / "photos" / "closed"))
    words = ["dedup", tmp_path / "photos", "--without-model", "--store", tmp_path / "store"]
    said = run(main, *words, "--report", tmp_path / "page.html").err
    left_out = "2 files compared by bytes only, 3 files not compared, 1 folder not read"
    assert f"0 photos compared, 1 group, {left_out}" in said
    assert left_out in (tmp_path / "page.html").read_text()
