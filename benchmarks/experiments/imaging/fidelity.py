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

from typing import TYPE_CHECKING, Any, Final

import numpy as np
from PIL import Image

from benchmarks.fixtures.fidelity_pictures import ENCODERS, KINDS, QUALITIES, STRESS, jpeg
from benchmarks.fixtures.pictures import psnr_db
from benchmarks.harness.experiment import REPOSITORY, Experiment, Run
from benchmarks.harness.results import show
from preprocess_ensemble.imaging import turbojpeg_decoder
from preprocess_ensemble.imaging.decode import DecodePath, decode, decode_image
from preprocess_ensemble.imaging.transform import SCALING_FLOOR, PreprocessConfig, preprocess
from preprocess_ensemble.model_repository.config import encoder_directory
from preprocess_ensemble.model_repository.passport import Passport
from preprocess_ensemble.testing.sample_photos import write_originals

if TYPE_CHECKING:
    from pathlib import Path

    import numpy.typing as npt

SIZES: Final = {
    "1.2 MP": (1280, 960),
    "2 MP": (1632, 1224),
    "12 MP": (4032, 3024),
    "24 MP": (6000, 4000),
}
"""Decoded at a half, a half, a quarter and an eighth; the first and the last are close to the limit of their scale."""
FLOORS: Final = (1.5, 1.75, 2.0, 2.1, 2.25, 2.5)
"""Shorter side of the decoded picture over the model's input side."""


class Encoder:
    """The exported model in ONNX Runtime."""

    def __init__(self, directory: Path) -> None:
        import onnxruntime

        self.passport = Passport.from_json((directory / "model.json").read_text())
        self.config = PreprocessConfig.from_mapping(self.passport.preprocess)
        self._session = onnxruntime.InferenceSession(str(directory / "model.onnx"), providers=["CPUExecutionProvider"])

    def embed(self, pixels: npt.NDArray[np.uint8]) -> npt.NDArray[np.float64]:
        """Embed (N, H, W, 3) pixels; returns (N, D) unit rows."""
        status = np.zeros((len(pixels), 1), np.int32)
        vectors = self._session.run(["embedding"], {"pixels": pixels, "status": status})[0]
        return np.asarray(vectors, dtype=np.float64)


def deviation(encoder: Encoder, files: list[bytes], at_least: tuple[int, int]) -> dict[str, Any]:
    """Decode each file both ways and summarise the differences; a file that is not scaled is an error here."""
    exact = np.stack([preprocess(decode(file), encoder.config) for file in files])  # (N, H, W, 3)
    scaled = []
    for file in files:
        decoded = decode_image(file, at_least=at_least)
        if decoded.decode_path is not DecodePath.SCALED or decoded.image is None:
            raise AssertionError(f"expected a scaled decode, got {decoded.decode_path.value}")
        scaled.append(preprocess(decoded.image, encoder.config))
    fast = np.stack(scaled)
    cosines = (encoder.embed(exact) * encoder.embed(fast)).sum(axis=1)
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


def classes(encoder: Encoder, sources: dict[str, Image.Image]) -> list[dict[str, Any]]:
    """Measure every class with the scale that the server would choose."""
    rows = []
    for megapixels, size in SIZES.items():
        for kind, draw in KINDS.items():
            drawn = list(draw(sources, size))
            for encoding, quality in encodings(kind):
                files = [jpeg(picture, quality, encoding) for picture in drawn]
                case = {"size": megapixels, "subsampling": encoding, "quality": quality, "kind": kind}
                rows.append(case | deviation(encoder, files, encoder.config.decode_at_least))
    return rows


def floors(encoder: Encoder, sources: dict[str, Image.Image]) -> list[dict[str, Any]]:
    """Measure 4:2:0 at quality 85 with a half-size decode that leaves more or less above the input size."""
    rows = []
    for floor in FLOORS:
        short = round(encoder.config.size[0] * floor)
        size = (2 * short * 4 // 3, 2 * short)
        for kind, draw in KINDS.items():
            files = [jpeg(picture, 85, "4:2:0") for picture in draw(sources, size)]
            rows.append({"floor": floor, "kind": kind} | deviation(encoder, files, (short, short)))
    return rows


def print_rows(title: str, rows: list[dict[str, Any]], keys: tuple[str, ...]) -> None:
    """Print one table."""
    lines = []
    for row in rows:
        psnr = f"{row['psnr_db_min']:.1f} dB", f"{row['psnr_db_median']:.1f} dB"
        cosines = f"{row['cosine_min']:.6f}", f"{row['cosine_median']:.6f}"
        lines.append((*(str(row[key]) for key in keys), *psnr, *cosines))
    show(title, (*keys, "PSNR min", "PSNR median", "cosine min", "cosine median"), lines)


def measure(run: Run) -> dict[str, Any]:
    """Measure by floor and by class."""
    encoder = Encoder(encoder_directory(run.options.repository))
    sources = {path.stem: Image.open(path).convert("RGB") for path in write_originals(run.scratch)}
    library = turbojpeg_decoder.library() or "Pillow"
    by_floor = floors(encoder, sources)
    print_rows(f"Half-size decode, 4:2:0, quality 85, by what it leaves ({library})", by_floor, ("floor", "kind"))
    rows = classes(encoder, sources)
    by_class, stress = ([row for row in rows if (row["kind"] in STRESS) is wanted] for wanted in (False, True))
    keys = ("size", "subsampling", "quality", "kind")
    print_rows(f"As served, floor {SCALING_FLOOR}", by_class, keys)
    print_rows("Stress tests: nearly flat at the model's input size", stress, keys)
    return {
        "model": encoder.passport.id,
        "library": library,
        "scaling_floor": SCALING_FLOOR,
        "by_floor": by_floor,
        "by_class": by_class,
        "stress": stress,
    }


EXPERIMENT: Final = Experiment("fidelity", __doc__, measure, (REPOSITORY,))
