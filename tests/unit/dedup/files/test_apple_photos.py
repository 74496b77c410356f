"""Libraries of Apple Photos: read by the real osxphotos from a library made here; only Photos itself is played."""

import os
import sys
from pathlib import Path

import pytest

from clip_client.dedup import scan
from clip_client.dedup.actions.apple_photos_album import ALBUM, fill_album
from clip_client.dedup.files.apple_photos import is_library, read_library
from clip_client.dedup.files.file_types import EDITED, FILM
from clip_client.dedup.types import RAW
from tests.fixtures.albums import member, planned, report, snapshot, without_access, write
from tests.fixtures.commands import Said
from tests.fixtures.photos_libraries import Photos, PhotosLibrary, on_a_mac

pytest.importorskip("osxphotos")

from clip_client.dedup.actions.plan import Move


@pytest.fixture
def library(tmp_path: Path) -> PhotosLibrary:
    return PhotosLibrary(tmp_path / "Photos Library.photoslibrary")


def test_each_photo_is_one_unit_under_the_name_that_its_owner_knows(library: PhotosLibrary) -> None:
    path = library.add(b"x", "IMG_1.JPG", taken_s=1.6e9, raw=b"raw", film=b"film", edited=b"edited")
    before = without_access(snapshot(library.folder))
    (photo,), failed = read_library(str(library.folder))
    assert (photo.path, photo.name, photo.library) == (str(path), "IMG_1.JPG", str(library.folder))
    assert photo.uuid in path.name
    assert photo.taken_ns == 1_600_000_000_000_000_000
    assert [companion.kind for companion in photo.companions] == [RAW, FILM, EDITED]
    assert all(os.path.isfile(companion.path) for companion in photo.companions)
    assert failed == []
    assert without_access(snapshot(library.folder)) == before


def test_what_is_not_on_this_machine_is_listed_with_the_remedy(library: PhotosLibrary) -> None:
    for _ in range(4):
        library.add(b"x", "IMG_1.HEIC").unlink()
        library.add(None, "IMG_1.HEIC")
    found = scan([library.folder])
    assert found.photos == ()
    assert [failure.path for failure in found.failed] == [str(library.folder / "IMG_1.HEIC")] * 8
    # In the order of the messages, whatever the order in which osxphotos returns the photos.
    messages = [failure.message for failure in found.failed]
    assert ["Download Originals" in message for message in messages] == [False] * 4 + [True] * 4
    assert ["locate the file" in message for message in messages] == [True] * 4 + [False] * 4


def test_trash_and_other_peoples_photos_are_left_out_and_hidden_ones_unless_asked_for(library: PhotosLibrary) -> None:
    hidden = library.add(b"x", "hidden.jpg", hidden=True)
    library.add(b"x", "in the trash.jpg", in_trash=True)
    library.add(b"x", "shared.jpg", shared=True)
    found = scan([library.folder])
    assert (found.photos, found.failed) == ((), ())
    assert scan([library.folder], include_hidden=True).photos == (str(hidden),)


def test_a_library_below_a_folder_is_read_and_not_walked(library: PhotosLibrary, tmp_path: Path) -> None:
    original = library.add(b"x", "IMG_1.JPG", edited=b"edited")
    write(library.folder / "resources" / "derivatives" / "small.jpg", b"small")
    write(library.folder / "originals" / "0" / "left over.jpg", b"Photos does not know it")
    loose = write(tmp_path / "loose.jpg", b"x")
    for named in (tmp_path, str(library.folder) + os.sep, library.folder):
        found = scan([named, loose])
        assert set(found.photos) == {str(original), str(loose)}
        assert list(found.in_libraries) == [str(original)]
    assert is_library("b.PHOTOSLIBRARY")


def test_a_file_that_photos_refers_to_stays_photos(library: PhotosLibrary, tmp_path: Path) -> None:
    referenced = write(tmp_path / "outside" / "IMG_1.JPG", b"x")
    library.add(b"x", "IMG_1.JPG", referenced=referenced)
    for paths in ([referenced, tmp_path], [tmp_path / "outside", library.folder], [library.folder, referenced]):
        found = scan(paths)
        assert found.photos == (str(referenced),)
        assert list(found.in_libraries) == [str(referenced)]


@pytest.mark.filterwarnings("ignore:Implicitly cleaning up:ResourceWarning")  # of osxphotos, which fails half-made
@pytest.mark.parametrize("damage", ["no osxphotos", "no database", "no table"])
def test_a_library_that_cannot_be_read_is_one_failure(
    library: PhotosLibrary, monkeypatch: pytest.MonkeyPatch, damage: str
) -> None:
    library.add(b"x", "IMG_1.JPG")
    database = library.folder / "database" / "Photos.sqlite"
    if damage == "no osxphotos":
        monkeypatch.setitem(sys.modules, "osxphotos", None)
    elif damage == "no database":
        database.unlink()
    else:
        database.write_bytes(b"")
    found = scan([library.folder])
    (failure,) = found.failed
    assert (found.photos, failure.path) == ((), str(library.folder))
    assert ("pip install '.[photos]' in a clone" if damage == "no osxphotos" else "cannot be read") in failure.message
    assert "\n" not in failure.message


def entries(library: PhotosLibrary, tmp_path: Path, count: int = 2) -> tuple[Move, ...]:
    for number in range(1, count + 1):
        library.add(b"x", f"IMG_{number}.JPG")
    copies = [member(Path(one.path), in_library=one) for one in read_library(str(library.folder))[0]]
    return planned(report((member(write(tmp_path / "kept.jpg", b"x")), *copies)), [tmp_path]).for_album


def uuid_of(entry: Move) -> str:
    assert entry.duplicate.in_library is not None
    return entry.duplicate.in_library.uuid


def test_the_album_holds_the_copies_and_is_made_once(
    library: PhotosLibrary, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = entries(library, tmp_path)
    photos = Photos([uuid_of(entry) for entry in wanted])
    on_a_mac(monkeypatch, photos)
    before = without_access(snapshot(library.folder))
    for _ in range(2):
        assert all(outcome.done for outcome in fill_album(wanted))
    assert photos.album_name == ALBUM == "Duplicates (clip-client)"
    assert photos.in_album == [uuid_of(entry) for entry in wanted] * 2
    assert without_access(snapshot(library.folder)) == before


def test_the_album_gets_nothing_that_has_changed_or_is_unknown(
    library: PhotosLibrary, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changed, unknown, good = entries(library, tmp_path, 3)
    photos = Photos([uuid_of(changed), uuid_of(good)])
    on_a_mac(monkeypatch, photos)
    with open(changed.duplicate.path, "ab") as file:
        file.write(b"more")
    outcomes = fill_album([changed, unknown, good])
    assert [outcome.done for outcome in outcomes] == [False, False, True]
    assert "has changed" in outcomes[0].message
    assert "is not the library that is open" in outcomes[1].message
    assert photos.in_album == [uuid_of(good)]
    os.remove(good.kept.path)
    (outcome,) = fill_album([good])
    assert outcome.message.startswith("The kept photo has changed or disappeared")


def test_the_album_needs_a_mac(
    library: PhotosLibrary, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: Said
) -> None:
    wanted = entries(library, tmp_path)
    monkeypatch.setattr("platform.system", lambda: "Linux")
    assert {(one.done, "only Photos on a Mac" in one.message) for one in fill_album(wanted)} == {(False, True)}
    (line,) = said("dedup", library.folder, "--apply", "--store", tmp_path / "store", code=1)
    assert "only Photos on a Mac can fill" in line
    assert not (tmp_path / "store").exists()
