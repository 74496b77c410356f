"""Watches a folder, and prints for each new photo which others look almost the same. Ctrl-C ends it.

pip install '.[local]'
python examples/folder_watcher.py ~/Pictures/inbox
"""

from __future__ import annotations

import argparse
import os
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from clip_client import SyncClipClient, nearest
from clip_client.dedup import scan


class Watcher:
    """The photos of a folder that have been seen, and their vectors."""

    def __init__(self, clip: SyncClipClient, folder: Path) -> None:
        self.clip = clip
        self.folder = folder
        self.vectors: dict[str, np.ndarray[Any, Any]] = {}
        self._versions: dict[str, tuple[int, int]] = {}

    def embed_new_photos(self) -> list[str]:
        """Embed what is new or has changed since the last call; return the paths."""
        new = []
        for path in scan([self.folder]).photos:
            with suppress(OSError):  # deleted meanwhile
                status = os.stat(path)
                # A photo that is still being copied fails now, and is tried again when its size or time has changed.
                if self._versions.get(path) != (version := (status.st_size, status.st_mtime_ns)):
                    self._versions[path] = version
                    new.append(path)
        batch = self.clip.embed(new)
        for error in batch.errors.values():
            print(error, flush=True)
        added = [index for index in range(len(batch)) if index not in batch.errors]
        self.vectors.update((new[index], batch.vectors[index]) for index in added)
        return [new[index] for index in added]

    def print_near_duplicates(self, path: str, at_least: float) -> None:
        """Print the photos that are more similar to ``path`` than ``at_least``."""
        others = [other for other in self.vectors if other != path and os.path.exists(other)]
        if others:
            for found in nearest(self.vectors[path], np.stack([self.vectors[other] for other in others]), k=3):
                if found.cosine >= at_least:
                    print(f"{path} looks like {others[found.row]} ({found.cosine:.4f})", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description="Print near-duplicates of each new photo in a folder.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--at-least", type=float, default=0.96, help="cosine from which photos count as alike")
    parser.add_argument("--every", type=float, default=2.0, help="seconds between two looks at the folder")
    parser.add_argument("--url", default="auto:", help="a Triton server, local: or auto:")
    arguments = parser.parse_args()
    with suppress(KeyboardInterrupt), SyncClipClient(arguments.url) as clip:
        watcher = Watcher(clip, arguments.folder)
        print(f"watching {len(watcher.embed_new_photos())} photos", flush=True)
        while True:
            time.sleep(arguments.every)
            for path in watcher.embed_new_photos():
                watcher.print_near_duplicates(path, arguments.at_least)


if __name__ == "__main__":
    main()
