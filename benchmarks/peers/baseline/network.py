"""open_clip in PyTorch: encoded images in, a vector or a status for each out."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import torch
from open_clip.transform import PreprocessCfg, image_transform_v2

from preprocess_ensemble.contract import ImageStatus
from preprocess_ensemble.export.exporter import load_model
from preprocess_ensemble.export.onnx_file import IR_VERSION, OPSET
from preprocess_ensemble.export.parity import REQUIRED_COSINE, canary_image
from preprocess_ensemble.export.pytorch.open_clip_model import find_source, numpy_state, preprocessing_of
from preprocess_ensemble.export.state_dict import weights_sha256
from preprocess_ensemble.imaging.decode import DecodeError, decode
from preprocess_ensemble.model_repository.passport import Canary, Parity, Passport, compute_fingerprint

if TYPE_CHECKING:
    import numpy as np


@dataclass(frozen=True, kw_only=True)
class Result:
    """The outcome for one image."""

    vector: list[float] | None
    """D numbers, a vector of unit length; None if the image failed."""
    status: int
    """0, or the number of an ``ImageStatus``."""
    error: str
    """Empty, or one sentence."""


class Network:
    """A loaded model. Its passport is that of an export of the same weights."""

    def __init__(self, model: str, pretrained: str) -> None:
        """Load and warm up; raises ExportError if the model or its weights do not exist."""
        network = load_model(model, pretrained)
        source, config, weights = (
            find_source(model, pretrained),
            preprocessing_of(network),
            weights_sha256(numpy_state(network)),
        )
        self._device = "cuda" if torch.cuda.is_available() else "cpu"
        self._network = cast("Any", network.to(self._device))
        self._transform = image_transform_v2(PreprocessCfg(**self._network.visual.preprocess_cfg), is_train=False)
        self._decoders = ThreadPoolExecutor(thread_name_prefix="decode")
        canary = self.embed([canary_image()])[0].vector
        assert canary is not None
        self.passport = Passport(
            model=source.model,
            pretrained=source.pretrained,
            weights_sha256=weights,
            preprocess=config.to_mapping(),
            preprocess_id=config.id,
            dimension=len(canary),
            precision="fp32",
            fingerprint=compute_fingerprint(
                model=source.model, weights_sha256=weights, preprocess=config.to_mapping(), precision="fp32"
            ),
            # Exports are compared with this network.
            parity=Parity(images=0, min_cosine=1.0, required=REQUIRED_COSINE["fp32"]),
            canary=Canary.of(canary_image(), canary),
            opset=OPSET,
            ir_version=IR_VERSION,
        )

    def embed(self, images: Sequence[bytes]) -> list[Result]:
        """Decode on threads and encode the good images in one batch; a bad image does not affect the others."""
        prepared = list(self._decoders.map(self._prepare, images))
        good = [tensor for tensor in prepared if isinstance(tensor, torch.Tensor)]
        vectors = iter(self._encode(torch.stack(good)) if good else ())
        return [
            Result(vector=None, status=int(item.status), error=item.message)
            if isinstance(item, DecodeError)
            else Result(vector=next(vectors).tolist(), status=int(ImageStatus.OK), error="")
            for item in prepared
        ]

    def _prepare(self, image: bytes) -> torch.Tensor | DecodeError:
        try:
            tensor: torch.Tensor = self._transform(decode(image))
        except DecodeError as error:
            return error
        return tensor

    @torch.inference_mode()
    def _encode(self, images: torch.Tensor) -> np.ndarray[Any, np.dtype[np.float32]]:
        vectors: np.ndarray[Any, np.dtype[np.float32]] = (
            self._network.encode_image(images.to(self._device), normalize=True).float().cpu().numpy()
        )
        return vectors
