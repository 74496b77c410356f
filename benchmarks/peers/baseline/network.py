"""open_clip in PyTorch: encoded images in, a vector or a status for each out."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import torch
from open_clip.transform import PreprocessCfg, image_transform_v2

from preprocess_ensemble.contract import ImageStatus
from preprocess_ensemble.export.exporter import describe_model, load_model
from preprocess_ensemble.imaging.decode import DecodeError, decode

if TYPE_CHECKING:
    import numpy as np

    from preprocess_ensemble.model_repository.passport import Passport


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
        self._device = "cuda" if torch.cuda.is_available() else "cpu"
        self._network = cast("Any", network.to(self._device))
        self._transform = image_transform_v2(PreprocessCfg(**self._network.visual.preprocess_cfg), is_train=False)
        self._decoders = ThreadPoolExecutor(thread_name_prefix="decode")
        self.passport: Passport = describe_model(model, pretrained, network, self._embed_canary)

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

    def _embed_canary(self, image: bytes) -> list[float]:
        vector = self.embed([image])[0].vector
        assert vector is not None
        return vector
