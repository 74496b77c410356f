"""How much does the fast JPEG decode change, class by class?

Every file is decoded on the fast path and on the exact one. PSNR compares the model's input pixels, the cosine the
embeddings of the exported model. With random weights the cosine only shows how much of a change reaches the output of
such a network.

The pictures are made of the sample photos, as ``benchmarks/fixtures/pictures.py`` says. Two kinds are stress tests and
kept apart, because the model's input is nearly flat: *noise* and *texture*.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, Final

import numpy as np

from benchmarks.fixtures.pictures import ENCODERS, KINDS, QUALITIES, STRESS, jpeg, psnr_db
from benchmarks.fixtures.repositories import Pixels, Vectors, bare_encoder, preprocessing
from benchmarks.fixtures.sample_photos import sample_pictures
from benchmarks.harness.experiment import REPOSITORY, Run, experiment, option
from benchmarks.harness.results import show
from preprocess_ensemble.imaging import turbojpeg_decoder
from preprocess_ensemble.imaging.decode import DecodePath, decode, decode_image
from preprocess_ensemble.imaging.transform import SCALING_FLOOR, PreprocessConfig, preprocess

SIZES: Final = {"1.2 MP": (1280, 960), "2 MP": (1632, 1224), "12 MP": (4032, 3024), "24 MP": (6000, 4000)}
"""Decoded at a half, a half, a quarter and an eighth; the first and the last are close to the limit of their scale."""


def deviation(embed: Callable[[Pixels], Vectors], config: PreprocessConfig, files: list[bytes]) -> dict[str, Any]:
    """Decode each file both ways and summarise the differences; a file that is not scaled is an error here."""
    exact = np.stack([preprocess(decode(file), config) for file in files])  # (N, H, W, 3)
    scaled = []
    for file in files:
        decoded = decode_image(file, at_least=config.decode_at_least)
        if decoded.decode_path is not DecodePath.SCALED or decoded.image is None:
            raise AssertionError(f"expected a scaled decode, got {decoded.decode_path.value}")
        scaled.append(preprocess(decoded.image, config))
    fast = np.stack(scaled)
    cosines = (embed(exact).astype(np.float64) * embed(fast)).sum(axis=1)
    psnr = [psnr_db(pixels, expected) for pixels, expected in zip(fast, exact, strict=True)]
    return {"files": len(files), "psnr_db_min": min(psnr), "cosine_min": float(cosines.min())}


def encodings(kind: str) -> list[tuple[str, int]]:
    """(encoder, quality): all encoders for the two kinds that are most like photos, some for the others."""
    if kind not in ("photo", "mosaic"):
        return [("4:2:0", 85), ("4:4:4", 85), ("4:1:1", 85)]
    return [("4:2:0", quality) for quality in QUALITIES] + [(name, 85) for name in ENCODERS if name != "4:2:0"]


@experiment(
    REPOSITORY,
    option("--sizes", nargs="+", choices=tuple(SIZES), default=list(SIZES), help="default: all"),
    option("--kinds", nargs="+", choices=tuple(KINDS), default=list(KINDS), help="default: all"),
)
def measure(run: Run) -> dict[str, Any]:
    embed, config = bare_encoder(run.options.repository), preprocessing(run.options.repository)
    sources = sample_pictures()
    rows = []
    for size, kind in itertools.product(run.options.sizes, run.options.kinds):
        drawn = list(KINDS[kind](sources, SIZES[size]))
        for encoding, quality in encodings(kind):
            files = [jpeg(picture, quality, encoding) for picture in drawn]
            case = {"size": size, "subsampling": encoding, "quality": quality, "kind": kind}
            rows.append(case | deviation(embed, config, files))
    named = {" ".join(str(row[key]) for key in ("size", "subsampling", "quality", "kind")): row for row in rows}
    shown = {name: {key: row[key] for key in ("psnr_db_min", "cosine_min")} for name, row in named.items()}
    show(f"As served, floor {SCALING_FLOOR}; stress tests: {', '.join(sorted(STRESS))}", shown)
    return {
        "model": run.passport.id,
        "library": "libjpeg-turbo" if turbojpeg_decoder.installed() else "Pillow",
        "scaling_floor": SCALING_FLOOR,
        "by_class": [row for row in rows if row["kind"] not in STRESS],
        "stress": [row for row in rows if row["kind"] in STRESS],
    }
