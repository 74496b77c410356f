"""Writes the towers of an open_clip network as ONNX graphs, and computes PyTorch's own vectors.

A graph does everything after the resize, or after the tokenizer, so there is one definition of it, beside the weights::

    pixels (N, H, W, 3) uint8 -> /255, mean, std -> image tower -> L2 norm -> NaN where status != 0 -> embedding (N, D)
    tokens (N, L) int32 ---------------------------> text tower --> L2 norm -> NaN where status != 0 -> embedding (N, D)
    status (N, 1) int32, 0 is good                                            a constant -> fingerprint (N, 2) int32
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import onnx
import torch
from open_clip.transformer import ResidualAttentionBlock, VisionTransformer
from torch import nn

from preprocess_ensemble.contract import EMBEDDING, FINGERPRINT, PIXELS, STATUS, TOKENS
from preprocess_ensemble.errors import first_line
from preprocess_ensemble.export.exportable import is_pixels
from preprocess_ensemble.export.model_source import ExportError
from preprocess_ensemble.export.onnx_file import OPSET

if TYPE_CHECKING:
    import numpy.typing as npt

    from preprocess_ensemble.imaging.transform import PreprocessConfig
    from preprocess_ensemble.runtimes.agreement import Rows


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


def export_graph(
    network: nn.Module,
    rows: Rows,
    normalization: tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]] | None,
    *,
    dimension: int,
    fingerprint: tuple[int, int],
    file: Path,
) -> onnx.ModelProto:
    """Return the graph of the tower of ``network`` that takes such ``rows``.

    ``normalization`` is the mean and std of pixels, None for texts. PyTorch writes the graph to ``file``, which may be
    overwritten afterwards. Raises ExportError.
    """
    tower = (
        _TextTower(network, fingerprint) if normalization is None else _ImageTower(network, *normalization, fingerprint)
    )
    example = torch.zeros((2, *rows.shape[1:]), dtype=torch.from_numpy(rows).dtype)
    names = [TOKENS if normalization is None else PIXELS, STATUS, EMBEDDING, FINGERPRINT]
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
        remedy = " To export the image tower alone, use --towers image." if normalization is None else ""
        raise ExportError(
            f"The model cannot be written as ONNX with opset {OPSET}: {first_line(error)}.{remedy}"
        ) from error
    model = onnx.load(str(file))
    # The exporter leaves the size of each output's row open for fp16. Triton's C++ backend rejects a config.pbtxt that
    # states a size which the graph does not.
    for output, row in zip(model.graph.output, (dimension, 2), strict=True):
        output.type.tensor_type.shape.dim[1].dim_value = row
    return model


def tower_vectors(network: nn.Module, config: PreprocessConfig, rows: Rows) -> npt.NDArray[np.float32]:
    """Return PyTorch's own unit vectors (N, D) for ``rows``, without code of the graph."""
    with torch.inference_mode():
        if is_pixels(rows):
            values = rows.astype(np.float32) / 255
            values = (values - np.array(config.mean, np.float32)) / np.array(config.std, np.float32)
            images = torch.from_numpy(np.ascontiguousarray(values.transpose(0, 3, 1, 2)))
            found = network.encode_image(images, normalize=True)  # type: ignore[operator]
        else:
            found = network.encode_text(torch.from_numpy(rows.astype(np.int64)), normalize=True)  # type: ignore[operator]
    vectors: npt.NDArray[np.float32] = found.numpy()
    return vectors


class _ClassTokenBlock(nn.Module):
    """open_clip's ``ResidualAttentionBlock``: (N, L, D) in, its row 0 out as (N, 1, D)."""

    def __init__(self, block: Any) -> None:
        super().__init__()
        self.heads: int = block.attn.num_heads
        width = block.attn.embed_dim
        weight, bias = block.attn.in_proj_weight, block.attn.in_proj_bias
        self.query = _linear(weight[:width], bias[:width])
        self.key = _linear(weight[width : 2 * width], bias[width : 2 * width])
        self.value = _linear(weight[2 * width :], bias[2 * width :])
        self.ln_1, self.out_proj, self.ls_1 = block.ln_1, block.attn.out_proj, block.ls_1
        self.ln_2, self.mlp, self.ls_2 = block.ln_2, block.mlp, block.ls_2

    def forward(self, tokens: torch.Tensor, attn_mask: None = None) -> torch.Tensor:
        normal = self.ln_1(tokens)
        queries, keys, values = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2)  # (N, heads, L or 1, D / heads)
            for part in (self.query(normal[:, :1]), self.key(normal), self.value(normal))
        )
        weights = (queries @ keys.transpose(-1, -2) * keys.shape[-1] ** -0.5).softmax(dim=-1)
        attended = (weights @ values).transpose(1, 2).flatten(2)  # (N, 1, D)
        token: torch.Tensor = tokens[:, :1] + self.ls_1(self.out_proj(attended))
        return token + cast("torch.Tensor", self.ls_2(self.mlp(self.ln_2(token))))


def _linear(weight: torch.Tensor, bias: torch.Tensor) -> nn.Linear:
    linear = nn.Linear(weight.shape[1], weight.shape[0], device=weight.device, dtype=weight.dtype)
    linear.weight, linear.bias = nn.Parameter(weight.detach()), nn.Parameter(bias.detach())
    return linear


def prune_to_class_token(tower: nn.Module) -> bool:
    """Change ``tower`` in place so that its last block computes only the class token: 7 % fewer FLOPs in ViT-B-32.

    open_clip's image towers pool by their class token: only row 0 of the last block's output (N, L, D) is used. The
    block's keys and values need all tokens. Its queries, its projection and its MLP, ten twelfths of a block's
    products, need only that row. The result is the same up to the order of additions, and the parity check compares it
    with PyTorch's own tower.

    Returns False, and changes nothing, if the tower is not an open_clip transformer that pools by its class token.
    """
    vision = cast("Any", tower)
    if type(vision) is not VisionTransformer or vision.output_tokens or vision.attn_pool is not None:
        return False
    blocks = vision.transformer.resblocks
    if (
        vision.pool_type != "tok"
        or not vision.transformer.batch_first
        or type(blocks[-1]) is not ResidualAttentionBlock
    ):
        return False
    blocks[-1] = _ClassTokenBlock(blocks[-1])
    return True
