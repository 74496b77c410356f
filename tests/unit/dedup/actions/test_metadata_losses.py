"""Copies that stay because of what only their files say, from files to the plan."""

from __future__ import annotations

import asyncio
import os
import sys
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from PIL import Image, ImageEnhance

from clip_client.dedup import find_duplicates
from clip_client.dedup.features.image_features import extract_features
from clip_client.dedup.types import EDITED, EXACT, RE_ENCODED, SAME_PIXELS, SAME_SCENE
from tests.fixtures.albums import NoPictures, member, planned, report, write
from tests.fixtures.images import phone_files
from tests.fixtures.images.camera_files import exif, packet
from tests.fixtures.images.image_files import encoded, jpeg
from tests.fixtures.images.scenes import resized, scene
from tests.fixtures.members import aligned

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from clip_client.dedup import DuplicateReport
    from clip_client.dedup.actions.plan import Plan

PICTURE = scene(0)
SMALL = resized(PICTURE, 0.6)
SIZE: dict[str, Any] = {"ExifImageWidth": PICTURE.width, "ExifImageHeight": PICTURE.height}


def camera_file(picture: Image.Image = PICTURE, quality: int = 95, **said: Any) -> bytes:
    return encoded(picture, "JPEG", quality=quality, exif=exif(**SIZE, **said))


def stays(plan: Plan) -> str:
    assert (plan.moves, len(plan.skipped)) == ((), 1)
    return plan.skipped[0].reason


ANN: dict[str, Any] = {"Artist": "Ann", "Copyright": "Ann"}


@pytest.mark.parametrize(
    ("options", "lost"),
    [
        ({}, ""),
        ({"exif": exif(**SIZE)}, ""),
        ({"exif": exif(**SIZE, Software="GIMP 3", DateTime="2024:01:01 10:00:00")}, ""),
        ({"exif": exif(**SIZE, Artist="Ann")}, "creator"),
        ({"xmp": packet('xmp:Label="Red">')}, "colour label"),
        (
            {"exif": exif(**SIZE, **ANN), "xmp": packet('xmp:Label="Red" photoshop:City="Wien">')},
            "colour label, creator, copyright and city",
        ),
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
    tmp_path: Path, options: dict[str, Any], lost: str
) -> None:
    files = {"kept.jpg": camera_file(), "small.jpg": encoded(SMALL, "JPEG", quality=80, **options)}
    kept, copy = (
        member(
            write(tmp_path / name, data), metadata=extract_features(data)[0].metadata, tier=RE_ENCODED, matches=matches
        )
        for (name, data), matches in zip(files.items(), [(), aligned(RE_ENCODED)], strict=True)
    )
    for merges in (False, True):
        plan = planned(report((kept, copy)), [tmp_path], merge_metadata=merges)
        assert [skip.reason for skip in plan.skipped] == (
            [f"It has metadata that the kept photo lacks: {lost}."] if lost else []
        )
        assert len(plan.moves) == (not lost)


@pytest.mark.parametrize("chosen", [False, True])
def test_what_the_kept_photos_sidecar_says_is_not_lost(tmp_path: Path, chosen: bool) -> None:
    said = packet('xmp:Label="Red">')
    kept = member(write(tmp_path / "kept.jpg", jpeg()))
    copy = member(write(tmp_path / "copy.jpg", jpeg(xmp=said)), tier=SAME_PIXELS)
    choice: dict[str, Any] = {"chosen": {copy.path: None}} if chosen else {}
    for sidecar in (b"", packet('xmp:Label="Blue">')):
        write(tmp_path / "kept.jpg.xmp", sidecar)
        assert stays(planned(report((kept, copy)), [tmp_path], **choice)).endswith("colour label.")
    write(tmp_path / "kept.jpg.xmp", said)
    assert len(planned(report((kept, copy)), [tmp_path], **choice).moves) == 1


def test_a_copy_whose_fields_cannot_be_read_stays(tmp_path: Path) -> None:
    kept = member(write(tmp_path / "kept.jpg", jpeg()))
    copy = member(write(tmp_path / "copy.jpg", jpeg()[:50]), tier=SAME_PIXELS)
    assert "cannot be read" in stays(planned(report((kept, copy)), [tmp_path]))


@pytest.mark.skipif(sys.platform != "linux", reason="sets attributes as Linux does")
@pytest.mark.parametrize("tier", [EXACT, SAME_PIXELS])
def test_tags_of_a_file_manager_keep_even_a_copy_of_the_same_bytes(tmp_path: Path, tier: str) -> None:
    kept, copy = (write(tmp_path / name, jpeg()) for name in ("kept.jpg", "copy.jpg"))
    try:
        os.setxattr(copy, "user.xdg.tags", b"holiday")
    except OSError:
        pytest.skip("this file system has no extended attributes")
    found = report((member(kept), member(copy, tier=tier)))
    assert stays(planned(found, [tmp_path])) == "It has metadata that the kept photo lacks: file tags."
    os.setxattr(kept, "user.xdg.tags", b"holiday")
    assert len(planned(found, [tmp_path]).moves) == 1


def test_a_heic_beside_its_export_with_all_metadata_keeps_what_a_jpeg_cannot_hold(tmp_path: Path) -> None:
    files = {
        "export.jpg": camera_file(quality=98),
        "plain.heic": phone_files.heic(SMALL, exif=exif(**SIZE)),
        "several.heic": phone_files.heic(SMALL, exif=exif(**SIZE), append_images=[scene(1)]),
    }
    members = []
    for name, data in files.items():
        found = extract_features(data)[0]
        more = {"embedded": found.embedded, "embedded_digest": found.embedded_digest}
        members.append(member(write(tmp_path / name, data), tier=RE_ENCODED, **more))
    plan = planned(report(tuple(members)), [tmp_path], chosen={one.path: None for one in members[1:]})
    assert [move.duplicate.name for move in plan.moves] == ["plain.heic"]
    (skip,) = plan.skipped
    assert skip.reason == "It holds more than its picture (further pictures), which the kept photo lacks."


# Other shots, in a search that aligns them.


class OneScene(NoPictures):
    """A client of a server to which all photos look alike."""

    async def model(self) -> Any:
        return SimpleNamespace(id="m/trained@00000000", vector_id="m", dimension=2, transfer="original")

    async def embed_stream(self, images: AsyncIterator[Any], *, ordered: bool) -> AsyncIterator[Any]:
        index = 0
        async for _ in images:
            yield SimpleNamespace(index=index, error=None, vector=np.array([1, 0], dtype=np.float32))
            index += 1


def search(folder: Path, **files: bytes) -> DuplicateReport:
    for name, data in files.items():
        write(folder / f"{name}.jpg", data)
    clip: Any = OneScene()
    return asyncio.run(find_duplicates(clip, folder))


def test_a_bracket_is_another_shot_and_an_export_of_it_is_none(tmp_path: Path) -> None:
    found = search(
        tmp_path,
        normal=camera_file(ExposureTime=1 / 60),
        underexposed=camera_file(ImageEnhance.Brightness(PICTURE).enhance(0.8), 92, ExposureTime=1 / 125),
        export=camera_file(SMALL, 80, ExposureTime=0.0167),
    )
    (group,) = found.groups
    moments = {member.photo.name: member.other_shot for member in group.members}
    assert moments == {"normal.jpg": "", "underexposed.jpg": SAME_SCENE, "export.jpg": ""}
    assert group.members[1].tier == RE_ENCODED or group.members[2].tier == RE_ENCODED
    plan = planned(found, [tmp_path], tiers=[RE_ENCODED, EDITED])
    assert [move.duplicate.name for move in plan.moves] == ["export.jpg"]


def test_the_frames_of_a_focus_stack_are_no_edits_of_each_other(tmp_path: Path) -> None:
    (group,) = search(tmp_path, IMG_0001=camera_file(), IMG_0002=camera_file(SMALL, 80)).groups
    assert group.members[1].other_shot == SAME_SCENE
