"""The encoder as served where clients send float tensors: an overlay repository, cut out of the exported model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2

from preprocess_ensemble.repository import DEFAULT_SHAPES, configs, encoder_directory, installed_passport

if TYPE_CHECKING:
    from pathlib import Path

FLOAT_MODEL: Final = "clip_encoder_fp32"


def write_float_model(repository: Path, overlay: Path) -> None:
    """Write ``clip_encoder_fp32`` into ``overlay``: ``repository``'s encoder from behind the normalisation on.

    Inputs: ``images`` FP32 [3, H, W], normalised, and ``status``; the weights and every node after are the same ones.
    """
    import onnx
    from onnx.utils import Extractor

    passport = installed_passport(repository)
    if passport is None:
        raise RuntimeError(f"there is no exported model in {repository}: run clip-export")
    height, width = passport.preprocess["size"]
    model = onnx.shape_inference.infer_shapes(onnx.load(str(encoder_directory(repository) / "model.onnx")))
    patches = next(node for node in model.graph.node if node.op_type == "Conv")
    normalised = patches.input[0]
    part = Extractor(model).extract_model([normalised, "status"], ["embedding"])
    for node in part.graph.node:
        node.input[:] = ["images" if name == normalised else name for name in node.input]
    for tensor in part.graph.input:
        if tensor.name == normalised:
            tensor.name = "images"
            tensor.CopyFrom(
                onnx.helper.make_tensor_value_info("images", onnx.TensorProto.FLOAT, ["N", 3, height, width])
            )
    directory = overlay / FLOAT_MODEL / "1"
    directory.mkdir(parents=True)
    onnx.save(part, str(directory / "model.onnx"))

    config = configs(DEFAULT_SHAPES)["clip_encoder"]
    config.name = FLOAT_MODEL
    config.input[0].CopyFrom(model_config_pb2.ModelInput(name="images", data_type="TYPE_FP32", dims=[3, height, width]))
    del config.output[1:]
    config.output[0].dims[:] = [passport.dimension]
    del config.model_warmup[:]
    (directory.parent / "config.pbtxt").write_text(text_format.MessageToString(config))
