"""Finds the photos that look most like a photo. The first run embeds the folder, later runs only what is new in it.

pip install '.[cli]'
python examples/similar_photos.py ~/Pictures holiday.jpg
"""

from __future__ import annotations

import argparse
from pathlib import Path

from clip_client import SyncClipClient, load_vectors, nearest, save_vectors
from clip_client.dedup import scan


def main() -> None:
    parser = argparse.ArgumentParser(description="Find the photos that look most like a photo.")
    parser.add_argument("folder", type=Path, help="where to search, with all subfolders")
    parser.add_argument("photos", nargs="+", help="photos to find similar ones for")
    parser.add_argument("--vectors", type=Path, default=Path("vectors"), help="where to keep the vectors of FOLDER")
    parser.add_argument("--top", type=int, default=5, help="how many photos to print for each")
    parser.add_argument("--url", default="auto:", help="a Triton server, local: or auto:")
    arguments = parser.parse_args()

    with SyncClipClient(arguments.url) as clip:
        embed_new_photos(clip, arguments.folder, arguments.vectors)
        queries = clip.embed(arguments.photos)

    # Reads the folder of vectors in parts and compares each vector. It refuses vectors of another model.
    answers = nearest(queries, arguments.vectors, k=arguments.top)
    for index, (photo, answer) in enumerate(zip(queries.sources, answers, strict=True)):
        print(photo if index not in queries.errors else queries.errors[index])
        for found in answer:
            print(f"    {found.cosine:.4f} {found.path}")


def embed_new_photos(clip: SyncClipClient, folder: Path, vectors: Path) -> None:
    """Add the photos that ``vectors`` does not hold yet."""
    done = set(load_vectors(vectors).sources) if vectors.is_dir() else set()
    new = [photo for photo in scan([folder.resolve()]).photos if photo not in done]
    if new:
        batch = clip.embed(new)
        save_vectors(vectors, batch)
        print(f"{len(batch)} new photos, {len(batch.errors)} of them cannot be read")


if __name__ == "__main__":
    main()
