"""Writes the towers of an open_clip network as ONNX graphs, and computes PyTorch's own vectors.

A graph does everything after the resize, or after the tokenizer, so there is one definition of it, beside the weights::

    pixels (N, H, W, 3) uint8 -> /255, mean, std -> image tower -> L2 norm -> NaN where status != 0 -> embedding (N, D)
    tokens (N, L) int32 ---------------------------> text tower --> L2 norm -> NaN where status != 0 -> embedding (N, D)
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

from preprocess_ensemble.contract import EMBEDDING, FINGERPRINT, PIXELS, STATUS, TOKENS
from preprocess_ensemble.errors import first_line
from preprocess_ensemble.export.model_source import ExportError
from preprocess_ensemble.export.onnx_file import OPSET

if TYPE_CHECKING:
    import numpy.typing as npt

    from preprocess_ensemble.imaging.transform import PreprocessConfig


class _Tower(nn.Module):
    """What both graphs have in common: the end of the path; see the module's docstring."""

    def __init__(self, network: nn.Module, fingerprint: tuple[int, int], **values: torch.Tensor) -> None:
        super().__init__()
        self.network = network
        # Buffers become initializers, whose values a skeleton can replace; other tensors become nodes.
        for name, value in values.items():
            self.register_buffer(name, value)
        self.fingerprint = nn.Buffer(torch.tensor([fingerprint], dtype=torch.int32))
        self.failed = torch.tensor(float("nan"))

    def outputs(self, vectors: torch.Tensor, status: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        vectors = nn.functional.normalize(vectors.to(torch.float32), dim=-1)  # (N, D)
        return torch.where(status == 0, vectors, self.failed), self.fingerprint.expand(status.shape[0], 2)


class _ImageTower(_Tower):
    mean: torch.Tensor
    std: torch.Tensor

    def __init__(
        self,
        network: nn.Module,
        mean: npt.NDArray[np.float32],
        std: npt.NDArray[np.float32],
        fingerprint: tuple[int, int],
    ) -> None:
        shaped = {name: torch.from_numpy(values).view(1, 3, 1, 1) for name, values in (("mean", mean), ("std", std))}
        super().__init__(network, fingerprint, **shaped)
        parameters = network.get_submodule("visual").parameters()
        self.dtype = next((one.dtype for one in parameters), torch.float32)  # a frozen script has none

    def forward(self, pixels: torch.Tensor, status: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        values = pixels.permute(0, 3, 1, 2).to(torch.float32) / 255  # (N, 3, H, W)
        images = ((values - self.mean) / self.std).to(self.dtype)
        return self.outputs(self.network.encode_image(images), status)  # type: ignore[operator]


class _TextTower(_Tower):
    def forward(self, tokens: torch.Tensor, status: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.outputs(self.network.encode_text(tokens), status)  # type: ignore[operator]


def export_image_graph(
    network: nn.Module,
    *,
    size: tuple[int, int],
    mean: npt.NDArray[np.float32],
    std: npt.NDArray[np.float32],
    dimension: int,
    fingerprint: tuple[int, int],
    file: Path,
) -> onnx.ModelProto:
    """Return the graph of the image tower of ``network`` with its normalisation; ``size`` is (H, W) in pixels.

    PyTorch writes it to ``file``, which may be overwritten afterwards. Raises ExportError.
    """
    example = torch.zeros((2, *size, 3), dtype=torch.uint8)
    return _export(_ImageTower(network, mean, std, fingerprint), PIXELS, example, dimension, file)


def export_text_graph(
    network: nn.Module, *, context_length: int, dimension: int, fingerprint: tuple[int, int], file: Path
) -> onnx.ModelProto:
    """Return the graph of the text tower of ``network``.

    PyTorch writes it to ``file``, which may be overwritten afterwards. Raises ExportError.
    """
    example = torch.zeros((2, context_length), dtype=torch.int32)
    return _export(_TextTower(network, fingerprint), TOKENS, example, dimension, file)


def _export(tower: _Tower, name: str, example: torch.Tensor, dimension: int, file: Path) -> onnx.ModelProto:
    names = [name, STATUS, EMBEDDING, FINGERPRINT]
    # If the exporter fails, it prints its whole graph. The switch has had no public name since PyTorch 2.6.
    torch._C._jit_set_onnx_log_enabled(False)
    try:
        # With gradients PyTorch does not use its fused attention, for which ONNX has no operator.
        with warnings.catch_warnings(), torch.enable_grad():
            # The warnings are about the exporter's age and shapes that become constants; the parity check matters.
            warnings.simplefilter("ignore")
            inputs, module = (example, torch.zeros((2, 1), dtype=torch.int32)), tower.eval()
            if any(isinstance(one, torch.jit.ScriptModule) for one in tower.modules()):
                # The exporter cannot trace a script inside of a module.
                module = torch.jit.trace(tower, inputs)  # type: ignore[no-untyped-call]
            torch.onnx.export(
                module,
                inputs,
                str(file),
                input_names=names[:2],
                output_names=names[2:],
                dynamic_axes={name: {0: "N"} for name in names},
                opset_version=OPSET,
                dynamo=False,  # the newer exporter writes opset 18 or later
            )
    except (torch.onnx.OnnxExporterError, RuntimeError) as error:
        remedy = " To export the image tower alone, use --towers image." if name == TOKENS else ""
        raise ExportError(
            f"The model cannot be written as ONNX with opset {OPSET}: {first_line(error)}.{remedy}"
        ) from error
    model = onnx.load(str(file))
    # The exporter leaves the size of each output's row open for fp16. Triton's C++ backend rejects a config.pbtxt that
    # states a size which the graph does not.
    for output, row in zip(model.graph.output, (dimension, 2), strict=True):
        output.type.tensor_type.shape.dim[1].dim_value = row
    return model


def image_vectors(
    network: nn.Module, config: PreprocessConfig, pixels: npt.NDArray[np.uint8]
) -> npt.NDArray[np.float32]:
    """Return PyTorch's own unit vectors (N, D) for ``pixels`` (N, H, W, 3), without code of the graph."""
    values = (pixels.astype(np.float32) / 255 - np.array(config.mean, np.float32)) / np.array(config.std, np.float32)
    images = torch.from_numpy(np.ascontiguousarray(values.transpose(0, 3, 1, 2)))
    with torch.inference_mode():
        vectors: npt.NDArray[np.float32] = network.encode_image(images, normalize=True).numpy()  # type: ignore[operator]
    return vectors


def text_vectors(network: nn.Module, tokens: npt.NDArray[np.int32]) -> npt.NDArray[np.float32]:
    """Return PyTorch's own unit vectors (N, D) for ``tokens`` (N, L), without code of the graph."""
    with torch.inference_mode():
        ids = torch.from_numpy(tokens.astype(np.int64))
        vectors: npt.NDArray[np.float32] = network.encode_text(ids, normalize=True).numpy()  # type: ignore[operator]
    return vectors
