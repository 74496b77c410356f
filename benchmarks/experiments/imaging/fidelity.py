"""How much does the fast JPEG decode change, class by class?

And how small may the decoded picture be? Every file is decoded on the fast path and on the exact one. PSNR compares the
model's input pixels, the cosine the embeddings of the exported model. With random weights the cosine only shows how
much of a change reaches the output of such a network.

The pictures are made of the sample photos (see ``fidelity_pictures``). *photo*: enlarged, with sensor noise. *mosaic*:
many side by side at their own resolution, with more fine detail than a camera delivers. *upscaled*: enlarged from 512
pixels, without noise. *noisy*: the same with the noise of a high ISO setting. *text* and *screenshot*: sharp edges. Two
kinds are stress tests and kept apart, because the model's input is nearly flat: *noise*, twice as much as in *noisy*,
and *texture*, one small texture repeated over the whole picture.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from PIL import Image

from benchmarks.fixtures.bare_encoder import bare_encoder, preprocessing
from benchmarks.fixtures.fidelity_pictures import ENCODERS, KINDS, QUALITIES, STRESS, jpeg
from benchmarks.fixtures.pictures import psnr_db
from benchmarks.harness.experiment import REPOSITORY, Run, experiment
from benchmarks.harness.results import show
from preprocess_ensemble.imaging import turbojpeg_decoder
from preprocess_ensemble.imaging.decode import DecodePath, decode, decode_image
from preprocess_ensemble.imaging.transform import SCALING_FLOOR, PreprocessConfig, preprocess
from preprocess_ensemble.testing.sample_photos import write_originals

Embed = Callable[[npt.NDArray[np.uint8]], npt.NDArray[np.float32]]

SIZES: Final = {
    "1.2 MP": (1280, 960),
    "2 MP": (1632, 1224),
    "12 MP": (4032, 3024),
    "24 MP": (6000, 4000),
}
"""Decoded at a half, a half, a quarter and an eighth; the first and the last are close to the limit of their scale."""
FLOORS: Final = (1.5, 1.75, 2.0, 2.1, 2.25, 2.5)
"""Shorter side of the decoded picture over the model's input side."""


def deviation(
    embed: Embed, config: PreprocessConfig, files: list[bytes], at_least: tuple[int, int] | None = None
) -> dict[str, Any]:
    """Decode each file both ways and summarise the differences; a file that is not scaled is an error here.

    ``at_least`` is the least size of a scaled decode (default: the model's).
    """
    exact = np.stack([preprocess(decode(file), config) for file in files])  # (N, H, W, 3)
    scaled = []
    for file in files:
        decoded = decode_image(file, at_least=at_least or config.decode_at_least)
        if decoded.decode_path is not DecodePath.SCALED or decoded.image is None:
            raise AssertionError(f"expected a scaled decode, got {decoded.decode_path.value}")
        scaled.append(preprocess(decoded.image, config))
    fast = np.stack(scaled)
    cosines = (embed(exact).astype(np.float64) * embed(fast)).sum(axis=1)
    psnr = [psnr_db(pixels, expected) for pixels, expected in zip(fast, exact, strict=True)]
    return {
        "files": len(files),
        "psnr_db_min": min(psnr),
        "psnr_db_median": float(np.median(psnr)),
        "cosine_min": float(cosines.min()),
        "cosine_median": float(np.median(cosines)),
    }


def encodings(kind: str) -> list[tuple[str, int]]:
    """(encoder, quality): all encoders for the two kinds that are most like photos, some for the others."""
    if kind not in ("photo", "mosaic"):
        return [("4:2:0", 85), ("4:4:4", 85), ("4:1:1", 85)]
    return [("4:2:0", quality) for quality in QUALITIES] + [(name, 85) for name in ENCODERS if name != "4:2:0"]


def classes(embed: Embed, config: PreprocessConfig, sources: dict[str, Image.Image]) -> list[dict[str, Any]]:
    """Measure every class with the scale that the server would choose."""
    rows = []
    for megapixels, size in SIZES.items():
        for kind, draw in KINDS.items():
            drawn = list(draw(sources, size))
            for encoding, quality in encodings(kind):
                files = [jpeg(picture, quality, encoding) for picture in drawn]
                case = {"size": megapixels, "subsampling": encoding, "quality": quality, "kind": kind}
                rows.append(case | deviation(embed, config, files))
    return rows


def floors(embed: Embed, config: PreprocessConfig, sources: dict[str, Image.Image]) -> list[dict[str, Any]]:
    """Measure 4:2:0 at quality 85 with a half-size decode that leaves more or less above the input size."""
    rows = []
    for floor in FLOORS:
        short = round(config.size[0] * floor)
        size = (2 * short * 4 // 3, 2 * short)
        for kind, draw in KINDS.items():
            files = [jpeg(picture, 85, "4:2:0") for picture in draw(sources, size)]
            rows.append({"floor": floor, "kind": kind} | deviation(embed, config, files, (short, short)))
    return rows


def print_rows(title: str, rows: list[dict[str, Any]], keys: tuple[str, ...]) -> None:
    """Print one table."""
    lines = []
    for row in rows:
        psnr = f"{row['psnr_db_min']:.1f} dB", f"{row['psnr_db_median']:.1f} dB"
        cosines = f"{row['cosine_min']:.6f}", f"{row['cosine_median']:.6f}"
        lines.append((*(str(row[key]) for key in keys), *psnr, *cosines))
    show(title, (*keys, "PSNR min", "PSNR median", "cosine min", "cosine median"), lines, width=110)


@experiment(REPOSITORY)
def measure(run: Run) -> dict[str, Any]:
    """Measure by floor and by class."""
    embed, config = bare_encoder(run.options.repository), preprocessing(run.options.repository)
    sources = {path.stem: Image.open(path).convert("RGB") for path in write_originals(run.scratch)}
    library = turbojpeg_decoder.library() or "Pillow"
    by_floor = floors(embed, config, sources)
    print_rows(f"Half-size decode, 4:2:0, quality 85, by what it leaves ({library})", by_floor, ("floor", "kind"))
    rows = classes(embed, config, sources)
    by_class, stress = ([row for row in rows if (row["kind"] in STRESS) is wanted] for wanted in (False, True))
    keys = ("size", "subsampling", "quality", "kind")
    print_rows(f"As served, floor {SCALING_FLOOR}", by_class, keys)
    print_rows("Stress tests: nearly flat at the model's input size", stress, keys)
    return {
        "model": run.passport.id,
        "library": library,
        "scaling_floor": SCALING_FLOOR,
        "by_floor": by_floor,
        "by_class": by_class,
        "stress": stress,
    }
