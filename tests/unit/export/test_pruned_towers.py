"""Towers compute only what a vector needs, and the vectors are open_clip's own."""

import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from benchmarks.fixtures.server import TINY_CLIP
from clip_client import SyncClipClient
from preprocess_ensemble.contract import DEFAULT_NAMES
from preprocess_ensemble.imaging.decode import DecodeError, decode
from preprocess_ensemble.imaging.transform import PreprocessConfig, preprocess
from preprocess_ensemble.model_repository.config import version_directory
from preprocess_ensemble.runtimes.agreement import checked_vectors, require_cosine, sample_tokens
from preprocess_ensemble.runtimes.onnx_session import open_session
from preprocess_ensemble.text.tokenizer import Tokenizer, TokenizerConfig
from tests.fixtures.images.damaged_files import Inputs
from tests.fixtures.models.exports import export, installed, load_model, text_of
from tests.fixtures.models.gpu_graphs import without_cuda_kernel
from tests.fixtures.models.text_towers import KINDS
from tests.fixtures.texts.fuzzed_texts import fuzzed_text

ENCODERS = (DEFAULT_NAMES.encoder, DEFAULT_NAMES.text_encoder)
TOKENS = sample_tokens(77, 49408, 0)  # texts of 1, 19, 38 and 77 tokens


@pytest.fixture
def tower() -> Any:
    return load_model(str(TINY_CLIP), "random:0").get_submodule("visual")


def test_the_last_block_computes_the_class_token_alone_and_the_vectors_are_the_same(tower: Any) -> None:
    import torch

    from preprocess_ensemble.export.pytorch.pruned_towers import prune_to_class_token

    images = torch.rand((3, 3, 224, 224), generator=torch.Generator().manual_seed(0))
    rows: list[int] = []
    tower.transformer.resblocks[-1].mlp.register_forward_hook(lambda _, given, __: rows.append(given[0].shape[1]))
    with torch.inference_mode():
        expected = tower(images)
        assert prune_to_class_token(tower)
        found = tower(images)
    assert torch.allclose(found, expected, rtol=0, atol=1e-5 * float(expected.abs().max()))
    assert rows == [50, 1]


@pytest.mark.parametrize(("name", "value"), [("pool_type", "avg"), ("output_tokens", True)])
def test_a_tower_that_uses_more_tokens_is_not_pruned(tower: Any, name: str, value: object) -> None:
    from preprocess_ensemble.export.pytorch.pruned_towers import prune_to_class_token

    setattr(tower, name, value)
    last = tower.transformer.resblocks[-1]
    assert not prune_to_class_token(tower)
    assert tower.transformer.resblocks[-1] is last


def test_a_text_costs_its_tokens_and_the_vectors_are_the_same() -> None:
    import torch

    from preprocess_ensemble.export.pytorch.pruned_towers import PackedText

    network: Any = load_model(str(TINY_CLIP), "random:0")
    packed = PackedText.of(network)
    assert packed is not None
    rows: list[int] = []
    blocks: Any = packed
    with torch.inference_mode():
        expected = network.encode_text(torch.from_numpy(TOKENS))
        for block in (*blocks.blocks, blocks.last):
            block.mlp.register_forward_hook(lambda _, given, __: rows.append(given[0].shape[0]))
        found = packed.encode_text(torch.from_numpy(TOKENS))
    assert torch.allclose(found, expected, rtol=0, atol=1e-5 * float(expected.abs().max()))
    assert rows == [1 + 19 + 38 + 77, 4], "the last block computes the rows that are read"


def test_what_follows_the_end_of_a_text_changes_nothing(tiny_pair_repository: Path) -> None:
    text = text_of(installed(tiny_pair_repository))
    session = open_session(version_directory(tiny_pair_repository, DEFAULT_NAMES.text_encoder) / "model.onnx")
    other = TOKENS.copy()
    for row in other:
        row[row.argmax() + 1 :] = 5
    vectors = checked_vectors(session, TOKENS, text.fingerprint)
    assert np.array_equal(checked_vectors(session, other, text.fingerprint), vectors)
    for row, vector in zip(TOKENS, vectors, strict=True):
        assert np.allclose(checked_vectors(session, row[None], text.fingerprint)[0], vector, rtol=0, atol=1e-6)


def test_the_end_of_a_text_is_found_with_the_digits_of_bf16(tiny_pair_repository: Path, tmp_path: Path) -> None:
    """OpenVINO rounds what a graph casts to float, and the ids of beginning and end differ by 1."""
    text, name = text_of(installed(tiny_pair_repository)), DEFAULT_NAMES.text_encoder
    file = version_directory(tiny_pair_repository, name) / "model.onnx"
    rounded = onnx.load(file)
    for node in [node for node in rounded.graph.node if node.op_type == "Cast"]:
        if node.attribute[0].i == onnx.TensorProto.FLOAT:
            exact, short, output = (node.output[0] + end for end in (" exact", " short", ""))
            node.output[0] = exact
            at = list(rounded.graph.node).index(node) + 1
            for place, (given, made, kind) in enumerate(
                ((exact, short, onnx.TensorProto.BFLOAT16), (short, output, onnx.TensorProto.FLOAT))
            ):
                rounded.graph.node.insert(at + place, onnx.helper.make_node("Cast", [given], [made], to=kind))
    onnx.save(rounded, tmp_path / "rounded.onnx")
    tokens = TOKENS.copy()
    tokens[1:, 0] = tokens.max() - 1  # the beginning of a text
    found, expected = (
        checked_vectors(open_session(one), tokens, text.fingerprint) for one in (tmp_path / "rounded.onnx", file)
    )
    require_cosine(found, expected, 0.9999)


def test_vectors_of_fuzzed_pictures_and_texts_are_those_of_pytorch(tiny_pair_repository: Path) -> None:
    from preprocess_ensemble.export.pytorch.graph import tower_vectors

    passport = installed(tiny_pair_repository)
    network = load_model(str(TINY_CLIP), "random:0")
    config, text = PreprocessConfig.from_mapping(passport.preprocess), text_of(passport)
    pictures, files = [], Inputs(7)
    for number in range(150):
        with suppress(DecodeError):
            pictures.append(preprocess(decode(files[number]), config))
    tokenizer = Tokenizer.load(
        version_directory(tiny_pair_repository, DEFAULT_NAMES.tokenize),
        TokenizerConfig.from_mapping(text.tokenizer),
        text.tokenizer_sha256,
    )
    texts = (fuzzed_text(0, number).encode("utf-8", "ignore").decode() for number in range(500))
    towers = (
        (DEFAULT_NAMES.encoder, passport.fingerprint, np.stack(pictures)),
        (DEFAULT_NAMES.text_encoder, text.fingerprint, tokenizer.encode(list(texts))[0]),
    )
    for name, fingerprint, rows in towers:
        session = open_session(version_directory(tiny_pair_repository, name) / "model.onnx")
        found = np.concatenate(
            [checked_vectors(session, rows[at : at + 32], fingerprint) for at in range(0, len(rows), 32)]
        )
        require_cosine(found, tower_vectors(network, config, rows), 0.999999)


@pytest.mark.parametrize("kind", KINDS)
def test_a_tower_that_attends_to_padding_keeps_its_length(kind: str, tmp_path: Path) -> None:
    from preprocess_ensemble.export.pytorch.pruned_towers import PackedText

    (folder := tmp_path / kind).mkdir()
    assert PackedText.of(load_model(str(KINDS[kind](folder)), "random:0")) is None


@pytest.fixture(scope="module")
def half(tmp_path_factory: pytest.TempPathFactory) -> Path:
    export(repository := tmp_path_factory.mktemp("fp16"), weights_dtype="fp16")
    return repository


def test_an_fp16_export_keeps_its_length_and_normalizes_in_fp32(half: Path) -> None:
    passport = installed(half)
    assert min(passport.parity.min_cosine, text_of(passport).parity.min_cosine) >= 0.9999
    for model in ENCODERS:
        graph = onnx.shape_inference.infer_shapes(onnx.load(version_directory(half, model) / "model.onnx")).graph
        types = {value.name: value.type.tensor_type.elem_type for value in graph.value_info}
        found = {(node.op_type, types[node.output[0]]) for node in graph.node if node.output[0] in types}
        for kind in ("LayerNormalization", "Softmax", "ReduceL2"):
            assert {precision for name, precision in found if name == kind} == {onnx.TensorProto.FLOAT}
        assert ("MatMul", onnx.TensorProto.FLOAT16) in found
        assert "NonZero" not in {name for name, _ in found}


def test_every_node_has_a_kernel_of_cuda_and_both_towers_run_without_a_gpu(
    half: Path, tiny_pair_repository: Path
) -> None:
    """ONNX Runtime would end the process at the first fp16 vector if it optimised fully."""
    for repository in (tiny_pair_repository, half):
        for model in ENCODERS:
            assert not without_cuda_kernel(Path(shutil.copy(version_directory(repository, model) / "model.onnx", half)))
        with SyncClipClient(f"local:{repository}") as clip:
            assert clip.health().ok
