"""Which files are photos, which are passed over and counted, and what stops no walk."""

import io
import itertools
import json
import os
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from clip_client.dedup import FailedFile, scan
from clip_client.dedup.files import scanner
from clip_client.dedup.files.directories import DirectorySet
from clip_client.dedup.files.file_types import PHOTO_SUFFIXES
from clip_client.dedup.files.reading import has_sha256, hash_file, read_file
from clip_client.dedup.pages.html import write_page
from clip_client.dedup.pages.terminal import print_notes
from clip_client.dedup.types import PREVIEWS_MARK, QUARANTINE_NAME, PhotoFile
from preprocess_ensemble.imaging.formats import FORMATS
from tests.fixtures import members
from tests.fixtures.albums import refusing, then, without_inodes
from tests.fixtures.commands import Said
from tests.fixtures.images.image_files import jpeg


def write(path: Path, data: bytes = b"x") -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return str(path)


WALKS: dict[str, tuple[str, dict[str, Any], str, str]] = {
    # The files that are there, options, which path is searched, and what is found.
    "photos by their endings": ("a.jpg sub/b.JPEG sub/deeper/c.webp z.heic notes.txt sub/film.mov", {}, "",
                                "a.jpg sub/b.JPEG sub/deeper/c.webp z.heic"),
    "a named file whatever it is called": (".hidden-without-ending", {}, ".hidden-without-ending",
                                           ".hidden-without-ending"),
    "no hidden names": (".a.jpg .cache/b.jpg", {}, "", ""),
    "hidden names": (".a.jpg .cache/b.jpg", {"include_hidden": True}, "", ".a.jpg .cache/b.jpg"),
    "a named folder that is hidden": (".a.jpg .cache/b.jpg", {}, ".cache", ".cache/b.jpg"),
    "a folder called like a photo": ("album.jpg/a.jpg", {}, "", "album.jpg/a.jpg"),
    "no previews of a page": (f"a.jpg b/{PREVIEWS_MARK} b/{'0' * 32}-320.jpg b/{'f' * 64}-small.jpg",
                              {"include_hidden": True}, "", "a.jpg"),
    "a person's photos among previews": (f"b/{PREVIEWS_MARK} b/{'0' * 32}-320.jpg b/IMG_1.jpg b/c/0.jpg", {}, "b",
                                         "b/IMG_1.jpg b/c/0.jpg"),
    "photos that not every system reads": ("a.hif b.heic c.jxl", {}, "", "a.hif b.heic c.jxl"),
    "no RAW files": ("pair.jpg pair.CR2 alone.NEF", {}, "", "pair.jpg"),
    "RAW files that belong to no photo": ("pair.jpg pair.CR2 pair.jpg.dng alone.NEF two.heic two.jpg two.arw",
                                          {"raw": True}, "", "alone.NEF pair.jpg two.heic two.jpg"),
    "a named RAW file": ("pair.jpg pair.CR2", {}, "pair.CR2", "pair.CR2"),
}  # fmt: skip


@pytest.mark.parametrize(("there", "options", "searched", "found"), WALKS.values(), ids=WALKS)
def test_a_walk_finds(there: str, options: dict[str, Any], searched: str, found: str, tmp_path: Path) -> None:
    for one in there.split():
        write(tmp_path / one)
    assert scan([tmp_path / searched], **options).photos == tuple(str(tmp_path / one) for one in found.split())
    assert scan([tmp_path / searched], **options).failed == ()


def test_every_format_that_is_read_has_endings_that_are_searched() -> None:
    endings = {
        "JPEG": ".jpg .jpeg .jpe .jfif .mpo",
        "PNG": ".png",
        "WebP": ".webp",
        "GIF": ".gif",
        "TIFF": ".tif .tiff",
        "BMP": ".bmp",
        "AVIF": ".avif",
        "JPEG 2000": ".jp2",
        "PPM": ".ppm .pnm .pgm .pbm",
        "QOI": ".qoi",
        "HEIC": ".heic .heif .hif",
        "JPEG XL": ".jxl",
    }
    assert endings.keys() == {known.name for known in FORMATS if known.opener}
    assert set(" ".join(endings.values()).split()) == PHOTO_SUFFIXES


def test_one_path_or_many_in_any_order_have_the_photos_of_any_name(tmp_path: Path) -> None:
    names = [b"b/two words.jpg", "a/\U0001f468\u200d\U0001f469.jpg".encode(), b"a b/caf\xe9.jpg", b"a/line\nbreak.jpg"]
    for name in names:
        write(tmp_path / os.fsdecode(name))
    folders = [tmp_path / "b", tmp_path / "a b", tmp_path / "a"]
    assert scan(folders) == scan(reversed(folders))
    found = [os.path.relpath(os.fsencode(path), os.fsencode(tmp_path)) for path in scan(folders).photos]
    assert found == sorted(names)
    assert scan(tmp_path).photos == scan(str(tmp_path)).photos == scan(folders).photos
    with pytest.raises(TypeError, match="got bytes"):
        scan([b"\xff\xd8\xff"])  # type: ignore[list-item]


def test_no_link_leads_into_the_quarantine(tmp_path: Path) -> None:
    away = tmp_path / "photos" / QUARANTINE_NAME / "run"
    write(away / "a.jpg")
    links = {tmp_path / "folder": away, tmp_path / "photo.jpg": away / "a.jpg", tmp_path / "photos" / "run": away}
    for link, target in links.items():
        link.symlink_to(target)
    for paths in ([tmp_path], list(links)):
        found = scan(paths, follow_links=True)
        assert found.photos == ()
        assert {failure.path for failure in found.failed} == set(map(str, links))
        assert {failure.message for failure in found.failed} == {
            "It is in the quarantine; bring it back with: clip-client undo."
        }


def test_a_link_back_up_is_listed_and_ends_no_walk(tmp_path: Path) -> None:
    photo = write(tmp_path / "sub" / "a.jpg")
    (tmp_path / "sub" / "loop").symlink_to(tmp_path, target_is_directory=True)
    for follow_links in (False, True):
        found = scan([tmp_path], follow_links=follow_links)
        assert found.photos == (photo,)
        assert [failure.path for failure in found.failed] == [str(tmp_path / "sub" / "loop")]
        assert "back to a folder above" in found.failed[0].message


def test_links_to_folders_are_followed_only_when_told_and_end_the_walk(tmp_path: Path) -> None:
    write(tmp_path / "outside" / "a.jpg")
    (tmp_path / "inside").mkdir()
    link = tmp_path / "inside" / "link"
    link.symlink_to(tmp_path / "outside")
    failed = FailedFile(path=str(link), code="UNREADABLE", message="Links to folders are not followed.")
    found = scan([tmp_path / "inside"])
    assert (found.photos, found.failed) == ((), (failed,))
    assert scan([tmp_path / "inside"], follow_links=True).photos == (str(link / "a.jpg"),)
    assert scan([link]).photos == (str(link / "a.jpg"),)
    (tmp_path / "outside" / "back").symlink_to(tmp_path / "inside")
    found = scan([tmp_path], follow_links=True)
    assert (found.photos, found.failed) == ((str(tmp_path / "outside" / "a.jpg"),), ())


def test_one_file_under_several_names_is_one_photo(tmp_path: Path) -> None:
    photo = write(tmp_path / "m.jpg")
    (tmp_path / "a link.jpg").symlink_to(photo)
    (tmp_path / "z hard link.jpg").hardlink_to(photo)
    assert scan([tmp_path, tmp_path, photo]).photos == (photo,)


def test_files_without_inodes_are_told_apart_by_their_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    photos = write(tmp_path / "a" / "1.jpg"), write(tmp_path / "b" / "2.jpg")
    (tmp_path / "link").symlink_to(tmp_path / "a")
    without_inodes(monkeypatch)
    assert scan([tmp_path, tmp_path / "link", photos[1]], follow_links=True).photos == photos
    directories = DirectorySet([str(tmp_path / "link")])
    assert (directories.contains(photos[0]), directories.contains(photos[1])) == (True, False)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no FIFOs")
def test_special_files_are_listed_and_never_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkfifo(tmp_path / "pipe.jpg")
    os.mkfifo(tmp_path / "pipe")
    monkeypatch.chdir(tmp_path)  # a socket's path may have 107 bytes only
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("socket.jpg")
        found = scan([tmp_path, "/dev/null"])
    assert found.photos == ()
    kinds = {"pipe.jpg": "a FIFO", "pipe": "a FIFO", "socket.jpg": "a socket", "null": "a character device"}
    assert {os.path.basename(failure.path): failure.message for failure in found.failed} == {
        name: f"This is not a regular file but {kind}." for name, kind in kinds.items()
    }
    assert {failure.code for failure in found.failed} == {"UNREADABLE"}


def test_lists_what_is_not_there(tmp_path: Path) -> None:
    (tmp_path / "dangling.jpg").symlink_to(tmp_path / "nowhere.jpg")
    (tmp_path / "self.jpg").symlink_to("self.jpg")
    found = scan([tmp_path, tmp_path / "missing.jpg", "null\0byte.jpg"])
    assert found.photos == ()
    reasons = {os.path.basename(failure.path): failure.message for failure in found.failed}
    assert "No such file" in reasons["dangling.jpg"]
    assert "symbolic links" in reasons["self.jpg"]
    assert "No such file" in reasons["missing.jpg"]
    assert "null" in reasons["null\0byte.jpg"]


def test_walks_deeper_than_python_calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    depth = sys.getrecursionlimit() + 100
    monkeypatch.chdir(tmp_path)
    for _ in range(depth):
        os.mkdir("d")
        os.chdir("d")
    Path("a.jpg").write_text("x")
    found = scan([tmp_path])
    # Taken away again at once, because pytest's own cleaning up does call itself for each folder.
    os.remove("a.jpg")
    for _ in range(depth):
        os.chdir("..")
        os.rmdir("d")
    assert len(found.photos) == 1


def test_a_folder_that_cannot_be_listed_hurts_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    photo = write(tmp_path / "open" / "a.jpg")
    write(tmp_path / "closed" / "b.jpg")
    denied = PermissionError(13, "Permission denied")
    monkeypatch.setattr(os, "scandir", refusing(os.scandir, denied, tmp_path / "closed"))
    found = scan([tmp_path])
    assert found.photos == (photo,)
    assert [(failure.path, failure.message) for failure in found.failed] == [
        (str(tmp_path / "closed"), "The folder cannot be read: Permission denied. Its photos are not compared.")
    ]


def test_other_files_are_counted_by_kind(tmp_path: Path) -> None:
    for name in ("a.txt", "sub/b.TXT", "film.mov", "lone.xmp", "a.jpg.txt", "README", "letter to Dr. Who", ".x.txt"):
        write(tmp_path / name, b"text")
    write(tmp_path / "real.txt", jpeg())  # the ending is believed
    for name in ("b.jpg", "b.xmp", "b.mov", "b.jpg.xmp", "b.nef", "b.nef.pp3", "raw.nef", "raw.xmp"):
        write(tmp_path / name)
    expected = {".txt": 4, ".mov": 1, ".xmp": 1, "no ending": 1, "other endings": 1}
    assert scan([tmp_path], raw=True).skipped == expected
    assert scan([tmp_path]).skipped[".nef"] == 1
    assert scan([tmp_path], include_hidden=True).skipped[".txt"] == 5


def test_images_with_other_endings_are_counted_by_format(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a.jpg_large", "b.dat", "download"):
        write(tmp_path / name, jpeg())
    write(tmp_path / "c.dat", b"\0\0\0\x18ftypheic\0\0\0\0mif1heic")
    write(tmp_path / "d.dat", b"\0\0\0\x18ftypisom")  # a film
    write(tmp_path / "e.dat", b"")
    named = write(tmp_path / "named.dat", jpeg())
    found = scan([tmp_path, named])
    assert found.photos == (named,)
    assert found.skipped == {
        ".dat": 2,
        "HEIC image with the ending .dat": 1,
        "JPEG image with no ending": 1,
        "JPEG image with the ending .dat": 1,
        "JPEG image with the ending .jpg_large": 1,
    }
    monkeypatch.setattr(scanner, "_MOST_OPENED", 1)
    assert sum(number for kind, number in scan(tmp_path).skipped.items() if "image" in kind) <= 1


def test_every_output_says_what_was_skipped() -> None:
    skipped = {".txt": 1200, **{f".e{number:02}": 1 for number in range(12)}}
    report = members.report(skipped=skipped)
    assert json.loads(json.dumps(report.to_mapping()))["skipped"] == skipped
    page, terminal = io.BytesIO(), io.StringIO()
    write_page(report, page, thumbnail=lambda path, side: None)
    print_notes(report, Console(file=terminal, width=80))
    for output in (page.getvalue().decode(), terminal.getvalue()):
        assert "1,212 files skipped, not named like photos: 1,200 .txt, 1 .e00," in output
        assert "1 .e10, 1 more kind" in output


def test_a_search_that_finds_no_photo_says_what_it_found(tmp_path: Path, said: Said) -> None:
    write(tmp_path / "photo.dat", jpeg())
    skipped = "1 file skipped, not named like photos: 1 JPEG image with the ending .dat"
    for command in (("dedup", "--store", tmp_path / "store"), ("embed", "--output", tmp_path / "vectors.npz")):
        assert skipped in "\n".join(said(*command, tmp_path, code=1))


@pytest.mark.parametrize(
    "flags",
    [
        {"st_flags": 0x40000020},  # SF_DATALESS and UF_TRACKED
        {"st_file_attributes": 0x400020},  # RECALL_ON_DATA_ACCESS and ARCHIVE
        {"st_file_attributes": 0x1020},  # OFFLINE
    ],
)
def test_what_is_only_in_the_cloud_is_listed_and_not_downloaded(
    flags: dict[str, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = write(tmp_path / "here.jpg", jpeg())
    there = [write(tmp_path / name, jpeg()) for name in ("there.jpg", "there.dat")]
    look, opened = os.stat, list[object]()

    def stat(path: str, **named: Any) -> Any:
        status = look(path, **named)
        seen = {name: getattr(status, name) for name in dir(status) if name.startswith("st_")}
        return SimpleNamespace(**seen | flags) if path in there else status

    monkeypatch.setattr(os, "stat", stat)
    monkeypatch.setattr(os, "open", then(os.open, lambda path, *_: opened.append(path)))
    found = scan([tmp_path])
    assert found.photos == (here,)
    message = (
        "It is only in the cloud, and a search downloads nothing: make it available on this device, and search again."
    )
    assert found.failed == (FailedFile(path=there[0], code="UNREADABLE", message=message),)
    assert found.skipped == {".dat": 1}
    # A companion of a photo, or a file that went to the cloud since it was found.
    unread = read_file(there[0])
    assert isinstance(unread, FailedFile)
    assert unread.message == "The file cannot be read: it is only in the cloud."
    assert set(there).isdisjoint(opened)


def test_the_hash_of_content_and_of_what_is_no_file(tmp_path: Path) -> None:
    path, empty = write(tmp_path / "a.jpg", b"abc"), write(tmp_path / "empty.jpg", b"")
    content = PhotoFile.of(path, os.stat(path))
    assert hash_file(path) == (content, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad")
    os.mkfifo(tmp_path / "pipe.jpg")
    outcomes = [hash_file(str(path)) for path in (empty, tmp_path, tmp_path / "gone.jpg", tmp_path / "pipe.jpg")]
    codes = [outcome.code for outcome in outcomes if isinstance(outcome, FailedFile)]
    assert codes == ["EMPTY", "UNREADABLE", "UNREADABLE", "UNREADABLE"]
    assert not has_sha256(empty, "")


@pytest.mark.parametrize("read", [read_file, hash_file])
def test_a_file_that_changes_while_it_is_read_is_a_failure(
    read: Callable[[str], object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, times = write(tmp_path / "a.jpg"), itertools.count(10**9, 10**9)
    assert not isinstance(read(path), FailedFile)
    monkeypatch.setattr(os, "fstat", then(os.fstat, lambda _: os.utime(path, ns=(1, next(times)))))
    assert read(path) == FailedFile(path=path, code="UNREADABLE", message="It was changed while it was read.")


def test_a_folder_holds_what_is_in_it_by_any_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inside = write(tmp_path / "album" / "kept" / "deep" / "1.jpg")
    outside = write(tmp_path / "album" / "kept too" / "2.jpg")
    (tmp_path / "link").symlink_to(tmp_path / "album" / "kept")
    (tmp_path / "all").symlink_to(tmp_path / "album")
    monkeypatch.chdir(tmp_path)
    names = [inside, "album/kept/deep/1.jpg", "link/deep/1.jpg", "all/kept/deep/1.jpg"]
    for folder in ("album/kept", "album/kept/", "link", "all/kept", "all/kept/deep/..", inside):
        directories = DirectorySet([folder])
        assert all(directories.contains(name) for name in names), folder
        assert not directories.contains(outside)
    for nothing in ([], ["no such folder"]):
        assert not DirectorySet(nothing).contains(inside)
