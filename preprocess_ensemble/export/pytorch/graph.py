"""Writes an open_clip network as an ONNX graph that takes raw pixels, and computes PyTorch's own vectors.

The graph does everything after the resize, so there is one definition of it, beside the weights::

    pixels (N, H, W, 3) uint8 -> /255, mean, std -> image tower -> L2 norm -> NaN where status != 0 -> embedding (N, D)
    status (N, 1) int32, 0 is good                                            a constant -> fingerprint (N, 2) int32
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import onnx
import torch
from torch import nn

from preprocess_ensemble.contract import EMBEDDING, FINGERPRINT, PIXELS, STATUS
from preprocess_ensemble.errors import first_line
from preprocess_ensemble.export.model_source import ExportError
from preprocess_ensemble.export.onnx_file import OPSET

if TYPE_CHECKING:
    import numpy.typing as npt

    from preprocess_ensemble.imaging.transform import PreprocessConfig


class _Graph(nn.Module):
    """The exported graph; see the module's docstring."""

    def __init__(
        self,
        network: nn.Module,
        mean: npt.NDArray[np.float32],
        std: npt.NDArray[np.float32],
        fingerprint: tuple[int, int],
    ) -> None:
        super().__init__()
        self.network = network
        # Buffers become initializers, whose values a skeleton can replace; other tensors become nodes.
        self.mean = nn.Buffer(torch.from_numpy(mean).view(1, 3, 1, 1))
        self.std = nn.Buffer(torch.from_numpy(std).view(1, 3, 1, 1))
        self.fingerprint = nn.Buffer(torch.tensor([fingerprint], dtype=torch.int32))
        self.failed = torch.tensor(float("nan"))
        self.dtype = next(network.parameters()).dtype

    def forward(self, pixels: torch.Tensor, status: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        values = pixels.permute(0, 3, 1, 2).to(torch.float32) / 255  # (N, 3, H, W)
        images = ((values - self.mean) / self.std).to(self.dtype)
        vectors = self.network.encode_image(images)  # type: ignore[operator]
        vectors = nn.functional.normalize(vectors.to(torch.float32), dim=-1)  # (N, D)
        return torch.where(status == 0, vectors, self.failed), self.fingerprint.expand(status.shape[0], 2)


def export_graph(
    network: nn.Module,
    *,
    size: tuple[int, int],
    mean: npt.NDArray[np.float32],
    std: npt.NDArray[np.float32],
    dimension: int,
    fingerprint: tuple[int, int],
    file: Path,
) -> onnx.ModelProto:
    """Return the graph of ``network`` with its normalisation; ``size`` is (H, W) in pixels.

    PyTorch writes it to ``file``, which may be overwritten afterwards. Raises ExportError.
    """
    example = (torch.zeros((2, *size, 3), dtype=torch.uint8), torch.zeros((2, 1), dtype=torch.int32))
    names = [PIXELS, STATUS, EMBEDDING, FINGERPRINT]
    # If the exporter fails, it prints its whole graph. The switch has had no public name since PyTorch 2.6.
    torch._C._jit_set_onnx_log_enabled(False)
    try:
        # With gradients PyTorch does not use its fused attention, for which ONNX has no operator.
        with warnings.catch_warnings(), torch.enable_grad():
            # The warnings are about the exporter's age and shapes that become constants; the parity check matters.
            warnings.simplefilter("ignore")
            torch.onnx.export(
                _Graph(network, mean, std, fingerprint).eval(),
                example,
                str(file),
                input_names=names[:2],
                output_names=names[2:],
                dynamic_axes={name: {0: "N"} for name in names},
                opset_version=OPSET,
                dynamo=False,  # the newer exporter writes opset 18 or later
            )
    except (torch.onnx.OnnxExporterError, RuntimeError) as error:
        reason = first_line(error)
        raise ExportError(f"The model cannot be written as ONNX with opset {OPSET}: {reason}.") from error
    model = onnx.load(str(file))
    # The exporter leaves the size of each output's row open for fp16. Triton's C++ backend rejects a config.pbtxt that
    # states a size which the graph does not.
    for output, row in zip(model.graph.output, (dimension, len(fingerprint)), strict=True):
        output.type.tensor_type.shape.dim[1].dim_value = row
    return model


def reference_vectors(
    network: nn.Module, config: PreprocessConfig, pixels: npt.NDArray[np.uint8]
) -> npt.NDArray[np.float32]:
    """Return PyTorch's own unit vectors (N, D) for ``pixels`` (N, H, W, 3), without code of the graph."""
    values = (pixels.astype(np.float32) / 255 - np.array(config.mean, np.float32)) / np.array(config.std, np.float32)
    images = torch.from_numpy(np.ascontiguousarray(values.transpose(0, 3, 1, 2)))
    with torch.inference_mode():
        vectors: npt.NDArray[np.float32] = network.encode_image(images, normalize=True).numpy()  # type: ignore[operator]
    return vectors
