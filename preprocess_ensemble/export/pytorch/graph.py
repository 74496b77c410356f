"""Write the towers of an open_clip network as ONNX graphs, and compute PyTorch's own vectors.

A graph contains everything after the resize, or after the tokenizer, so this has only one definition, beside the
weights::

    pixels (N, H, W, 3) uint8 -> /255, mean, std -> image tower -> L2 norm -> NaN where status != 0 -> embedding (N, D)
    tokens (N, L) int32 ---------------------------> text tower --> L2 norm -> NaN where status != 0 -> embedding (N, D)
    status (N, 1) int32, 0 is good                                            a constant -> fingerprint (N, 2) int32
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
import torch
from torch import nn

from preprocess_ensemble.contract import EMBEDDING, FINGERPRINT, PIXELS, STATUS, TOKENS
from preprocess_ensemble.errors import first_line
from preprocess_ensemble.export.exportable import is_pixels
from preprocess_ensemble.export.model_source import ExportError
from preprocess_ensemble.export.onnx_file import OPSET, compute_in_fp32, fold_shapes
from preprocess_ensemble.export.pytorch.pruned_towers import PackedText, prune_to_class_token
from preprocess_ensemble.imaging.transform import PreprocessConfig
from preprocess_ensemble.runtimes.agreement import Rows

Vectors = npt.NDArray[np.float32]


class _Tower(nn.Module):
    mean: torch.Tensor
    std: torch.Tensor

    def __init__(self, network: nn.Module, fingerprint: tuple[int, int], normalization: Sequence[Vectors] = ()) -> None:
        super().__init__()
        self.network = network
        # Buffers become initializers, whose values a skeleton can replace. Other tensors become nodes.
        for name, values in zip(("mean", "std"), normalization, strict=False):
            self.register_buffer(name, torch.from_numpy(values).view(1, 3, 1, 1))
        self.fingerprint = nn.Buffer(torch.tensor([fingerprint], dtype=torch.int32))
        self.failed = torch.tensor(float("nan"))

    def outputs(self, vectors: torch.Tensor, status: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        vectors = nn.functional.normalize(vectors.to(torch.float32), dim=-1)  # (N, D)
        return torch.where(status == 0, vectors, self.failed), self.fingerprint.expand(status.shape[0], 2)


class _ImageTower(_Tower):
    def forward(self, pixels: torch.Tensor, status: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        # Cast first, because TensorRT accepts uint8 only in a cast.
        values = pixels.to(torch.float32).permute(0, 3, 1, 2) / 255  # (N, 3, H, W)
        images = ((values - self.mean) / self.std).to(next(self.network.get_submodule("visual").parameters()).dtype)
        return self.outputs(self.network.encode_image(images), status)  # type: ignore[operator]


class _TextTower(_Tower):
    def forward(self, tokens: torch.Tensor, status: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.outputs(self.network.encode_text(tokens), status)  # type: ignore[operator]


def export_graph(
    network: nn.Module,
    rows: Rows,
    normalization: tuple[Vectors, Vectors] | None,
    *,
    dimension: int,
    fingerprint: tuple[int, int],
    file: Path,
    half: bool = False,
    fold: bool = True,
) -> onnx.ModelProto:
    """Return the graph of the tower of ``network`` that takes such ``rows``. Do not use the tower afterwards.

    ``normalization`` is the mean and std of pixels, None for texts. ``half`` is for GPUs: weights and products become
    fp16, and the text tower keeps its padding, because removing it would make each run wait for the card. ``fold``
    folds shapes, which needs the graph and its weights in one message. ``file`` is overwritten. Raises ExportError.
    """
    packed = None
    if normalization is None:
        packed = None if half else PackedText.of(network)
        tower: _Tower = _TextTower(packed or (network.half() if half else network), fingerprint)
    else:
        visual = network.get_submodule("visual")
        prune_to_class_token(visual)
        if half:
            visual.half()
        tower = _ImageTower(network, fingerprint, normalization)
    example = torch.zeros((2, *rows.shape[1:]), dtype=torch.from_numpy(rows).dtype)
    names = [TOKENS if normalization is None else PIXELS, STATUS, EMBEDDING, FINGERPRINT]
    # Stop the exporter from printing its whole graph if it fails. The switch has only a private name since PyTorch 2.6.
    torch._C._jit_set_onnx_log_enabled(False)
    try:
        # Enable gradients: without them PyTorch uses its fused attention, for which ONNX has no operator.
        with warnings.catch_warnings(), torch.enable_grad():
            # Ignore warnings about the exporter's age and constant shapes, because the parity check decides.
            warnings.simplefilter("ignore")
            torch.onnx.export(
                tower.eval(),
                (example, torch.zeros((2, 1), dtype=torch.int32)),
                str(file),
                input_names=names[:2],
                output_names=names[2:],
                dynamic_axes={name: {0: "N"} for name in names},
                opset_version=OPSET,
                dynamo=False,  # the newer exporter writes opset 18 or later
            )
    except (torch.onnx.OnnxExporterError, RuntimeError) as error:
        remedy = " To export the image tower alone, use --towers image." if normalization is None else ""
        raise ExportError(
            f"The model cannot be written as ONNX with opset {OPSET}: {first_line(error)}.{remedy}"
        ) from error
    model = onnx.load(str(file))
    # Set the size of each output's row, which the exporter leaves open for fp16. Triton's C++ backend rejects a
    # config.pbtxt with a size that the graph does not state.
    for output, row in zip(model.graph.output, (dimension, 2), strict=True):
        output.type.tensor_type.shape.dim[1].dim_value = row
    if half:
        compute_in_fp32(model)
    # The shapes of packed texts depend on their lengths.
    if fold and packed is None:
        fold_shapes(model)
    return model


def tower_vectors(network: nn.Module, config: PreprocessConfig, rows: Rows) -> Vectors:
    """Return PyTorch's own unit vectors (N, D) for ``rows``, computed without the code of the graph."""
    with torch.inference_mode():
        if is_pixels(rows):
            values = rows.astype(np.float32) / 255
            values = (values - np.array(config.mean, np.float32)) / np.array(config.std, np.float32)
            images = torch.from_numpy(np.ascontiguousarray(values.transpose(0, 3, 1, 2)))
            found = network.encode_image(images, normalize=True)  # type: ignore[operator]
        else:
            found = network.encode_text(torch.from_numpy(rows.astype(np.int64)), normalize=True)  # type: ignore[operator]
    vectors: Vectors = found.numpy()
    return vectors
