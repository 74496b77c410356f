"""Every name that ExifTool sees in a file is known: as a field, or as one of a short list that lays out pictures."""

from __future__ import annotations

import json
import shutil
import subprocess
from typing import TYPE_CHECKING, Any

import pytest
from PIL import ExifTags

from clip_client.dedup.metadata.fields import read_fields
from clip_client.dedup.metadata.names import LAYOUT
from tests.fixtures.images.image_files import jpeg

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.skipif(shutil.which("exiftool") is None, reason="ExifTool is not installed")

GROUPS = ("EXIF", "GPS", "IPTC", "XMP-dc", "XMP-xmp", "XMP-photoshop", "XMP-iptcCore", "XMP-exif", "XMP-tiff")
DIRECTORIES = {"IFD0": ExifTags.TAGS, "ExifIFD": ExifTags.TAGS, "GPS": ExifTags.GPSTAGS}


def exiftool(*arguments: str) -> str:
    return subprocess.run(["exiftool", *arguments], capture_output=True, text=True, check=False).stdout


def with_all_fields(path: Path, data: bytes) -> Path:
    """Let ExifTool write a 1 into each field that takes it, apart from those that hold pictures."""
    path.write_bytes(data)
    names = exiftool("-listw", *(f"-{group}:All" for group in GROUPS)).split()
    names = [name for name in names if name[0].isupper() and not name.endswith("Image")]
    settings = [f"-{group}:{name}=1" for group in GROUPS for name in names]
    (path.parent / "settings").write_text("\n".join(settings), encoding="utf-8")
    exiftool("-q", "-q", "-n", "-overwrite_original", "-@", str(path.parent / "settings"), str(path))
    return path


def test_all_that_exiftool_sees_is_known(tmp_path: Path) -> None:
    path = with_all_fields(tmp_path / "a.jpg", jpeg())
    fields = read_fields(path.read_bytes())
    seen: list[dict[str, Any]] = json.loads(exiftool("-j", "-n", "-D", "-a", "-u", "-G1", str(path)))
    locals_of_xmp = {name.rpartition(":")[2].lower() for name in fields.values}
    unknown, counted = [], 0
    for name, found in seen[0].items():
        group, _, local = name.partition(":")
        tag = found["id"] if isinstance(found, dict) else ""
        if group in DIRECTORIES and not (group == "IFD0" and int(tag) in LAYOUT):
            counted += 1
            known = DIRECTORIES[group].get(int(tag), f"EXIF field 0x{int(tag):04x}")
            unknown += [] if known in fields.values else [name]
        elif group == "IPTC":
            counted += 1
            unknown += [] if f"iptc:{tag}" in fields.values else [name]
        elif group in GROUPS:
            counted += 1
            unknown += [] if locals_of_xmp & {local.lower(), str(tag).lower()} else [name]
    assert unknown == []
    assert counted > 100
