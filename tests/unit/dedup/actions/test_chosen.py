"""What a person chose moves whatever its tier is, and nothing else does; data stays as safe as without a choice."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from clip_client.cli.main import main
from clip_client.cli.options.dedup import ActionOptions
from clip_client.dedup import Store
from clip_client.dedup.compare.chosen_groups import chosen_photos
from clip_client.dedup.store.choices import UNDONE
from clip_client.dedup.types import BURST, SIMILAR, Metadata
from tests.fixtures.albums import MODEL, carried_out, member, planned, report, write

if TYPE_CHECKING:
    from pathlib import Path

    from clip_client.dedup import DuplicateReport

APPLY_CHOSEN = ActionOptions(apply=True, is_chosen=True)


def a_group(folder: Path, model: str = "m/random:0@00000000", **last: Any) -> DuplicateReport:
    """Return three different photos that look alike; ``last`` is about the third."""
    paths = [write(folder / f"{name}.jpg", name.encode()) for name in "abc"]
    others = [{"tier": SIMILAR, "similarity": 0.9}, {"tier": SIMILAR, "similarity": 0.9, **last}]
    return report(
        tuple(member(path, **more) for path, more in zip(paths, [{}, *others], strict=True)),
        model=model,
    )


def left(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("*.jpg"))


def test_the_last_choice_about_a_group_moves_and_nothing_else_does(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    photos, store = tmp_path / "photos", ["--store", str(tmp_path / "store")]
    found = a_group(photos, other_shot=BURST)
    a, b, c = (str(photos / f"{name}.jpg") for name in "abc")
    for choice in ([a, b], [c, b]):
        assert main(["decide", "keep", *choice, *store]) == 0
    with Store(tmp_path / "store") as opened:
        assert carried_out(found, [str(photos)], opened, APPLY_CHOSEN) == 0
        (entry,) = opened.journal.entries(["moved"])
        assert (entry.tier, entry.is_chosen) == (SIMILAR, True)
        assert [choice.run for choice in opened.choices.all()] == ["", entry.run]
    assert (left(photos), entry.kept) == (["a.jpg", "c.jpg"], c)
    assert main(["undo", *store]) == 0
    said: list[str] = []
    with Store(tmp_path / "store") as opened:
        assert [(choice.run, choice.state) for choice in opened.choices.all()] == [("", UNDONE), (entry.run, UNDONE)]
        carried_out(found, [str(photos)], opened, APPLY_CHOSEN, say=said.append)
    assert (left(photos), said[-1]) == (["a.jpg", "b.jpg", "c.jpg"], "0 photos moved")
    assert f"stays: {b}: Its choice was taken back; to move it, choose again." in said
    assert main(["decide", "list", *store]) == 0
    assert f"keep, run {entry.run}, taken back" in capsys.readouterr().out
    assert main(["decide", "keep", b, c, *store]) == 0  # c is a frame of a burst, and a person wants it to move
    with Store(tmp_path / "store") as opened:
        carried_out(found, [str(photos)], opened, APPLY_CHOSEN)
    assert left(photos) == ["a.jpg", "b.jpg"]
    capsys.readouterr()


@pytest.mark.parametrize("how", [["undo"], ["undo", "b.jpg"], ["undo", "--suspects"]])
def test_what_was_brought_back_waits_for_a_new_choice_whatever_moved_it(
    how: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The choice has not been carried out, because ``--apply`` moved the photo first, as an exact copy."""
    photos, store = tmp_path / "photos", ["--store", str(tmp_path / "store")]
    a, b = (write(photos / f"{name}.jpg", b"copy") for name in "ab")
    found = report((member(a), member(b)))
    assert main(["decide", "keep", str(a), str(b), *store]) == 0
    with Store(tmp_path / "store") as opened:
        assert carried_out(found, [str(photos)], opened, ActionOptions(apply=True)) == 0
    if "--suspects" in how:
        a.rename(tmp_path / "elsewhere.jpg")
    assert main([*(str(photos / part) if part == "b.jpg" else part for part in how), *store]) == 0
    if "--suspects" in how:
        (tmp_path / "elsewhere.jpg").rename(a)
    with Store(tmp_path / "store") as opened:
        assert [choice.state for choice in opened.choices.all()] == [UNDONE]
        carried_out(found, [str(photos)], opened, APPLY_CHOSEN)
    assert left(photos) == ["a.jpg", "b.jpg"]


def test_a_choice_about_other_bytes_or_taken_back_moves_nothing(tmp_path: Path) -> None:
    photos, store = tmp_path / "photos", ["--store", str(tmp_path / "store")]
    a_group(photos)
    a, b, c = (str(photos / f"{name}.jpg") for name in "abc")
    assert main(["decide", "keep", a, b, *store]) == 0
    write(photos / "b.jpg", b"saved by another program")
    found = report(tuple(member(photos / f"{name}.jpg") for name in "abc"))
    with Store(tmp_path / "store") as opened:
        carried_out(found, [str(photos)], opened, APPLY_CHOSEN)
        assert left(photos) == ["a.jpg", "b.jpg", "c.jpg"]
    assert main(["decide", "keep", a, c, *store]) == 0
    assert main(["decide", "forget", c, *store]) == 0
    with Store(tmp_path / "store") as opened:
        carried_out(found, [str(photos)], opened, APPLY_CHOSEN)
    assert left(photos) == ["a.jpg", "b.jpg", "c.jpg"]


def test_a_chosen_photo_that_stays_is_listed_with_the_reason(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    photos, store = tmp_path / "photos", ["--store", str(tmp_path / "store")]
    found = a_group(photos)
    a, b, other = str(photos / "a.jpg"), str(photos / "b.jpg"), str(write(photos / "other.jpg", b"other"))
    elsewhere = [str(write(tmp_path / "elsewhere" / name, name.encode())) for name in ("1.jpg", "2.jpg")]
    gone = str(write(photos / "gone.jpg", b"gone"))
    for choice in ([a, b], [a, other], [other, gone], elsewhere):
        assert main(["decide", "keep", *choice, *store]) == 0
    (photos / "gone.jpg").unlink()
    assert main(["decide", "keep", a, other, *store]) == 0
    capsys.readouterr()
    said: list[str] = []
    with Store(tmp_path / "store") as opened:
        carried_out(found, [str(photos)], opened, ActionOptions(dry_run=True, is_chosen=True), say=said.append)
    assert said == [
        f"stays: {b}: A later choice about its group holds.",
        f"stays: {other}: The search does not find it in one group with {a}, or a chosen photo has changed.",
        "--apply would move nothing",
    ]


@pytest.mark.parametrize(
    ("model", "rules", "stay"),
    [
        (MODEL, "pixels", ["a.jpg", "b.jpg", "c.jpg"]),
        (MODEL, "pixels, act-on=similar", ["a.jpg", "c.jpg"]),
        (MODEL, "act-on=edited", ["a.jpg", "b.jpg", "c.jpg"]),
        ("m/random:0@1", "act-on=similar", ["a.jpg", "b.jpg", "c.jpg"]),
    ],
)
def test_what_rules_chose_moves_by_default_or_by_a_tier_that_a_person_added(
    model: str, rules: str, stay: list[str], tmp_path: Path
) -> None:
    """The store holds a choice that moves all; c is a frame of a burst, which only a look at it can move."""
    photos = tmp_path / "photos"
    found = a_group(photos, model, other_shot=BURST)
    (group,) = found.groups
    with Store(tmp_path / "store") as store:
        store.choices.add([("keep", chosen_photos(group, {1, 2}))], rules=rules)
        assert carried_out(found, [str(photos)], store, APPLY_CHOSEN) == 0
    assert left(photos) == stay


@pytest.mark.parametrize(
    ("protected", "reason"),
    [
        ({"is_reference": True}, "reference folder"),
        ({"embedded": "film", "embedded_digest": "1"}, "holds more than its picture"),
        ({"metadata": Metadata(title="a title")}, "metadata that the kept photo lacks"),
    ],
)
def test_a_choice_does_not_lose_what_only_the_duplicate_has(
    protected: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    found = a_group(tmp_path, **protected)
    plan = planned(found, [tmp_path], chosen={str(tmp_path / "c.jpg"): None})
    (skip,) = plan.skipped
    assert reason in skip.reason
    assert plan.moves == ()


def test_a_companion_that_another_group_compared_stays(tmp_path: Path) -> None:
    copies = [write(tmp_path / folder / "1.jpg", b"photo") for folder in "ab"]
    for folder in "ab":
        write(tmp_path / folder / "1.cr2", b"raw")
    found = report(tuple(map(member, copies)))
    assert len(planned(found, [tmp_path]).moves) == 1
    plan = planned(found, [tmp_path], compared={str(tmp_path / "b" / "1.cr2")})
    assert "was compared as a photo of its own" in plan.skipped[0].reason


@pytest.mark.parametrize("paths", [["a.jpg"], ["a.jpg", "a.jpg"]])
def test_one_photo_is_no_choice(paths: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a_group(tmp_path)
    named = [str(tmp_path / path) for path in paths]
    assert main(["decide", "keep", *named, "--store", str(tmp_path / "store")]) == 2
    assert "name the photo that stays" in capsys.readouterr().err
