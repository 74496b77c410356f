"""Exports an open_clip model to an ONNX file that takes raw pixels, and checks it against PyTorch.

The graph does everything after the resize, so there is one definition of it, beside the weights::

    pixels (N, H, W, 3) uint8 -> /255, mean, std -> image tower -> L2 norm -> NaN where status != 0 -> embedding (N, D)
    status (N, 1) int32, 0 is good                                            a constant -> fingerprint (N, 2) int32
"""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
import onnx
import torch
from torch import nn

from preprocess_ensemble.contract import EMBEDDING, FINGERPRINT, PIXELS, STATUS
from preprocess_ensemble.errors import first_line
from preprocess_ensemble.export import parity
from preprocess_ensemble.export.atomic_install import install, require_space, staging_directory, write_atomically
from preprocess_ensemble.export.canary import canary_image
from preprocess_ensemble.export.class_token_pruning import prune_to_class_token
from preprocess_ensemble.export.open_clip_model import (
    ExportError,
    ModelSource,
    WrongChoice,
    find_source,
    load_open_clip_model,
    preprocessing_of,
    weights_sha256,
)
from preprocess_ensemble.export.shape_folding import fold_shapes
from preprocess_ensemble.imaging.decode import decode
from preprocess_ensemble.imaging.transform import PreprocessConfig, preprocess
from preprocess_ensemble.model_repository.config import (
    MODEL_FILE,
    PASSPORT_FILE,
    Shapes,
    encoder_directory,
    installed_passport,
    pending_files,
)
from preprocess_ensemble.model_repository.passport import Canary, Parity, Passport, compute_fingerprint

if TYPE_CHECKING:
    import numpy.typing as npt

PRECISIONS: Final = tuple(parity.REQUIRED_COSINE)

_MAX_FILE_BYTES: Final = 2_000_000_000
"""A protobuf message is limited to 2 GiB; larger weights go to a separate file."""
_GRAPH_BYTES: Final = 8_000_000
"""Room for the nodes of the graph, the passport and the configuration: everything but the weights."""


def export_model(
    *,
    model: str = "ViT-B-32",
    pretrained: str = "laion2b_s34b_b79k",
    precision: str = "fp32",
    repository: Path = Path("triton_models"),
    force: bool = False,
    report: Callable[[str], None] = lambda line: None,
    check: Callable[..., Parity] = parity.check,
    max_file_bytes: int = _MAX_FILE_BYTES,
) -> Passport:
    """Export ``model`` into the Triton model ``repository`` and return its passport.

    ``model`` is one of open_clip's model names, or the path of a JSON file in its format; ``pretrained`` is a tag, the
    path of a checkpoint, or ``random[:SEED]``. If the repository does not exist, it is created completely. If the same
    model is installed already, nothing is exported unless ``force``. ``report`` receives one line before each step that
    takes time. ``check`` is the parity check; weights of more than ``max_file_bytes`` go to a separate file.

    Raises ExportError, ParityError, RepositoryError or InstallError. After an error or an interruption the model that
    was installed before stays.
    """
    if precision not in PRECISIONS:
        raise WrongChoice(f"Unknown precision {precision!r}; choose {' or '.join(PRECISIONS)}.")
    source = find_source(model, pretrained)
    report(f"loading {source.model}, weights {source.pretrained}")
    network = load_open_clip_model(source)
    config = preprocessing_of(network)
    weights = weights_sha256(network)
    fingerprint = compute_fingerprint(
        model=source.model, weights_sha256=weights, preprocess=config.to_mapping(), precision=precision
    )

    directory = encoder_directory(repository)
    directory.mkdir(parents=True, exist_ok=True)
    installed = installed_passport(repository)
    if installed and not force and (installed.fingerprint, installed.pretrained) == (fingerprint, source.pretrained):
        report(f"{installed.id} is installed already; --force exports it again")
        _write_pending(pending_files(repository, _shapes(installed)))
        return installed

    needed_bytes = _graph_bytes(network, max_file_bytes)
    require_space(directory, needed_bytes)
    with staging_directory(directory.parent, needed_bytes) as stage:
        report("writing the graph")
        pixels = parity.sample_pixels(*config.size)
        # Before the graph is written, which changes the network.
        expected = _reference(network, config, pixels)
        prune_to_class_token(network.get_submodule("visual"))
        has_data_file = needed_bytes > max_file_bytes
        files = _write_graph(network, config, expected.shape[1], fingerprint, precision, stage, has_data_file)
        report("comparing it with PyTorch")
        measured = check(files[-1], pixels, expected, fingerprint, precision)
        encoder = parity.Encoder(files[-1], precision)
        canary = _canary(lambda image: encoder(preprocess(decode(image), config)[None])[0][0])
        passport = _passport(source, weights, config, precision, measured, canary)
        passport_file = stage / PASSPORT_FILE
        passport_file.write_text(passport.to_json(), encoding="ascii")
        # Any problem of the repository shows here, before anything in it changes.
        pending = pending_files(repository, _shapes(passport))
        install(files, commit_marker=passport_file, directory=directory)
        _write_pending(pending)
        for weights_file in directory.glob("model-*.data"):
            if weights_file.name not in {file.name for file in files}:
                weights_file.unlink()
    report(f"installed {passport.id}: cosine to PyTorch {measured.min_cosine:.7f}, {measured.required} is required")
    if precision == "int8":
        report(
            "serve and compare int8 vectors with one version of ONNX Runtime: others give slightly different vectors"
        )
    return passport


def load_model(model: str, pretrained: str) -> nn.Module:
    """Return the open_clip network that :func:`export_model` exports, in fp32, on the CPU, in evaluation mode.

    Raises ExportError.
    """
    return load_open_clip_model(find_source(model, pretrained))


def describe_model(
    model: str, pretrained: str, network: nn.Module, embed_canary: Callable[[bytes], Sequence[float]]
) -> Passport:
    """Return a passport for a network of :func:`load_model` that another service runs in fp32, without an export.

    It has the id and the fingerprint of the exported model, since the vectors are the same. ``embed_canary`` embeds
    one encoded image.
    """
    source = find_source(model, pretrained)
    # Exports are compared with this network.
    measured = Parity(images=0, min_cosine=1.0, required=parity.REQUIRED_COSINE["fp32"])
    canary = _canary(embed_canary)
    return _passport(source, weights_sha256(network), preprocessing_of(network), "fp32", measured, canary)


def _passport(
    source: ModelSource, weights: str, config: PreprocessConfig, precision: str, measured: Parity, canary: Canary
) -> Passport:
    preprocessing = config.to_mapping()
    return Passport(
        model=source.model,
        pretrained=source.pretrained,
        weights_sha256=weights,
        preprocess=preprocessing,
        preprocess_id=config.id,
        dimension=len(canary.vector),
        precision=precision,
        fingerprint=compute_fingerprint(
            model=source.model, weights_sha256=weights, preprocess=preprocessing, precision=precision
        ),
        parity=measured,
        canary=canary,
        opset=parity.OPSET,
        ir_version=parity.IR_VERSION,
    )


def _graph_bytes(network: nn.Module, max_file_bytes: int) -> int:
    """Disk space for the export; twice the weights if they are moved to a separate file."""
    weights: int = 4 * sum(tensor.numel() for tensor in network.get_submodule("visual").state_dict().values())
    return weights * (2 if weights > max_file_bytes else 1) + _GRAPH_BYTES


class _Graph(nn.Module):
    """The exported graph; see the module's docstring."""

    def __init__(self, network: nn.Module, config: PreprocessConfig, fingerprint: tuple[int, int]) -> None:
        super().__init__()
        self.network = network
        self.mean = torch.tensor(config.mean).view(1, 3, 1, 1)
        self.std = torch.tensor(config.std).view(1, 3, 1, 1)
        self.fingerprint = torch.tensor([fingerprint], dtype=torch.int32)
        self.failed = torch.tensor(float("nan"))
        self.dtype = next(network.parameters()).dtype

    def forward(self, pixels: torch.Tensor, status: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        values = pixels.permute(0, 3, 1, 2).to(torch.float32) / 255  # (N, 3, H, W)
        images = ((values - self.mean) / self.std).to(self.dtype)
        vectors = self.network.encode_image(images)  # type: ignore[operator]
        vectors = nn.functional.normalize(vectors.to(torch.float32), dim=-1)  # (N, D)
        return torch.where(status == 0, vectors, self.failed), self.fingerprint.expand(status.shape[0], 2)


def _write_graph(
    network: nn.Module,
    config: PreprocessConfig,
    dimension: int,
    fingerprint: tuple[int, int],
    precision: str,
    stage: Path,
    has_data_file: bool,
) -> list[Path]:
    """Write the graph below ``stage`` and return its files: the weights' own file if it has one, then the model."""
    if precision == "fp16":
        # Normalisation and L2 norm around the tower stay fp32.
        network.half()
    file = stage / MODEL_FILE
    example = (torch.zeros((2, *config.size, 3), dtype=torch.uint8), torch.zeros((2, 1), dtype=torch.int32))
    names = [PIXELS, STATUS, EMBEDDING, FINGERPRINT]
    # If the exporter fails, it prints its whole graph. The switch has had no public name since PyTorch 2.6.
    torch._C._jit_set_onnx_log_enabled(False)
    try:
        # With gradients PyTorch does not use its fused attention, for which ONNX has no operator.
        with warnings.catch_warnings(), torch.enable_grad():
            # The warnings are about the exporter's age and shapes that become constants; the parity check matters.
            warnings.simplefilter("ignore")
            torch.onnx.export(
                _Graph(network, config, fingerprint).eval(),
                example,
                str(file),
                input_names=names[:2],
                output_names=names[2:],
                dynamic_axes={name: {0: "N"} for name in names},
                opset_version=parity.OPSET,
                dynamo=False,  # the newer exporter writes opset 18 or later
            )
    except (torch.onnx.OnnxExporterError, RuntimeError) as error:
        reason = first_line(error)
        raise ExportError(f"The model cannot be written as ONNX with opset {parity.OPSET}: {reason}.") from error
    _state_output_sizes(file, {EMBEDDING: dimension, FINGERPRINT: len(fingerprint)})
    if not has_data_file:
        fold_shapes(file)
    if precision == "int8":
        _quantize(file)
    if not has_data_file:
        return [file]
    # The name depends on the model, so the old model.onnx keeps its weights until it is replaced.
    weights = stage / f"model-{fingerprint[0] & 0xFFFFFFFF:08x}{fingerprint[1] & 0xFFFFFFFF:08x}.data"
    onnx.save_model(onnx.load(str(file)), str(file), save_as_external_data=True, location=weights.name)
    # onnx makes that file readable for its owner only; the server may run as another user.
    shutil.copymode(file, weights)
    return [weights, file]


def _state_output_sizes(file: Path, sizes: Mapping[str, int]) -> None:
    """Write the size of each output's row, which the exporter leaves open for fp16.

    Triton's C++ backend rejects a ``config.pbtxt`` that states a size which the graph does not.
    """
    model = onnx.load(str(file), load_external_data=False)
    for output in model.graph.output:
        output.type.tensor_type.shape.dim[1].dim_value = sizes[output.name]
    onnx.save(model, str(file))


def _quantize(file: Path) -> None:
    """Convert the weights of the matrix products in ``file`` to int8, with one scale per column.

    Activations are quantised when the model runs, with a scale that depends on the batch: a neighbour may change a
    vector as much as the rounding does. The convolution of the patches stays fp32: ONNX Runtime has no fast int8 one.
    """
    from onnxruntime.quantization import QuantType, quantize_dynamic

    quantize_dynamic(
        str(file),
        str(file),
        op_types_to_quantize=["MatMul", "Gemm"],
        per_channel=True,
        # Weights from -64 to 64. With larger ones, processors without VNNI overflow and give vectors that differ by
        # 0.008 for the small test model.
        reduce_range=True,
        weight_type=QuantType.QInt8,
    )
    model = onnx.load(str(file))
    used = {node.domain for node in model.graph.node}
    for opset in [opset for opset in model.opset_import if opset.domain not in used | {""}]:
        model.opset_import.remove(opset)
    model.ir_version = parity.IR_VERSION
    onnx.save(model, str(file))


def _reference(network: nn.Module, config: PreprocessConfig, pixels: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
    """Return PyTorch's own unit vectors (N, D) for ``pixels`` (N, H, W, 3), without code of the graph."""
    values = (pixels.astype(np.float32) / 255 - np.array(config.mean, np.float32)) / np.array(config.std, np.float32)
    images = torch.from_numpy(np.ascontiguousarray(values.transpose(0, 3, 1, 2)))
    with torch.inference_mode():
        vectors: npt.NDArray[np.float32] = network.encode_image(images, normalize=True).numpy()  # type: ignore[operator]
    return vectors


def _canary(embed: Callable[[bytes], Sequence[float]]) -> Canary:
    image = canary_image()
    # Nine digits distinguish any two float32 numbers.
    return Canary(image=image, vector=tuple(float(f"{number:.9g}") for number in embed(image)))


def _shapes(passport: Passport) -> Shapes:
    height, width = passport.preprocess["size"]
    return Shapes(height=height, width=width, dimension=passport.dimension, half=passport.precision == "fp16")


def _write_pending(pending: dict[Path, str]) -> None:
    for path, text in pending.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, text)
