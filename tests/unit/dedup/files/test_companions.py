"""Which files belong to a photo, by their names alone, and go where it goes: to the quarantine, back, to the trash."""

import itertools
import os
import unicodedata
from pathlib import Path

import pytest

from clip_client.dedup import DuplicateGroup
from clip_client.dedup.actions.apply import apply, undo
from clip_client.dedup.actions.purge import purge
from clip_client.dedup.files.companions import companions, differing_companion
from clip_client.dedup.files.file_types import FILM, OTHER, RESOURCE_FORK, SIDECAR, companion_kind
from clip_client.dedup.files.reading import sha256_of
from clip_client.dedup.store.journal import IN_QUARANTINE, Journal
from clip_client.dedup.types import RAW, Companion
from tests.fixtures.albums import files, member, planned, report, write

LONG = "Screenshot_20200102-030405_com.example.application"  # of 50 letters; Takeout leaves 46
CUT = LONG[:46]
NFC, NFD = (unicodedata.normalize(form, "F\u00eate") for form in ("NFC", "NFD"))

FOLDERS: dict[str, dict[str, str]] = {
    # Photo -> what belongs to it. All files are there, and a file that belongs to two photos stands beside each.
    "endings": {"a.jpg": "a.aae a.acr a.cos a.dop a.json a.mov a.mp4 a.nef a.on1 a.pp3 a.thm a.vrd a.wav a.xmp"},
    "endings in upper case": {"a.jpg": "a.AAE a.MOV a.NEF a.WAV a.XMP a.jpg.XMP"},
    "whole names": {"a.jpg": "a.jpg.xmp a.jpg.dop a.jpg.pp3 a.jpg.json a.jpg.cos", "a.heic": "a.heic.xmp"},
    "sidecars of a RAW file": {"a.jpg": "a.nef a.nef.xmp a.nef.pp3"},
    "sidecars of RAW files": {"a.nef": "a.xmp a.nef.xmp", "b.cr2": "b.wav b.cr2.pp3", "b.dng": "b.wav"},
    "darktable's duplicates": {"a.jpg": "a.jpg.xmp a_01.jpg.xmp a_12.jpg.xmp", "b_01.jpg": "b_01.jpg.xmp", "b.jpg": ""},
    "films of Photos": {"a.heic": "a_3.mov a.mov", "b_3.heic": "b_3.mov"},
    "films of a Pixel": {"PXL_1.MP.jpg": "PXL_1.MP PXL_1.MP.jpg.json", "PXL_2.jpg": "PXL_2.MP"},
    "macOS": {"a.jpg": "a.xmp ._a.jpg ._a.xmp", "b.nef": "._b.nef"},
    "Takeout": {"a.jpg": "a.jpg.json", "b.jpg": "b.jpg.supplemental-metadata.json", "c.heic": "c.mov c.mov.json"},
    "Takeout's counters": {
        "a.jpg": "a.jpg.json a.jpg.suppl.json",
        "a(1).jpg": "a.jpg(1).json a.jpg.supplemental-metadata(1).json",
        "a(2).jpg": "a(2).jpg.json",
    },
    "Takeout's edited versions": {
        "a.jpg": "a.jpg.json", "a-edited.jpg": "a.jpg.json", "a-modifi\u00e9(1).jpg": "a.jpg.suppl(1).json",
        "b-bearbeitet.jpg": "b.jpg.supplemental-metadata.json",
    },
    "Takeout's cuts": {
        f"{LONG}.jpg": f"{CUT}.json", f"{LONG}(1).jpg": f"{CUT}(1).json", f"{LONG[:40]}.jpg": f"{LONG[:40]}.jpg.s.json",
        f"{LONG[:41]}.jpg": f"{LONG[:41]}.jpg..json", f"{LONG[:42]}.jpg": f"{LONG[:42]}.jpg.json",
        f"{LONG[:43]}.jpg": f"{LONG[:43]}.jp.json", "Screen.jpg": "Screen.jpg.supplemental-metadat.json",
    },
    "Unicode": {f"{NFC}.jpg": f"{NFD}.mov {NFD}.jpg.xmp", f"x{NFD}.jpg": f"x{NFC}.xmp"},
    "what two photos share": {"a.heic": "a.mov a.heic.xmp", "a.jpg": "a.mov"},
    "what differs in case": {"A.JPG": "A.JPG.xmp A.mov", "a.jpg": "a.xmp"},
    "other files": {"a.jpg": "a.docx a.txt a.jpg.bak a.tar.gz a a.edit.psd", "b.jpg": "b.gpx"},
    "longest names": {"2019.jpg": "2019.txt 2019.1.txt", "2019.12.24.jpg": "2019.12.24.xmp", "2019.12.jpg": ""},
    "nothing": {"IMG_1.jpg": "", "IMG_10.jpg": "", "IMG_1 2.jpg": "", "IMG_1.png": ""},
}  # fmt: skip
STRANGERS = "IMG_100.xmp IMG_1_.mov IMG_1_2.mov ._q.jpg IMG.json q_3.mov q_01.jpg.xmp q(1).json".split()


@pytest.mark.parametrize("name", FOLDERS)
def test_what_belongs_to_a_photo(name: str, tmp_path: Path) -> None:
    owned = {photo: set(names.split()) for photo, names in FOLDERS[name].items()}
    for file in {*owned, *STRANGERS}.union(*owned.values()):
        (tmp_path / file).touch()
    (tmp_path / "a.folder").mkdir()
    (tmp_path / "loop").symlink_to("loop")
    found = companions(str(tmp_path / photo) for photo in owned)
    assert found == {
        str(tmp_path / photo): tuple(
            Companion(
                path=str(tmp_path / file),
                kind=companion_kind(file),
                others=tuple(str(tmp_path / one) for one in sorted(owned) if one != photo and file in owned[one]),
            )
            for file in sorted(files, key=os.fsencode)
        )
        for photo, files in owned.items()
        if files
    }


def test_kinds_are_told_by_name() -> None:
    kinds = {"a.NEF": RAW, "a.WAV": "voice note", "._a.nef": RESOURCE_FORK, "a.docx": OTHER}
    kinds |= dict.fromkeys("a.MOV a.mp4 a.MP".split(), FILM)
    kinds |= dict.fromkeys("a.AAE a.acr a.cos a.dop a.jpg.json a.on1 a.pp3 a.THM a.vrd a.xmp".split(), SIDECAR)
    assert {name: companion_kind(f"x/{name}") for name in kinds} == kinds


@pytest.mark.parametrize("folds_case", [True, False])
def test_case_counts_as_in_the_file_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folds_case: bool) -> None:
    photo, film = write(tmp_path / "IMG_1.JPG", b"x"), write(tmp_path / "img_1.mov", b"x")
    write(tmp_path / "nothing.txt", b"x")
    look = os.lstat

    def folding(path: str) -> os.stat_result:
        names = {name.lower(): name for name in os.listdir(os.path.dirname(path))}
        return look(os.path.join(os.path.dirname(path), names.get(os.path.basename(path).lower(), "gone")))

    if folds_case:
        monkeypatch.setattr(os, "lstat", folding)
    found = companions([str(photo)])
    assert found == ({str(photo): (Companion(path=str(film), kind=FILM),)} if folds_case else {})


def test_photos_that_are_gone_have_no_companions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "a.xmp", b"x")
    gone = [str(tmp_path / name) for name in ("b.cr2", "b.jpg", "gone/a.jpg", "gone/a.cr2")]
    assert companions(gone) == {}
    monkeypatch.chdir(tmp_path)
    assert companions(["a.jpg"]) == {"a.jpg": (Companion(path="a.xmp", kind=SIDECAR),)}


@pytest.mark.parametrize(
    ("own", "of_kept", "differing"),
    [
        ({}, {}, ""),
        ({}, {"k.xmp": b"1"}, ""),
        ({"c.cr2": b"1"}, {}, RAW),
        ({"c.cr2": b"1"}, {"k.dng": b"1"}, ""),
        ({"c.cr2": b"1"}, {"k.mov": b"1"}, RAW),  # the same bytes, of another kind
        ({"c.cr2": b"1"}, {"k.cr2": b"2"}, RAW),
        ({"c.cr2": b"1"}, {"k.cr2": b"11"}, RAW),
        ({"c.cr2": b"1"}, {"k.cr2": b"2", "k.dng": b"1"}, ""),
        ({"c.cr2": b"1", "c.mov": b"1"}, {"k.cr2": b"1"}, FILM),
        ({"c.cr2": b"1", "c.mov": b"1"}, {"k.cr2": b"1", "k.mov": b"2"}, FILM),
        ({"c.xmp": b""}, {"k.xmp": b""}, ""),
        ({"c.xmp": b""}, {"k.xmp": b"1"}, SIDECAR),
        ({"c.xmp": b"1"}, {"k.xmp": None}, SIDECAR),  # it is gone
        ({"c.xmp": None}, {"k.xmp": None}, SIDECAR),
    ],
)
def test_what_a_photo_would_take_along(
    tmp_path: Path, own: dict[str, bytes | None], of_kept: dict[str, bytes | None], differing: str
) -> None:
    for name, data in {**own, **of_kept}.items():
        if data is not None:
            write(tmp_path / name, data)
    mine, others = (
        [Companion(path=str(tmp_path / name), kind=companion_kind(name)) for name in names] for names in (own, of_kept)
    )
    assert differing_companion(mine, others, sha256_of) == differing
    assert bool(differing_companion(mine, others, lambda _: "")) == (bool(differing) or any(own.values()))


ALONE = "IMG_1.MP4 IMG_1_3.mov IMG_O1.AAE IMG_1.jpg.xmp IMG_1.THM IMG_1.WAV IMG_1.nef IMG_1.json ._IMG_1.jpg"
TOGETHER = [
    # A photo and its companions. FOLDERS has all names.
    *(f"IMG_1.jpg {name}" for name in ALONE.split()),
    "IMG_1(2).jpg IMG_1.jpg(2).json",
    "IMG_1-edited.jpg IMG_1.jpg.json",
    "PXL_1.MP.jpg PXL_1.MP",
    "IMG_1.jpg IMG_1.jpg.xmp IMG_1_01.jpg.xmp IMG_1_02.jpg.xmp",  # darktable's duplicates
    "IMG_1.jpg IMG_1.nef IMG_1.nef.xmp IMG_1.nef.pp3 IMG_1.xmp",
    "IMG_1.jpg IMG_1.mov IMG_1.AAE IMG_O1.AAE ._IMG_1.jpg ._IMG_1.mov",  # an edited live photo of an iPhone
    "IMG_1.jpg IMG_1.MP IMG_1.jpg.json IMG_1.MP.json",  # a motion photo of Takeout
]
SHARED = {
    # Companion -> photo that it belongs to, beside IMG_1.jpg.
    **dict.fromkeys("IMG_1.mov IMG_1_3.mov IMG_O1.AAE IMG_1.xmp IMG_1.WAV IMG_1.nef".split(), "IMG_1.png"),
    "IMG_1.jpg.json": "IMG_1-edited.jpg",
}


def album(root: Path, photo: str, *beside: str) -> tuple[DuplicateGroup, dict[str, tuple[bytes, int]]]:
    for folder in ("new", "old"):
        for name in (photo, *beside):
            write(root / folder / name, name.encode())
    groups = report((member(root / "new" / photo), member(root / "old" / photo)))
    return groups.groups[0], files(root)


def names(folder: Path) -> set[str]:
    return set(os.listdir(folder)) if folder.exists() else set()


def moved(root: Path, journal: Journal, *groups: DuplicateGroup) -> int:
    outcomes = apply(planned(report(*(group.members for group in groups)), [root]), journal)
    assert all(one.done for one in outcomes), outcomes
    return len(outcomes)


@pytest.mark.parametrize("together", TOGETHER)
def test_companions_go_come_back_and_are_purged_with_their_photo(root: Path, journal: Journal, together: str) -> None:
    photo, *beside = together.split()
    group, before = album(root, photo, *beside)
    for name, change in itertools.product(beside, (None, b"", b"other")):  # with what the kept one lacks, it stays
        (root / "new" / name).unlink()
        if change is not None:
            write(root / "new" / name, change)
        assert moved(root, journal, group) == 0
        write(root / "new" / name, name.encode())
        assert files(root) == before
    assert moved(root, journal, group) == 1
    assert (names(root / "old"), names(root / "new")) == (set(), {photo, *beside})
    assert [one.message for one in undo(journal)] == ["Restored."]
    assert files(root) == before
    assert moved(root, journal, group) == 1
    for name in beside:  # without its counterpart each of them is the last one
        (root / "new" / name).rename(root / "aside")
        assert [one.done for one in purge(journal, trash=os.unlink)] == [False]
        (root / "aside").rename(root / "new" / name)
    trash: list[str] = []
    assert [one.done for one in purge(journal, trash=trash.append)] == [True]
    assert {os.path.basename(path) for path in trash} == {photo, *beside}


def test_a_file_of_unknown_purpose_holds_the_photo_of_its_name(root: Path) -> None:
    for name in ("report.docx", "report.jpg.bak", "report.tar.gz", "report.txt", "report"):
        group, _ = album(root, "report.jpg", name)
        plan = planned(report(group.members), [root])
        said = f"The file {name} has the same name and may belong to it; rename either."
        assert (plan.moves, [skip.reason for skip in plan.skipped]) == ((), [said])
        (root / "old" / name).unlink()


@pytest.mark.parametrize(("name", "second"), SHARED.items())
def test_what_two_photos_share_goes_with_the_last_and_comes_back_with_the_first(
    root: Path, journal: Journal, name: str, second: str
) -> None:
    one, _ = album(root, "IMG_1.jpg", name)
    other, before = album(root, second, name)
    assert moved(root, journal, one) == 1
    assert names(root / "old") == {second, name}
    assert moved(root, journal, other) == 1
    assert names(root / "old") == set()
    assert sum(size for _, size in journal.runs().values()) == len("IMG_1.jpg" + second + name)
    (first, _) = journal.entries(IN_QUARANTINE)
    assert [outcome.message for outcome in undo(journal, only={first.id})] == ["Restored."]
    assert names(root / "old") == {"IMG_1.jpg", name}
    undo(journal)
    assert files(root) == before
    assert moved(root, journal, one, other) == 2
    trash: list[str] = []
    assert [outcome.done for outcome in purge(journal, trash=trash.append)] == [True, True]
    assert journal.runs() == {}
    assert sorted(map(os.path.basename, trash)) == sorted(["IMG_1.jpg", second, name])


def in_two_formats(root: Path) -> list[DuplicateGroup]:
    """Copies of a photo in two formats, with one film."""
    return [album(root, photo, "IMG_1.mov")[0] for photo in ("IMG_1.jpg", "IMG_1.png")]


def test_what_is_back_with_another_photo_is_not_purged(root: Path, journal: Journal) -> None:
    groups = in_two_formats(root)
    moved(root, journal, *groups)
    (first, _) = journal.entries(IN_QUARANTINE)
    undo(journal, only={first.id})
    (root / "new" / "IMG_1.mov").unlink()
    assert [outcome.done for outcome in purge(journal, trash=os.unlink)] == [True]
    assert names(root / "old") == {"IMG_1.jpg", "IMG_1.mov"}
    # It moves again with the photo that is left.
    write(root / "new" / "IMG_1.mov", b"IMG_1.mov")
    assert moved(root, journal, groups[0]) == 1
    assert names(root / "old") == set()
    undo(journal)
    assert names(root / "old") == {"IMG_1.jpg", "IMG_1.mov"}


def test_what_two_photos_share_stays_with_the_one_that_does_not_move(root: Path, journal: Journal) -> None:
    plan = planned(report(*(group.members for group in in_two_formats(root))), [root])
    write(root / "old" / "IMG_1.jpg", b"edited")
    assert sorted(outcome.done for outcome in apply(plan, journal)) == [False, True]
    assert names(root / "old") == {"IMG_1.jpg", "IMG_1.mov"}
