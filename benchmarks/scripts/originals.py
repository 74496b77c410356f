"""Where are photos as cameras wrote them? Fetches public sample repositories: ``python -m benchmarks originals DIR``.

Nothing of them is kept in this repository. The licence is what the repository says about its photos.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path
from typing import Final

SOURCES: Final = {
    "ianare/exif-samples": ("CC-BY-SA-4.0", "JPEG and HEIC files of cameras since 1999"),
    "drewnoakes/metadata-extractor-images": ("any use", "files of more than 200 cameras and phones, 0.4 GB"),
    "recurser/exif-orientation-examples": ("MIT", "two photos in each orientation"),
    "immich-app/test-assets": ("public domain", "photos, RAW files and albums of a photo manager's tests"),
    "AOMediaCodec/libavif": ("BSD-2-Clause", "test files of an AVIF library"),
    "strukturag/libheif": ("LGPL-3.0", "test files of a HEIF library"),
    "link-u/avif-sample-images": ("CC-BY-SA-4.0, some CC-BY", "AVIF files in all depths and samplings"),
}
"""Repository on GitHub -> licence, and what it holds."""


def main() -> int:
    """Clone what the folder lacks; return 1 if a repository could not be fetched."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks originals", description=__doc__)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    failed = 0
    for name, (licence, holds) in SOURCES.items():
        into = folder / name.replace("/", "+")
        if not into.exists():
            command = ["git", "clone", "--quiet", "--depth", "1", f"https://github.com/{name}", str(into)]
            failed |= int(subprocess.run(command, check=False).returncode != 0)
        print(f"{name}: {holds}; licence: {licence}")
    return failed


if __name__ == "__main__":
    sys.exit(main())
