"""The vectors that a server must give: those of the fp32 export, computed on the CPU without a server."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.harness.venvs import BUILD
from preprocess_ensemble.imaging.preprocessor import Preprocessor
from preprocess_ensemble.imaging.transform import PreprocessConfig
from preprocess_ensemble.model_repository.config import encoder_directory, installed_passport

if TYPE_CHECKING:
    from pathlib import Path

    import numpy.typing as npt


def reference_vectors(repository: Path, photos: Path) -> npt.NDArray[np.float32]:
    """Vectors (N, D) of the files in ``photos``, in order of their names; kept in ``build/`` for the next server."""
    passport = installed_passport(repository)
    assert passport is not None, f"{repository} holds no exported model"
    files = [path.read_bytes() for path in sorted(photos.iterdir())]
    digest = hashlib.sha256(passport.id.encode())
    for file in files:
        digest.update(file)
    kept = BUILD / "references" / f"{digest.hexdigest()[:16]}.npy"
    if kept.exists():
        known: npt.NDArray[np.float32] = np.load(kept)
        return known
    import onnxruntime

    preprocessor = Preprocessor(PreprocessConfig.from_mapping(passport.preprocess), fast_decode=False)
    pixels, _ = preprocessor.run([[file] for file in files])  # (N, H, W, 3)
    preprocessor.close()
    inputs: dict[str, Any] = {"pixels": pixels, "status": np.zeros((len(files), 1), np.int32)}
    model = onnxruntime.InferenceSession(
        encoder_directory(repository) / "model.onnx", providers=["CPUExecutionProvider"]
    )
    vectors: npt.NDArray[np.float32] = model.run(["embedding"], inputs)[0]
    kept.parent.mkdir(parents=True, exist_ok=True)
    np.save(kept, vectors)
    return vectors
