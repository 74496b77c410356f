"""Files that a walk passes over are counted, and what looks like a photo by its ending is not passed over."""

from __future__ import annotations

import io
import json
from typing import TYPE_CHECKING

import pytest
from rich.console import Console

from clip_client.cli.main import main
from clip_client.dedup import DuplicateReport, scan, thresholds_for
from clip_client.dedup.features.preview import thumbnail
from clip_client.dedup.files import scanner
from clip_client.dedup.reporting.html import write_page
from clip_client.dedup.reporting.terminal import print_notes
from preprocess_ensemble.imaging.decode import decode
from tests.fixtures.albums import MODEL, write
from tests.fixtures.images import image_files

if TYPE_CHECKING:
    from pathlib import Path

JPEG = image_files.jpeg()
PPM = image_files.encoded(image_files.picture(), "PPM")
PGM = image_files.encoded(image_files.picture("L"), "PPM")
PBM = image_files.encoded(image_files.picture("1"), "PPM")
QOI = image_files.encoded(image_files.picture(), "QOI")


@pytest.mark.parametrize(
    ("ending", "data"),
    [(".ppm", PPM), (".pnm", PPM), (".pgm", PGM), (".pbm", PBM), (".qoi", QOI), (".mpo", JPEG), (".png", JPEG)],
)
def test_every_format_that_is_read_is_searched(ending: str, data: bytes, tmp_path: Path) -> None:
    photo = write(tmp_path / f"a{ending}", data)
    assert scan([tmp_path]).photos == (str(photo),)
    assert decode(data).size == (64, 48)


@pytest.mark.parametrize("ending", [".hif", ".heic", ".jxl"])
def test_photos_that_cannot_be_read_are_found_all_the_same(ending: str, tmp_path: Path) -> None:
    assert scan([write(tmp_path / f"a{ending}", b"x").parent]).photos == (str(tmp_path / f"a{ending}"),)


def test_other_files_are_counted_by_kind(tmp_path: Path) -> None:
    for name in (
        "notes.txt",
        "sub/more.TXT",
        "film.mov",
        "lone.xmp",
        "a.jpg.txt",
        "README",
        "letter to Dr. Who",
        ".x.txt",
    ):
        write(tmp_path / name, b"text")
    write(tmp_path / "real.txt", JPEG)  # the ending is believed
    for name in ("b.jpg", "b.xmp", "b.mov", "b.jpg.xmp", "raw.nef", "raw.xmp"):
        write(tmp_path / name, b"x")
    assert scan([tmp_path], raw=True).skipped == {
        ".txt": 4,
        ".mov": 1,
        ".xmp": 1,
        "no ending": 1,
        "other endings": 1,
    }
    assert scan([tmp_path]).skipped[".nef"] == 1
    assert scan([tmp_path], include_hidden=True).skipped[".txt"] == 5


def test_images_whose_ending_does_not_say_so_are_counted_by_their_format(tmp_path: Path) -> None:
    for name in ("a.jpg_large", "b.dat", "download"):
        write(tmp_path / name, JPEG)
    write(tmp_path / "c.dat", b"\0\0\0\x18ftypheic\0\0\0\0mif1heic")
    write(tmp_path / "d.dat", b"\0\0\0\x18ftypisom")  # a film
    write(tmp_path / "e.dat", b"")
    named = write(tmp_path / "named.dat", JPEG)
    found = scan([tmp_path, named])
    assert found.photos == (str(named),)
    assert found.skipped == {
        ".dat": 2,
        "HEIC image with the ending .dat": 1,
        "JPEG image with no ending": 1,
        "JPEG image with the ending .dat": 1,
        "JPEG image with the ending .jpg_large": 1,
    }


def test_few_files_are_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scanner, "_MOST_OPENED", 3)
    for number in range(5):
        write(tmp_path / f"{number}.dat", JPEG)
    assert scan([tmp_path]).skipped == {"JPEG image with the ending .dat": 3, ".dat": 2}


def test_every_output_says_what_was_skipped() -> None:
    skipped = {".txt": 1200, **{f".e{number:02}": 1 for number in range(12)}}
    report = DuplicateReport(
        model=MODEL, thresholds=thresholds_for(MODEL), compared=9, groups=(), failed=(), skipped=skipped
    )
    said = "1,212 files skipped, not named like photos: 1,200 .txt, 1 .e00,"
    assert json.loads(report.to_json())["skipped"] == skipped
    page, terminal = io.BytesIO(), io.StringIO()
    write_page(report, page, thumbnail=thumbnail)
    print_notes(report, Console(file=terminal, width=80))
    for output in (page.getvalue().decode(), terminal.getvalue()):
        assert said in output
        assert "1 .e10, 1 more kind" in output


def test_a_search_that_finds_no_photo_says_what_it_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path / "photo.dat", JPEG)
    said = "1 file skipped, not named like photos: 1 JPEG image with the ending .dat"
    assert main(["dedup", str(tmp_path), "--store", str(tmp_path / "store")]) == 1
    assert said in capsys.readouterr().err
    assert main(["embed", str(tmp_path), "--output", str(tmp_path / "vectors.npz")]) == 1
    assert said in capsys.readouterr().out
