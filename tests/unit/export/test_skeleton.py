"""Exports without PyTorch: the same file as with it, from a skeleton and weights that need no PyTorch either."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper
from onnx.helper import make_node

from benchmarks.fixtures.server import TINY_CLIP
from preprocess_ensemble.export import command, exporter, parity
from preprocess_ensemble.export.model_source import ExportError, WrongChoice, shipped_models
from preprocess_ensemble.export.onnx_file import fold_shapes
from preprocess_ensemble.export.skeleton import GENERATED, Skeleton, SkeletonModel, Tower, find_skeleton
from preprocess_ensemble.export.state_dict import generate
from preprocess_ensemble.runtimes.agreement import sample_tokens
from tests.fixtures.models import tiny_onnx
from tests.fixtures.models.exports import WITHOUT_PYTORCH, contents, export, installed, load_model, python, text_of

if TYPE_CHECKING:
    import torch


@pytest.fixture(scope="module")
def network() -> torch.nn.Module:
    """The small CLIP with weights that are neither generated nor distinct, like those of a fresh network."""
    import torch

    network = load_model(str(TINY_CLIP), "random:0")
    torch.manual_seed(3)
    for name, tensor in network.state_dict().items():
        if name.endswith("weight") and tensor.ndim > 1:
            torch.nn.init.trunc_normal_(tensor, std=0.05)
        elif name.endswith("bias"):
            torch.nn.init.zeros_(tensor)
        elif tensor.ndim == 1:
            torch.nn.init.ones_(tensor)
    return network


@pytest.fixture(scope="module")
def weights(network: torch.nn.Module, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("weights") / "weights.safetensors"
    from safetensors.torch import save_file

    save_file(network.state_dict(), path)
    return path


@pytest.fixture(scope="module")
def skeleton(weights: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A skeleton of the small CLIP, with PyTorch's vectors of ``weights``."""
    path = tmp_path_factory.mktemp("skeleton") / "tiny_clip.skeleton"
    assert command.main(["--model", str(TINY_CLIP), "--pretrained", str(weights), "--skeleton", str(path)]) == 0
    return path


def same_files(with_it: Path, without: Path) -> bool:
    def files(repository: Path) -> dict[str, bytes]:
        return {path: data for path, data in contents(repository).items() if not path.endswith("model.json")}

    assert "clip_text_encoder/1/model.onnx" in files(with_it)
    return files(with_it) == files(without)


def test_the_file_is_the_same_with_and_without_pytorch(skeleton: Path, weights: Path, tmp_path: Path) -> None:
    with_it = export(tmp_path / "with", TINY_CLIP, weights)
    arguments = ("--model", skeleton, "--pretrained", weights, "--repository", tmp_path / "without")
    with python("-c", WITHOUT_PYTORCH, *map(str, arguments), HF_HUB_OFFLINE="1") as process:
        _, said = process.communicate()
    assert process.returncode == 0, said
    assert same_files(tmp_path / "with", tmp_path / "without")
    without = installed(tmp_path / "without")
    assert (without.id, without.fingerprint, without.canary) == (with_it.id, with_it.fingerprint, with_it.canary)
    assert replace(text_of(without), parity=text_of(with_it).parity) == text_of(with_it)
    assert "cosine to PyTorch" in said
    compared = [(one.parity.images, text_of(one).parity.images) for one in (with_it, without)]
    assert compared == [(9, 5), (9, 4)], "the skeleton has no vector of the text canary"


@pytest.mark.parametrize(("weights_dtype", "required"), [("fp32", 0.999999), ("int8", 0.999)])
def test_other_weights_are_checked_with_those_of_the_skeleton(
    weights_dtype: str, required: float, skeleton: Path, tiny_pair_repository: Path, tmp_path: Path
) -> None:
    said: list[str] = []
    passport = export(tmp_path / "without", skeleton, weights_dtype=weights_dtype, report=said.append)
    assert (passport.parity.images, text_of(passport).parity.images) == (0, 0), "nothing was compared with PyTorch's"
    assert passport.parity.min_cosine >= required
    measured = re.findall(r"cosine to PyTorch (\S+), measured with other weights in the same graph", " ".join(said))
    assert len(measured) == 2, "of the image tower and of the text tower"
    steps = ("comparing the graph with PyTorch's recorded vectors", "filling the graph", "checking the graph")
    assert [line for line in said if " tower: " in line and "cosine" not in line] == [
        f"{tower} tower: {step}" for tower in ("image", "text") for step in steps
    ]
    with_it = tiny_pair_repository
    if weights_dtype != "fp32":
        export(with_it := tmp_path / "with", weights_dtype=weights_dtype)
    assert same_files(with_it, tmp_path / "without")
    assert passport.weights_sha256 == installed(with_it).weights_sha256


def test_generated_weights_never_change() -> None:
    # Skeletons hold vectors of such weights, and stores those of random models.
    values = generate("visual.conv1.weight", (2, 3), 1)
    assert values.dtype == np.float32
    assert values.tolist() == [
        [-0.49664002656936646, 0.05094168707728386, -0.2358667552471161],
        [-0.17004698514938354, 0.5535523891448975, 0.1475704312324524],
    ]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_becomes_fp32_as_in_open_clip(
    dtype: str, network: torch.nn.Module, skeleton: Path, tmp_path: Path
) -> None:
    import torch
    from safetensors.torch import save_file

    state = {f"module.{name}": tensor.to(getattr(torch, dtype)) for name, tensor in network.state_dict().items()}
    save_file(state, tmp_path / "half.safetensors")
    expected = exporter.load_exportable(str(TINY_CLIP), str(tmp_path / "half.safetensors"))
    found = SkeletonModel(str(skeleton), str(tmp_path / "half.safetensors"))
    assert found.weights_sha256 == expected.weights_sha256


def with_two_norms_swapped(tower: Tower) -> Tower:
    places = dict(tower.places)
    norms = [name for name, place in places.items() if place.name.endswith(".bias") and ".ln_" in place.name]
    places[norms[0]], places[norms[1]] = places[norms[1]], places[norms[0]]
    return replace(tower, places=places)


def with_other_vectors_of_the_weights(tower: Tower) -> Tower:
    (key,) = tower.expected.keys() - {GENERATED}
    return replace(tower, expected={**tower.expected, key: np.roll(tower.expected[key], 1, axis=1)})


@pytest.mark.parametrize("tower", ["image", "text"])
@pytest.mark.parametrize("defect", [with_two_norms_swapped, with_other_vectors_of_the_weights])
def test_a_graph_that_computes_something_else_is_found(
    defect: Callable[[Tower], Tower], tower: str, skeleton: Path, weights: Path, tmp_path: Path
) -> None:
    whole = Skeleton.from_bytes(skeleton.read_bytes())
    change: dict[str, Any] = {tower: defect(getattr(whole, tower))}
    other = tmp_path / "other.skeleton"
    other.write_bytes(replace(whole, **change).to_bytes())
    known = weights if defect is with_other_vectors_of_the_weights else "random:0"
    with pytest.raises(ExportError, match="cosine of"):
        export(tmp_path / "models", other, known)
    assert not any(path.endswith(".onnx") for path in contents(tmp_path / "models"))


def test_a_model_whose_weights_are_combined_has_no_skeleton(tmp_path: Path) -> None:
    from preprocess_ensemble.export.pytorch.recording import NoSkeleton, record_file

    config = json.loads(TINY_CLIP.read_text())
    # A ResNet: the exporter merges its batch norms into the convolutions.
    config["vision_cfg"] = {"image_size": 64, "layers": [1, 1, 1, 1], "width": 8, "patch_size": None}
    model = tmp_path / "tiny_resnet.json"
    model.write_text(json.dumps(config))
    with pytest.raises(NoSkeleton, match="there is no skeleton"):
        record_file(str(model), None, tmp_path / "resnet.skeleton")
    assert not list(tmp_path.glob("*resnet.skeleton*"))
    assert export(tmp_path / "models", model, text=False).parity.min_cosine >= 0.9999


PROJ = "visual.proj"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda state: state.pop(PROJ), "visual.proj is missing"),
        (lambda state: state.update(more=state[PROJ].clone()), "it has no more"),
        (lambda state: state.update({PROJ: state[PROJ][:3, :4].clone()}), r"the shape \[3, 4\], not \[128, 512\]"),
    ],
)
def test_weights_of_another_model_are_refused(
    change: Any, message: str, network: torch.nn.Module, skeleton: Path, tmp_path: Path
) -> None:
    from safetensors.torch import save_file

    state = dict(network.state_dict())
    change(state)
    save_file(state, tmp_path / "other.safetensors")
    with pytest.raises(ExportError, match=f"do not fit the model tiny_clip: .*{message}"):
        export(tmp_path / "models", skeleton, tmp_path / "other.safetensors")


@pytest.mark.parametrize(
    ("file", "options", "kind", "says"),
    [
        ("weights.pt", {}, ExportError, r"Reading weights\.pt needs PyTorch: .*export"),
        ("weights.safetensors", {}, ExportError, r"weights\.safetensors cannot be read"),
        ("", {"weights_dtype": "fp16"}, WrongChoice, r"fp16 needs PyTorch: pip install '\.\[export\]' in a clone"),
    ],
)
def test_what_needs_pytorch_or_is_no_checkpoint_is_refused(
    file: str, options: dict[str, str], kind: type[ExportError], says: str, skeleton: Path, tmp_path: Path
) -> None:
    if file:
        (tmp_path / file).write_bytes(b"nothing of the kind")
    with pytest.raises(kind, match=says):
        export(tmp_path / "models", skeleton, tmp_path / file if file else "random:0", **options)


@pytest.mark.parametrize(
    ("model", "says"),
    [
        ("mine.skeleton", r"mine\.skeleton is not a skeleton"),
        ("none.skeleton", r"none\.skeleton cannot be read: No such file"),
        ("ViT-H-14", r"Exporting ViT-H-14 needs PyTorch.*did you mean .*ViT-B-32"),
    ],
)
def test_what_is_no_skeleton_is_misuse(model: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.skeleton").write_bytes(b"no archive")
    with pytest.raises(WrongChoice, match=says):
        find_skeleton(model)


def test_shipped_skeletons_are_complete_and_small() -> None:
    assert "ViT-B-32" in shipped_models()
    for model in shipped_models():
        skeleton = find_skeleton(model)
        assert skeleton.model == model
        assert len(skeleton.image.expected[GENERATED]) == len(parity.check_pixels(skeleton.preprocess))
        assert len(skeleton.text.expected[GENERATED]) == len(sample_tokens(*skeleton.token_kinds))
        assert len(skeleton.to_bytes()) < 120_000
        assert skeleton.tags
        for tower in (skeleton.image, skeleton.text):
            graph = onnx.load_from_string(tower.graph).graph
            empty = {tensor.name for tensor in graph.initializer if not tensor.ByteSize() or not tensor.raw_data}
            assert tower.places.keys() <= empty
    assert find_skeleton("ViT-B-32").tags["laion2b_s34b_b79k"].repository == "laion/CLIP-ViT-B-32-laion2B-s34B-b79K"


X = np.arange(30, dtype=np.float32).reshape(5, 6)


@pytest.fixture
def model(tmp_path: Path) -> onnx.ModelProto:
    """A graph like an exporter's: ``y = reshape(x, [N, 2, 3]) * sqrt(6)`` and ``n = [1] * N``, all by way of shapes."""
    nodes = [
        make_node("Shape", ["x"], ["shape"]),
        make_node("Gather", ["shape", "zero"], ["rows"]),
        make_node("Concat", ["rows", "two_three"], ["target"], axis=0),
        make_node("Reshape", ["x", "target"], ["split"]),
        make_node("Gather", ["shape", "one"], ["width"]),
        make_node("Cast", ["width"], ["float_width"], to=TensorProto.FLOAT),
        make_node("Sqrt", ["float_width"], ["scale"]),
        make_node("Mul", ["split", "scale"], ["y"]),
        make_node("ConstantOfShape", ["rows"], ["zeros"]),
        make_node("Add", ["zeros", "float_one"], ["n"]),
    ]
    numbers = {"zero": [0], "one": [1], "two_three": [2, 3]}
    constants = {name: np.array(value) for name, value in numbers.items()} | {"float_one": np.array([1], np.float32)}
    outputs = [
        helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 2, 3]),
        helper.make_tensor_value_info("n", TensorProto.FLOAT, ["N"]),
    ]
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 6])]
    return onnx.load(str(tiny_onnx.save(tmp_path / "model.onnx", nodes, inputs, outputs, constants)))


def run(model: onnx.ModelProto) -> list[Any]:
    return list(onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"x": X}))


def test_the_answers_stay_and_the_arithmetic_goes(model: onnx.ModelProto) -> None:
    before = run(model)
    fold_shapes(model)
    for old, new in zip(before, run(model), strict=True):
        np.testing.assert_array_equal(new, old)
    onnx.checker.check_model(model)
    left = [node.op_type for node in model.graph.node]
    assert left == ["Shape", "Gather", "Reshape", "Mul", "ConstantOfShape", "Add"], "what depends on the batch stays"
    target = next(tensor for tensor in model.graph.initializer if tensor.name == "target/fixed")
    assert list(onnx.numpy_helper.to_array(target)) == [-1, 2, 3]
    assert not {"one", "two_three"} & {tensor.name for tensor in model.graph.initializer}, "nor constants without use"
    once = model.SerializeToString()
    fold_shapes(model)
    assert model.SerializeToString() == once, "a second time changes nothing"
