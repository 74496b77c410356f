from __future__ import annotations

import os
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from clip_client.dedup import FailedFile, scan
from clip_client.dedup.files.directories import DirectorySet
from clip_client.dedup.files.reading import has_sha256, hash_file, read_file
from clip_client.dedup.types import PREVIEWS_MARK, PhotoFile
from tests.fixtures.albums import without_inodes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager


def write(path: Path, text: str = "x") -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return str(path)


def test_walks_folders_and_takes_photos_by_their_endings(tmp_path: Path) -> None:
    photos = [write(tmp_path / name) for name in ("a.jpg", "sub/b.JPEG", "sub/deeper/c.webp", "z.heic")]
    write(tmp_path / "notes.txt")
    write(tmp_path / "sub" / "film.mov")
    assert scan([tmp_path]).photos == tuple(photos)
    assert scan([tmp_path]).failed == ()


def test_takes_a_named_file_whatever_it_is_called(tmp_path: Path) -> None:
    named = write(tmp_path / ".hidden-without-ending")
    assert scan([named]).photos == (named,)


def test_one_path_is_not_taken_for_its_letters(tmp_path: Path) -> None:
    photo = write(tmp_path / "a.jpg")
    assert scan(tmp_path).photos == scan(str(tmp_path)).photos == (photo,)
    with pytest.raises(TypeError, match="got bytes"):
        scan([b"\xff\xd8\xff"])  # type: ignore[list-item]


def test_passes_over_hidden_names_unless_told(tmp_path: Path) -> None:
    hidden = [write(tmp_path / ".a.jpg"), write(tmp_path / ".cache" / "b.jpg")]
    assert scan([tmp_path]).photos == ()
    assert scan([tmp_path], include_hidden=True).photos == tuple(hidden)
    assert scan([tmp_path / ".cache"]).photos == (hidden[1],)


def test_passes_over_the_previews_of_a_report_page(tmp_path: Path) -> None:
    photo = write(tmp_path / "a.jpg")
    for name in ("0123.jpg", "below/0123.jpg", PREVIEWS_MARK):
        write(tmp_path / "report-files" / name)
    assert scan([tmp_path], include_hidden=True).photos == (photo,)
    assert scan([tmp_path / "report-files"]).photos == ()


def test_order_does_not_depend_on_the_arguments(tmp_path: Path) -> None:
    for name in ("b/1.jpg", "a/2.jpg", "a/10.jpg", "a b/3.jpg"):
        write(tmp_path / name)
    folders = [tmp_path / "b", tmp_path / "a b", tmp_path / "a"]
    assert scan(folders) == scan(reversed(folders))
    assert len(scan(folders).photos) == 4


def test_keeps_names_with_spaces_emoji_and_invalid_utf8(tmp_path: Path) -> None:
    names = [b"two words.jpg", "\U0001f468\u200d\U0001f469.jpg".encode(), b"caf\xe9.jpg", b"line\nbreak.jpg"]
    for name in names:
        Path(os.fsdecode(os.fsencode(tmp_path) + b"/" + name)).write_text("x")
    found = scan([tmp_path])
    assert {os.path.basename(os.fsencode(path)) for path in found.photos} == set(names)


def test_a_link_back_up_is_listed_and_ends_no_walk(tmp_path: Path) -> None:
    photo = write(tmp_path / "sub" / "a.jpg")
    (tmp_path / "sub" / "loop").symlink_to(tmp_path, target_is_directory=True)
    for follow_links in (False, True):
        found = scan([tmp_path], follow_links=follow_links)
        assert found.photos == (photo,)
        assert [failure.path for failure in found.failed] == [str(tmp_path / "sub" / "loop")]
        assert "back to a folder above" in found.failed[0].message


def test_links_that_lead_to_each_other_end_the_walk(tmp_path: Path) -> None:
    photos = [write(tmp_path / "a" / "1.jpg"), write(tmp_path / "b" / "2.jpg")]
    (tmp_path / "a" / "to_b").symlink_to(tmp_path / "b")
    (tmp_path / "b" / "to_a").symlink_to(tmp_path / "a")
    assert scan([tmp_path], follow_links=True).photos == tuple(photos)


def test_links_to_folders_are_followed_only_when_told(tmp_path: Path) -> None:
    outside = write(tmp_path / "outside" / "a.jpg")
    (tmp_path / "inside").mkdir()
    link = tmp_path / "inside" / "link"
    link.symlink_to(tmp_path / "outside")
    not_followed = scan([tmp_path / "inside"])
    assert not_followed.photos == ()
    assert not_followed.failed == (
        FailedFile(path=str(link), code="UNREADABLE", message="Links to folders are not followed."),
    )
    assert scan([tmp_path / "inside"], follow_links=True).photos == (str(link / os.path.basename(outside)),)
    assert scan([link]).photos == (str(link / "a.jpg"),)


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
    assert {(os.path.basename(failure.path), failure.code, failure.message) for failure in found.failed} == {
        ("pipe.jpg", "UNREADABLE", "This is not a regular file but a FIFO."),
        ("pipe", "UNREADABLE", "This is not a regular file but a FIFO."),
        ("socket.jpg", "UNREADABLE", "This is not a regular file but a socket."),
        ("null", "UNREADABLE", "This is not a regular file but a character device."),
    }


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


def test_a_folder_called_like_a_photo_is_a_folder(tmp_path: Path) -> None:
    photo = write(tmp_path / "album.jpg" / "a.jpg")
    assert scan([tmp_path]).photos == (photo,)


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


@pytest.mark.skipif(os.name == "nt", reason="permission bits are not enforced there")
def test_a_folder_that_cannot_be_listed_hurts_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    photo = write(tmp_path / "open" / "a.jpg")
    write(tmp_path / "closed" / "b.jpg")
    list_folder = os.scandir

    def refuse(
        path: str,
    ) -> AbstractContextManager[Iterator[os.DirEntry[str]]]:
        if path.endswith("closed"):
            raise PermissionError(13, "Permission denied", path)
        return list_folder(path)

    monkeypatch.setattr(os, "scandir", refuse)
    found = scan([tmp_path])
    assert found.photos == (photo,)
    assert [(failure.path, failure.message) for failure in found.failed] == [
        (str(tmp_path / "closed"), "The file cannot be read: Permission denied.")
    ]


def test_hash_of_content(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jpg", "abc")
    file = PhotoFile(path, 3, os.stat(path).st_mtime_ns)
    assert hash_file(path) == (file, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad")


def test_hash_of_what_is_no_file_is_a_failure(tmp_path: Path) -> None:
    empty = write(tmp_path / "empty.jpg", "")
    os.mkfifo(tmp_path / "pipe.jpg")
    outcomes = [hash_file(str(path)) for path in (empty, tmp_path, tmp_path / "gone.jpg", tmp_path / "pipe.jpg")]
    codes = [outcome.code for outcome in outcomes if isinstance(outcome, FailedFile)]
    assert codes == ["EMPTY", "UNREADABLE", "UNREADABLE", "UNREADABLE"]
    assert not has_sha256(empty, "")


@pytest.mark.parametrize("read", [read_file, hash_file])
def test_a_file_that_changes_while_it_is_read_is_a_failure(
    read: Callable[[str], object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / "a.jpg", "abc")

    whole = os.fstat

    def stat_and_change(descriptor: int) -> os.stat_result:
        status = whole(descriptor)
        os.utime(path, ns=(1, status.st_mtime_ns + 10**9))
        return status

    assert not isinstance(read(path), FailedFile)
    monkeypatch.setattr(os, "fstat", stat_and_change)
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
    assert not DirectorySet([]).contains(inside)
    assert not DirectorySet(["no such folder"]).contains(inside)
