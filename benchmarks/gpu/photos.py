"""Photos for the study of a card, made once where scikit-image is: ``224`` and ``256``, folders of small JPEG files."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Final

from PIL import Image, ImageOps

from preprocess_ensemble.testing.sample_photos import write_originals, write_thumbnails

SIDE: Final = 224
QUALITY: Final = 85


def write_photos(directory: Path) -> None:
    """Write both folders below ``directory``: squares of the model's input size, and 256 px on the shorter side."""
    write_thumbnails(directory / "256")
    exact = directory / "224"
    exact.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as originals:
        for path in write_originals(Path(originals)):
            with Image.open(path) as photo:
                square = ImageOps.fit(photo.convert("RGB"), (SIDE, SIDE), Image.Resampling.LANCZOS)
                square.save(exact / f"{path.stem}.jpg", quality=QUALITY)
