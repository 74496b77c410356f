"""What do your trained weights do here?

Run it on a machine that has the weights: nothing here can download them. It exports the model, and measures with your
own photos:

- how closely both towers agree with PyTorch: whole files in fp32, and thumbnails in the default precision;
- how the cosines of copies and of different photos lie about the threshold for duplicates;
- zero-shot labels, if the photos lie in folders that are named by what they show, or with ``--labels``.

The result holds figures only: no photo, path, label or query.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image, ImageOps

from benchmarks.experiments.serving.three_way import texts
from benchmarks.fixtures.pictures import encoded
from benchmarks.harness.experiment import MODEL, Run, experiment, option
from benchmarks.harness.results import show
from benchmarks.peers.baseline.network import Network
from clip_client import ClientConfig, ClipClient, EmbeddingBatch
from clip_client.dedup.compare.thresholds import thresholds_for
from clip_client.dedup.files.scanner import scan
from preprocess_ensemble.export.exporter import export_model

if TYPE_CHECKING:
    from benchmarks.fixtures.repositories import Vectors


@experiment(
    MODEL,
    option("--pretrained", default="laion2b_s34b_b79k", help="tag of the weights, or a checkpoint file"),
    option("--photos", type=Path, required=True, metavar="DIR", help="your photos, at least 100"),
    option("--labels", metavar="A,B,...", help="zero-shot labels (default: names of the folders in DIR)"),
    option("--most", type=int, default=1000, help="photos to use; a random choice of more"),
)
def measure(run: Run) -> dict[str, Any]:
    options = run.options
    repository = run.scratch / "models"
    model = options.model or "ViT-B-32"
    passport = export_model(model=model, pretrained=options.pretrained, repository=repository, report=print)
    found = [Path(file.path) for file in scan([str(options.photos)]).files]
    paths = sorted(random.Random(0).sample(found, min(options.most, len(found))))
    network = Network(model, options.pretrained, device="cpu")
    labels = options.labels.split(",") if options.labels else []
    summary = asyncio.run(compared(f"local:{repository}", network, options.photos, paths, labels))
    show(
        f"{passport.id}, {len(paths)} photos",
        {f"{name}: {figure}": {"": value} for name, figures in summary.items() for figure, value in figures.items()},
    )
    return {"model": passport.id, "photos": len(paths), "summary": summary}


async def compared(
    url: str, network: Network, root: Path, paths: Sequence[Path], labels: Sequence[str]
) -> dict[str, dict[str, float]]:
    """All that is measured with the exported model at ``url``, of the photos ``paths`` below ``root``."""
    whole = ClientConfig(urls=(url,), transfer="original", local_precision="fp32")
    async with ClipClient(config=whole) as exact, ClipClient(url) as usual:
        photos = await usual.embed(paths)
        kept = [row for row in range(len(paths)) if row not in photos.errors]
        readable = [paths[row] for row in kept]
        vectors, originals = photos.vectors[kept], (await exact.embed(readable)).vectors
        pictured = np.concatenate([by_torch(network, path) for path in readable])
        found = {
            "images, sent whole": cosines(originals, pictured),
            "images, sent as thumbnails": cosines(vectors, pictured),
            "texts": cosines((await exact.embed_text(texts())).vectors, network.encode_texts(texts())),
            "copies and strangers": await about_threshold(usual, readable, photos),
        }
        shown = {path: path.relative_to(root).parts[0] for path in readable if path.parent != root}
        labels = labels or sorted(set(shown.values()))
        if shown and len(labels) > 1:
            chosen = await usual.classify(list(shown), labels)
            right = np.array(labels)[chosen.probabilities.argmax(axis=1)] == list(shown.values())
            found["zero-shot"] = {"photos": len(shown), "labels": len(labels), "right": float(np.mean(right))}
    return found


def cosines(ours: Vectors, theirs: Vectors) -> dict[str, float]:
    """Return the least and the median cosine between rows of unit vectors (N, D) and the same rows of other vectors."""
    each = (ours.astype(np.float64) * theirs).sum(axis=1)
    return {"least": float(each.min()), "median": float(np.median(each))}


async def about_threshold(clip: ClipClient, paths: Sequence[Path], photos: EmbeddingBatch) -> dict[str, float]:
    """Count the copies that reach the threshold for duplicates, and the photos that are as close to another photo."""
    similar = thresholds_for(photos.model_id).similar
    vectors = photos.vectors[np.isfinite(photos.vectors).all(axis=1)]
    found: dict[str, float] = {"threshold": similar}
    changes: dict[str, Callable[[Image.Image], bytes]]
    changes = {"quality 40": partial(encoded, quality=40), "half size": halved, "cropped by 5 %": cropped}
    for name, change in changes.items():
        copies = (await clip.embed(change(_upright(path)) for path in paths)).vectors
        each = (vectors * copies).sum(axis=1)
        found[f"{name}: found"] = float(np.mean(each >= similar))
        found[f"{name}: 5th percentile"] = float(np.percentile(each, 5))
    nearest = [float(np.partition(vectors @ row, -2)[-2]) for row in vectors]
    return found | {
        "photos with another as close": float(np.mean(np.array(nearest) >= similar)),
        "nearest other photo, 95th percentile": float(np.percentile(nearest, 95)),
    }


def by_torch(network: Network, path: Path) -> Vectors:
    """open_clip's own vector of a photo: (1, D)."""
    with Image.open(path) as opened:
        return network.encode([network.prepared(ImageOps.exif_transpose(opened))])


def halved(photo: Image.Image) -> bytes:
    size = (max(1, photo.width // 2), max(1, photo.height // 2))
    return encoded(photo.resize(size, Image.Resampling.LANCZOS), quality=90)


def cropped(photo: Image.Image) -> bytes:
    width, height = photo.size
    return encoded(photo.crop((width // 40, height // 40, width - width // 40, height - height // 40)), quality=90)


def _upright(path: Path) -> Image.Image:
    with Image.open(path) as opened:
        return ImageOps.exif_transpose(opened).convert("RGB")
