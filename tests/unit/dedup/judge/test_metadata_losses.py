"""Copies that stay because of what only their files say, from files to the plan."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from clip_client.dedup.actions.plan import Plan
from clip_client.dedup.files.reading import read_file
from clip_client.dedup.judge import losses
from clip_client.dedup.judge.verdicts import with_verdicts
from clip_client.dedup.types import ALTERED, BURST, EXACT, RAW, RE_ENCODED, SAME_PIXELS, SIMILAR, Metadata
from tests.fixtures.albums import member, planned, report, write
from tests.fixtures.images.camera_files import exif, packet
from tests.fixtures.images.image_files import encoded, jpeg
from tests.fixtures.images.scenes import resized, scene
from tests.fixtures.members import aligned

PICTURE = scene(0)
SIZE: dict[str, Any] = {"ExifImageWidth": PICTURE.width, "ExifImageHeight": PICTURE.height}


def why(plan: Plan) -> str:
    assert (plan.moves, len(plan.skipped)) == ((), 1)
    return plan.skipped[0].reason


ANN: dict[str, Any] = {"Artist": "Ann", "Copyright": "Ann"}


@pytest.mark.parametrize(
    ("options", "lost"),
    [
        ({}, ""),
        ({"exif": exif(**SIZE, Software="GIMP 3", FocalLengthIn35mmFilm=50)}, "35 mm focal length"),
        (
            {
                "exif": exif(**SIZE, **ANN),
                "xmp": packet('xmp:Label="Red" photoshop:City="Wien" photoshop:State="W" xmp:Rating="3">'),
            },
            "rating, colour label, creator, copyright and 2 more",
        ),
    ],
)
def test_a_proved_copy_stays_for_what_the_kept_photo_does_not_say(
    root: Path, options: dict[str, Any], lost: str
) -> None:
    kept = member(write(root / "kept.jpg", encoded(PICTURE, "JPEG", quality=95, exif=exif(**SIZE))))
    small = write(root / "small.jpg", encoded(resized(PICTURE, 0.6), "JPEG", quality=80, **options))
    found = report((kept, member(small, tier=RE_ENCODED, matches=aligned(RE_ENCODED))))
    stays = [f"It has metadata that the kept photo lacks: {lost}."] if lost else []
    for merges in (False, True):
        plan = planned(found, [root], merge_metadata=merges)
        assert ([skip.reason for skip in plan.skipped], len(plan.moves)) == (stays, not lost)


def test_what_the_kept_photos_sidecar_says_is_not_lost(root: Path) -> None:
    said = packet('xmp:Label="Red">')
    kept = member(write(root / "kept.jpg", jpeg()))
    found = report((kept, member(write(root / "copy.jpg", jpeg(xmp=said)), tier=SAME_PIXELS)))
    for sidecar in (b"", packet('xmp:Label="Blue">')):
        write(root / "kept.jpg.xmp", sidecar)
        assert why(planned(found, [root])).endswith("colour label.")
    write(root / "kept.jpg.xmp", said)
    assert len(planned(found, [root]).moves) == 1


def test_each_frame_of_a_large_cluster_is_read_once(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if frames are compared with others that are far away in their group."""
    reads = []

    def record(path: str) -> Any:
        reads.append(path)
        return read_file(path)

    monkeypatch.setattr(losses, "read_file", record)
    frames = [write(root / f"{number:03}.jpg", jpeg(comment=str(number))) for number in range(640)]
    burst: dict[str, Any] = {"tier": SIMILAR, "other_shot": BURST}
    near = [member(path, **burst) for path in frames[1:320]]
    far = [
        member(path, **burst, copy_of=str(other), copy_tier=ALTERED)
        for path, other in zip(frames[320:], frames, strict=False)
    ]
    with_verdicts(report((member(frames[0]), *near, *far)), [root])
    assert sorted(reads) == [str(path) for path in frames]


SAVES = ", which --merge-metadata can save: {}."


@pytest.mark.parametrize(
    ("more", "data", "lost"),
    [
        ({"tier": ALTERED}, jpeg(exif=exif(Artist="Ann")), ": creator, camera, lens, aperture and 1 more."),
        ({"tier": SIMILAR}, jpeg(exif=exif(Artist="Ann")), SAVES.format("creator")),
        ({"tier": RE_ENCODED, "other_shot": BURST}, jpeg(exif=exif(Artist="Ann")), SAVES.format("creator")),
        ({"tier": SIMILAR}, jpeg(exif=exif(Artist="Ann", XPSubject=b"a\0b\0")), ": creator and subject."),
        ({"tier": SIMILAR}, jpeg(exif=exif()), ""),
    ],
)
def test_what_people_wrote_keeps_a_chosen_photo_also_if_it_is_another_shot(
    root: Path, more: dict[str, Any], data: bytes, lost: str
) -> None:
    kept = member(write(root / "kept.jpg", jpeg(xmp=packet('photoshop:DateCreated="2019-05-03T10:11:12">'))))
    copy = member(write(root / "copy.jpg", data), **more)
    plan = planned(report((kept, copy)), [root], chosen={copy.path: None})
    stays = [f"It has metadata that the kept photo lacks{lost}"] if lost else []
    assert ([skip.reason for skip in plan.skipped], len(plan.moves)) == (stays, not lost)


@pytest.mark.parametrize(
    ("shown", "said"),
    [
        (Metadata(taken="2019-05-03T10:11:12", latitude=48.2, longitude=-16.37), ""),
        (Metadata(latitude=48.2, longitude=-16.37), SAVES.format("date")),
        (Metadata(), SAVES.format("date and GPS position")),
        (Metadata(taken="2020-01-01", latitude=48.2, longitude=-16.37), "Its date differs"),
    ],
)
def test_a_raw_file_says_what_its_preview_says(root: Path, shown: Metadata, said: str) -> None:
    kept = member(write(root / "kept.raf", b"FUJIFILMCCD-RAW"), format=RAW, metadata=shown)
    copy = member(write(root / "copy.jpg", jpeg(exif=exif(gps=True))), tier=SIMILAR)
    plan = planned(report((kept, copy)), [root], chosen={copy.path: None})
    assert len(plan.moves) == (not said)
    assert said in "".join(skip.reason for skip in plan.skipped)


@pytest.mark.skipif(sys.platform != "linux", reason="sets attributes as Linux does")
@pytest.mark.parametrize("tier", [EXACT, SAME_PIXELS])
def test_tags_of_a_file_manager_keep_even_a_copy_of_the_same_bytes(root: Path, tier: str) -> None:
    kept, copy = (write(root / name, jpeg()) for name in ("kept.jpg", "copy.jpg"))
    try:
        os.setxattr(copy, "user.xdg.tags", b"holiday")
    except OSError:
        pytest.skip("this file system has no extended attributes")
    found = report((member(kept), member(copy, tier=tier)))
    assert why(planned(found, [root])) == "It has metadata that the kept photo lacks: file tags."
    os.setxattr(kept, "user.xdg.tags", b"holiday")
    assert len(planned(found, [root]).moves) == 1
    for photo in (kept, copy):
        write(photo.with_suffix(".xmp"), b"<x/>")
    assert len(planned(found, [root]).moves) == 1
    os.setxattr(copy.with_suffix(".xmp"), "user.xdg.comment", b"by Ann")
    assert why(planned(found, [root])) == "The sidecar beside it is damaged, or differs from that of the kept photo."
