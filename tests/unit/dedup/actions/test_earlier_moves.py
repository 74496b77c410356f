"""What an earlier version moved is proved again from the files: purge keeps what fails, and undo brings it back."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from PIL import Image

from clip_client.cli.main import main
from clip_client.dedup import Store
from clip_client.dedup.actions.apply import apply
from clip_client.dedup.compare.proofs import prove_again
from clip_client.dedup.types import EXACT, RE_ENCODED, SAME_PIXELS, SIMILAR
from tests.fixtures.albums import member, planned, report

if TYPE_CHECKING:
    from pathlib import Path

COPIES = ("same bytes.png", "same pixels.bmp", "another pixel.bmp")


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """A picture, and three files that were moved as copies of it, of which the last is none."""
    folder = tmp_path / "photos"
    folder.mkdir()
    picture = Image.linear_gradient("L").resize((64, 48)).convert("RGB")
    picture.save(folder / "kept.png")
    (folder / COPIES[0]).write_bytes((folder / "kept.png").read_bytes())
    picture.save(folder / COPIES[1])
    picture.putpixel((40, 20), (255, 0, 0))
    picture.save(folder / COPIES[2])
    return folder


def moved(photos: Path, store: Path, *, is_earlier: bool = True, tier: str = RE_ENCODED) -> None:
    with Store(store) as opened:
        plan = planned(report(tuple(member(photos / name) for name in ("kept.png", *COPIES))), [photos])
        apply(replace(plan, moves=tuple(replace(move, tier=tier) for move in plan.moves)), opened.journal)
    if is_earlier:
        with closing(sqlite3.connect(store / "journal.sqlite")) as connection, connection:
            connection.execute("UPDATE units SET tier = '', proof = 0")


def test_purge_keeps_what_is_not_proved_and_undo_brings_it_back(
    photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    where = ["--store", str(tmp_path / "store")]
    moved(photos, tmp_path / "store")
    assert main(["undo", "--suspects", "--list", *where]) == 0
    _, _, line = capsys.readouterr().out.splitlines()
    assert str(photos / COPIES[2]) in line
    sent: list[str] = []
    monkeypatch.setattr("send2trash.send2trash", sent.append)
    assert main(["purge", "--yes", *where]) == 1
    assert [path.rpartition("/")[2] for path in sent] == list(COPIES[:2])
    said = capsys.readouterr()
    assert said.out.splitlines()[-1] == "2 photos in the system's trash"
    assert said.err.startswith(
        f"not done: {photos / COPIES[2]}: An earlier version moved it for {photos / 'kept.png'}, "
    )
    assert "or all such photos with: clip-client undo --suspects" in said.err
    assert main(["undo", "--suspects", *where]) == 0
    assert (photos / COPIES[2]).exists()
    assert main(["undo", "--suspects", *where]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "1 photo restored",
        "for each photo in the quarantine, a photo is left that is proved to show the same",
    ]


@pytest.mark.parametrize("tier", [RE_ENCODED, SIMILAR])
def test_what_this_version_moved_is_as_a_person_asked_for_it(
    photos: Path, tmp_path: Path, tier: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    where = ["--store", str(tmp_path / "store")]
    moved(photos, tmp_path / "store", is_earlier=False, tier=tier)
    monkeypatch.setattr("send2trash.send2trash", lambda _path: None)
    assert main(["undo", "--suspects", *where]) == 0
    assert main(["purge", "--yes", *where]) == 0


def test_suspects_are_not_chosen_by_path(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["undo", "--suspects", "1.jpg", "--store", str(tmp_path)]) == 2
    assert "leave out the PATH" in capsys.readouterr().err


def test_bytes_and_pixels_prove_a_copy_and_files_without_them_nothing(photos: Path) -> None:
    kept, *copies = (str(photos / name) for name in ("kept.png", *COPIES))
    assert [prove_again(kept, copy) for copy in copies] == [EXACT, SAME_PIXELS, ""]
    for name in ("text.jpg", "other.jpg", "empty.jpg"):
        (photos / name).write_bytes(b"" if name == "empty.jpg" else name.encode())
    for pair in (("text.jpg", "other.jpg"), ("empty.jpg", "empty.jpg"), ("gone.jpg", "kept.png")):
        kept, copy = (str(photos / name) for name in pair)
        assert prove_again(kept, copy) == ""
