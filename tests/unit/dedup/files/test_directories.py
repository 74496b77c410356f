"""Reference folders, whatever name a person or a search has for them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from clip_client.dedup.files.directories import DirectorySet
from tests.fixtures.albums import write

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def test_a_folder_holds_what_is_in_it_by_any_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inside = write(tmp_path / "album" / "kept" / "deep" / "1.jpg", b"x")
    outside = write(tmp_path / "album" / "kept too" / "2.jpg", b"x")
    (tmp_path / "link").symlink_to(tmp_path / "album" / "kept")
    (tmp_path / "all").symlink_to(tmp_path / "album")
    monkeypatch.chdir(tmp_path)
    names = [str(inside), "album/kept/deep/1.jpg", "link/deep/1.jpg", "all/kept/deep/1.jpg"]
    for folder in ("album/kept", "album/kept/", "link", "all/kept", "all/kept/deep/..", str(inside)):
        directories = DirectorySet([folder])
        assert all(directories.contains(name) for name in names), folder
        assert not directories.contains(str(outside))
    assert not DirectorySet([]).contains(str(inside))
    assert not DirectorySet(["no such folder"]).contains(str(inside))
