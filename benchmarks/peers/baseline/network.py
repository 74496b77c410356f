"""open_clip in PyTorch, as its documentation shows it: pictures and texts in, unit vectors out."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, cast

import open_clip
import torch
from open_clip.transform import PreprocessCfg, image_transform_v2
from torch.nn import functional

from preprocess_ensemble.export.pytorch.open_clip_model import find_source, load_open_clip_model

if TYPE_CHECKING:
    from PIL import Image

    from benchmarks.fixtures.repositories import Vectors


class Network:
    """A model and its transform. Raises ExportError if the model or its weights do not exist.

    The weights are held in ``dtype``, as open_clip's ``pure_bf16`` does. (``torch.autocast`` converts all of them for
    every batch, which takes four fifths of its time on a CPU.)
    """

    def __init__(self, model: str, pretrained: str, *, device: str, dtype: torch.dtype = torch.float32) -> None:
        logging.basicConfig(level=logging.ERROR)  # open_clip warns of random weights
        self._model = (source := find_source(model, pretrained)).model
        loaded = load_open_clip_model(source)
        self._device, self._dtype = device, dtype
        self._loaded = cast("Any", loaded.to(device, dtype))
        self._transform = image_transform_v2(PreprocessCfg(**self._loaded.visual.preprocess_cfg), is_train=False)

    def prepared(self, picture: Image.Image) -> torch.Tensor:
        """The model's input of a picture: (3, H, W)."""
        tensor: torch.Tensor = self._transform(picture)
        return tensor

    @torch.inference_mode()
    def encode(self, pictures: Sequence[torch.Tensor]) -> Vectors:
        """Encode N pictures that were prepared, in one batch: (N, D)."""
        return self._unit(self._loaded.encode_image(torch.stack(list(pictures)).to(self._device, self._dtype)))

    @torch.inference_mode()
    def encode_texts(self, texts: Sequence[str]) -> Vectors:
        """Encode N texts in one batch: (N, D)."""
        return self._unit(self._loaded.encode_text(self._tokenizer(texts).to(self._device)))

    @cached_property
    def _tokenizer(self) -> Any:
        return open_clip.get_tokenizer(self._model)

    @staticmethod
    def _unit(vectors: torch.Tensor) -> Vectors:
        # A norm computed in bf16 is wrong in the third digit.
        unit: Vectors = functional.normalize(vectors.float(), dim=-1).cpu().numpy()
        return unit
