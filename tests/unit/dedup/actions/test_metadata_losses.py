"""Copies that stay because of metadata, from files to the plan of a search that aligns them."""

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

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from clip_client.dedup import DuplicateReport
    from clip_client.dedup.actions.plan import Plan


class OneScene(NoPictures):
    """A client of a server to which all photos look alike."""

    async def model(self) -> Any:
        return SimpleNamespace(id="m/trained@00000000", vector_id="m", dimension=2, transfer="original")

    async def embed_stream(self, images: AsyncIterator[Any], *, ordered: bool) -> AsyncIterator[Any]:
        index = 0
        async for _ in images:
            yield SimpleNamespace(index=index, error=None, vector=np.array([1, 0], dtype=np.float32))
            index += 1


def search(folder: Path) -> DuplicateReport:
    clip: Any = OneScene()
    return asyncio.run(find_duplicates(clip, folder))


def stays(plan: Plan) -> str:
    (skip,) = plan.skipped
    assert plan.moves == ()
    return skip.reason


PICTURE = scene(0)
SIZE: dict[str, Any] = {"ExifImageWidth": PICTURE.width, "ExifImageHeight": PICTURE.height}
SMALL = resized(PICTURE, 0.6)


def camera_file(**options: Any) -> bytes:
    return encoded(PICTURE, "JPEG", **{"quality": 95, "exif": exif(**SIZE), **options})


@pytest.mark.parametrize(
    ("options", "lost"),
    [
        ({}, ""),
        ({"exif": exif(**SIZE)}, ""),
        ({"exif": exif(**SIZE, Software="GIMP 3", DateTime="2024:01:01 10:00:00")}, ""),
        ({"exif": exif(**SIZE, Artist="Ann")}, "creator"),
        ({"xmp": packet('xmp:Label="Red">')}, "colour label"),
        (
            {
                "exif": exif(**SIZE, Artist="Ann", Copyright="Ann"),
                "xmp": packet('xmp:Label="Red" photoshop:City="Wien">'),
            },
            "colour label, creator, copyright and city",
        ),
        (
            {
                "exif": exif(**SIZE, Artist="Ann", Copyright="Ann"),
                "xmp": packet('xmp:Label="Red" photoshop:City="Wien" photoshop:State="W" xmp:Rating="3">'),
            },
            "rating, colour label, creator, copyright and 2 more",
        ),
    ],
)
def test_a_proved_copy_stays_for_what_the_kept_photo_does_not_say(
    tmp_path: Path, options: dict[str, Any], lost: str
) -> None:
    write(tmp_path / "kept.jpg", camera_file())
    write(tmp_path / "small.jpg", encoded(SMALL, "JPEG", quality=80, **options))
    (group,) = (found := search(tmp_path)).groups
    assert (os.path.basename(group.keep), group.members[1].tier) == ("kept.jpg", RE_ENCODED)
    for merges in (False, True):
        plan = planned(found, [tmp_path], merge_metadata=merges)
        if lost:
            assert stays(plan) == f"It has metadata that the kept photo lacks: {lost}."
        else:
            assert [move.duplicate.path for move in plan.moves] == [str(tmp_path / "small.jpg")]


def test_what_the_kept_photos_sidecar_says_is_not_lost(tmp_path: Path) -> None:
    said = packet('xmp:Label="Red">')
    write(tmp_path / "kept.jpg", camera_file())
    write(tmp_path / "kept.jpg.xmp", said)
    write(tmp_path / "small.jpg", encoded(SMALL, "JPEG", quality=80, xmp=said))
    found = search(tmp_path)
    assert len(planned(found, [tmp_path]).moves) == 1
    write(tmp_path / "kept.jpg.xmp", packet('xmp:Label="Blue">'))
    assert stays(planned(found, [tmp_path])).endswith("colour label.")


def test_a_chosen_copy_stays_for_its_metadata_too(tmp_path: Path) -> None:
    kept = member(write(tmp_path / "kept.jpg", jpeg()))
    copy = member(write(tmp_path / "copy.jpg", jpeg(xmp=packet('xmp:Label="Red">'))), tier=SAME_PIXELS)
    assert stays(planned(report((kept, copy)), [tmp_path], chosen={copy.path: None})).endswith("colour label.")


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


def exposed(picture: Image.Image, seconds: float, **more: Any) -> bytes:
    made = exif(**SIZE, ExposureTime=seconds)
    return encoded(picture, "JPEG", exif=made, **{"quality": 92, **more})


def test_a_bracket_is_another_shot_and_an_export_of_it_is_none(tmp_path: Path) -> None:
    write(tmp_path / "normal.jpg", exposed(PICTURE, 1 / 60, quality=95))
    write(tmp_path / "underexposed.jpg", exposed(ImageEnhance.Brightness(PICTURE).enhance(0.8), 1 / 125))
    write(tmp_path / "export.jpg", exposed(SMALL, 0.0167, quality=80))
    (group,) = (found := search(tmp_path)).groups
    moments = {os.path.basename(one.path): one.other_shot for one in group.members}
    assert moments == {"normal.jpg": "", "underexposed.jpg": SAME_SCENE, "export.jpg": ""}
    plan = planned(found, [tmp_path], tiers=[RE_ENCODED, EDITED])
    assert [os.path.basename(move.duplicate.path) for move in plan.moves] == ["export.jpg"]


def test_the_frames_of_a_focus_stack_are_no_edits_of_each_other(tmp_path: Path) -> None:
    write(tmp_path / "IMG_0001.JPG", camera_file())
    write(tmp_path / "IMG_0002.JPG", encoded(SMALL, "JPEG", quality=80, exif=exif(**SIZE)))
    (group,) = search(tmp_path).groups
    assert group.members[1].other_shot == SAME_SCENE


def test_a_heic_beside_its_export_with_all_metadata_keeps_what_a_jpeg_cannot_hold(tmp_path: Path) -> None:
    said = exif(**SIZE)
    write(tmp_path / "export.jpg", camera_file(quality=98))
    heics = {
        "plain.heic": phone_files.heic(SMALL, exif=said),
        "several.heic": phone_files.heic(SMALL, exif=said, append_images=[scene(1)]),
    }
    for name, data in heics.items():
        write(tmp_path / name, data)
    members = [
        member(tmp_path / name, tier=RE_ENCODED, embedded=found.embedded, embedded_digest=found.embedded_digest)
        for name in ("export.jpg", *heics)
        for found in [extract_features((tmp_path / name).read_bytes())[0]]
    ]
    (skip,) = planned(report(tuple(members)), [tmp_path], chosen={str(tmp_path / "several.heic"): None}).skipped
    assert skip.reason == "It holds more than its picture (further pictures), which the kept photo lacks."
    assert len(planned(report(tuple(members)), [tmp_path], chosen={str(tmp_path / "plain.heic"): None}).moves) == 1
