"""SSCD, an image model for copies, as its authors publish it: a TorchScript file without a text tower.

Pizzi et al., "A Self-Supervised Descriptor for Image Copy Detection", CVPR 2022; the files, their preprocessing and
their licence (MIT) are at https://github.com/facebookresearch/sscd-copy-detection.
"""

from __future__ import annotations

import hashlib
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
import torch
from torch import nn

from preprocess_ensemble.errors import first_line
from preprocess_ensemble.export.exportable import BuiltGraph, ExportableModel, GraphOptions
from preprocess_ensemble.export.model_source import TORCHSCRIPT_SUFFIX, ExportError, ModelSource, WrongChoice
from preprocess_ensemble.export.onnx_file import fold_shapes, save
from preprocess_ensemble.export.parity import check_pixels
from preprocess_ensemble.export.pytorch.graph import export_graph, tower_vectors
from preprocess_ensemble.imaging.transform import PreprocessConfig
from preprocess_ensemble.model_repository.config import MODEL_FILE

if TYPE_CHECKING:
    from preprocess_ensemble.runtimes.agreement import Rows

_TRAINED: Final = ("disc_mixup", "disc_large", "disc_blur", "disc_advanced")
_ON_IMAGENET: Final = ("imagenet_mixup", "imagenet_blur", "imagenet_advanced")
_SSCD: Final = tuple(f"sscd_{name}" for name in (*_TRAINED, *_ON_IMAGENET))
_SKEW_320: Final = PreprocessConfig(
    size=(320, 320),
    interpolation="bilinear",
    resize_mode="squash",
    mean=(0.485, 0.456, 0.406),
    std=(0.229, 0.224, 0.225),
)
"""One of the two preprocessings that the authors recommend; the other, small_288, has no fixed size."""


class _Descriptor(nn.Module):
    """A script in the place of CLIP's image tower."""

    def __init__(self, script: nn.Module) -> None:
        super().__init__()
        self.visual = script

    def encode_image(self, images: torch.Tensor, normalize: bool = False) -> torch.Tensor:
        vectors: torch.Tensor = self.visual(images)
        return nn.functional.normalize(vectors, dim=-1) if normalize else vectors


class TorchScriptModel(ExportableModel):
    """One of SSCD's files in memory. Raises ExportError."""

    def __init__(self, file: Path) -> None:
        name = file.name.removesuffix(TORCHSCRIPT_SUFFIX)
        if name not in _SSCD:
            raise WrongChoice(
                f"{file.name} has not the name of one of SSCD's files, the only ones whose preprocessing is known: "
                f"{', '.join(_SSCD)}, each with {TORCHSCRIPT_SUFFIX}."
            )
        try:
            content = file.read_bytes()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # PyTorch calls TorchScript deprecated
                script = torch.jit.load(str(file), map_location="cpu")  # type: ignore[no-untyped-call]
            self._network = _Descriptor(script)
            self._expected = tower_vectors(self._network, _SKEW_320, check_pixels(_SKEW_320))
        except (OSError, RuntimeError, ValueError) as error:
            raise ExportError(f"The model file {file} cannot be used: {first_line(error)}.") from error
        super().__init__(
            source=ModelSource(model=name, pretrained=f"file:{file.name}"),
            config=_SKEW_320,
            text_config={},
            state={},
            image_bytes=len(content),
            text_bytes=0,
        )
        # Of the file: a frozen script has no state dict.
        self.weights_sha256 = hashlib.sha256(content).hexdigest()

    def build(self, rows: Rows, stage: Path, options: GraphOptions) -> BuiltGraph:
        """Write the graph; see :class:`ExportableModel`."""
        if options.precision == "fp16":
            raise WrongChoice("A TorchScript file cannot be exported in fp16: use --precision fp32.")
        options.report("writing the graph")
        file = stage / MODEL_FILE
        model = export_graph(
            self._network,
            rows,
            (np.array(self.config.mean, np.float32), np.array(self.config.std, np.float32)),
            dimension=self._expected.shape[1],
            fingerprint=options.fingerprint,
            file=file,
        )
        fold_shapes(model)
        return BuiltGraph(files=save(model, file), expected=self._expected)
