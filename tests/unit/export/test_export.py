"""Exports of a small seeded CLIP: what is written, and what belongs to whom in a repository."""

import json
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import numpy as np
import onnx
import pytest

from benchmarks.fixtures.server import TINY_CLIP
from preprocess_ensemble.contract import DEFAULT_NAMES, ModelNames
from preprocess_ensemble.export import exporter
from preprocess_ensemble.export.model_source import ExportError
from preprocess_ensemble.model_repository.config import read_config, version_directory
from preprocess_ensemble.runtimes.agreement import checked_vectors, sample_pixels
from preprocess_ensemble.runtimes.onnx_session import open_session
from tests.fixtures.models.exports import contents, export, installed, load_model, text_of, text_vectors
from tests.fixtures.models.text_towers import KINDS, open_clips_vectors

MODELS = (DEFAULT_NAMES.encoder, DEFAULT_NAMES.text_encoder)
TEXTS = ["a dog on the beach", "Ein HUND &amp; zwei Katzen!", "海边的狗", "x", "one word after another " * 40]


@pytest.mark.parametrize(("model", "takes"), [("clip_encoder", "pixels"), ("clip_text_encoder", "tokens")])
def test_the_files_are_readable_for_the_oldest_server(model: str, takes: str, tiny_pair_repository: Path) -> None:
    graph = onnx.load(str(version_directory(tiny_pair_repository, model) / "model.onnx"))
    assert graph.ir_version == 8
    assert [(opset.domain, opset.version) for opset in graph.opset_import] == [("", 17)]
    assert [tensor.name for tensor in graph.graph.input] == [takes, "status"]
    assert [tensor.name for tensor in graph.graph.output] == ["embedding", "fingerprint"]


@pytest.mark.long
@pytest.mark.parametrize("kind", ["clip", *KINDS])
def test_text_vectors_of_every_kind_of_tower_are_those_of_open_clip(
    kind: str, tmp_path: Path, tiny_pair_repository: Path
) -> None:
    repository, model = tiny_pair_repository, TINY_CLIP
    if kind in KINDS:
        (folder := tmp_path / kind).mkdir()
        repository, model = tmp_path / "models", KINDS[kind](folder)
        export(repository, model)
    text = text_of(installed(repository))
    expected = open_clips_vectors(model, TEXTS)
    for count in (1, 2, 5):
        vectors = text_vectors(repository, TEXTS[:count])
        assert (vectors * expected[:count]).sum(axis=1).min() > 0.999999
    assert (expected @ expected.T - np.eye(5)).max() < 0.999, "the texts have different vectors"
    assert text.parity.min_cosine >= 0.999999
    assert (text.logit_bias is None) == (kind != "sigmoid")


def test_the_passport_tells_what_was_exported(tiny_pair_repository: Path, tiny_repository: Path) -> None:
    pair = installed(tiny_pair_repository)
    text = text_of(pair)
    assert installed(tiny_repository) == replace(pair, text=None)
    assert (pair.model, pair.pretrained, pair.dimension) == ("tiny_clip", "random:0", 512)
    assert pair.id == f"tiny_clip/random:0@{pair.weights_sha256[:8]}"
    assert (pair.preprocess_id, text.tokenizer["context_length"]) == ("shortest-bicubic-224x224", 77)
    assert (pair.parity.images, text.parity.images) == (9, 5)
    assert min(pair.parity.min_cosine, text.parity.min_cosine) >= 0.999999
    assert text.fingerprint != pair.fingerprint


def inode(repository: Path, name: str = DEFAULT_NAMES.encoder) -> int:
    """Another number means that the model was written again."""
    return (version_directory(repository, name) / "model.onnx").stat().st_ino


def test_a_second_export_does_nothing_unless_forced(pair: Path) -> None:
    before, said, first = contents(pair), list[str](), inode(pair)
    export(pair, report=said.append)
    assert inode(pair) == first
    assert f"installed already in {pair};" in said[-1]
    export(pair, force=True, report=said.append)
    assert said[-3:-1] == ["text tower: writing the graph", "text tower: comparing the graph with PyTorch"]
    assert f" in {pair}: " in said[-1]
    assert inode(pair) != first
    assert contents(pair) == before


def as_an_earlier_revision(repository: Path) -> None:
    passport = version_directory(repository) / "model.json"
    document = json.loads(passport.read_text())
    del document["graph_revision"], document["text"]["graph_revision"]
    passport.write_text(json.dumps(document))


def test_a_graph_of_an_earlier_revision_is_replaced_and_stays_the_same_model(pair: Path) -> None:
    before = installed(pair)
    inodes = {inode(pair, name) for name in MODELS}
    as_an_earlier_revision(pair)
    assert installed(pair).graph_revision == text_of(installed(pair)).graph_revision == 1
    assert export(pair) == before
    assert inodes.isdisjoint(inode(pair, name) for name in MODELS)
    as_an_earlier_revision(pair)
    text = text_of(export(pair, text=False))
    assert (text.graph_revision, text.fingerprint) == (1, text_of(before).fingerprint), "it was not asked for"


def test_the_same_weights_from_a_file_are_the_same_model(image_only: Path, tmp_path: Path) -> None:
    import torch

    torch.save(load_model(str(TINY_CLIP), "random:0").state_dict(), tmp_path / "weights.pt")
    random = installed(image_only)
    passport = export(image_only, weights=tmp_path / "weights.pt", text=False)
    assert passport == replace(random, pretrained="file:weights.pt")


def test_another_size_changes_the_configuration(tmp_path: Path) -> None:
    config = json.loads(TINY_CLIP.read_text()) | {"embed_dim": 256}
    config["vision_cfg"]["image_size"] = 256
    (model := tmp_path / "tiny_256.json").write_text(json.dumps(config))
    repository = tmp_path / "models"
    export(repository, text=False)
    assert export(repository, model, text=False).preprocess["size"] == [256, 256]
    encoder = (repository / "clip_encoder" / "config.pbtxt").read_text()
    assert "dims: [256, 256, 3]" in encoder
    assert "224" not in encoder
    assert "dims: [256]" in (repository / "clip_image" / "config.pbtxt").read_text()


def test_large_weights_go_to_a_file_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exporter, "_MAX_FILE_BYTES", 1_000_000)
    directory = version_directory(tmp_path)
    export(tmp_path, weights="random:1", text=False)
    old = {path.name for path in directory.iterdir()}
    passport = export(tmp_path)
    new = {path.name for path in directory.iterdir()}
    assert len(old) == len(new) == 3
    assert len(old & new) == 2, "the old weights are gone"
    assert len({path.stat().st_mode for path in directory.iterdir()}) == 1, "every file has the same mode"
    checked_vectors(open_session(directory / "model.onnx"), sample_pixels(224, 224), passport.fingerprint)


def test_a_tokenizer_with_other_ids_than_open_clips_is_not_installed(
    image_only: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import open_clip

    said: list[str] = []
    theirs = open_clip.get_tokenizer("ViT-B-32")
    monkeypatch.setattr(open_clip, "get_tokenizer", lambda _: lambda texts: theirs([*texts[:-1], "another text"]))
    with pytest.raises(ExportError, match=r"gives other token ids here than in open_clip .* for 'a crowded street"):
        export(image_only)
    assert not (image_only / "clip_text").exists()
    monkeypatch.setattr(open_clip, "get_tokenizer", lambda _: import_module("absent_transformers"))
    export(image_only, report=said.append)
    assert "the tokenizer was not compared with open_clip's, which cannot be loaded here (No module" in " ".join(said)


def test_a_transformer_that_is_not_there_is_named(tmp_path: Path) -> None:
    model = tmp_path / "without_config.json"
    text = {"text_cfg": {"hf_model_name": str(tmp_path), "hf_pooler_type": "mean_pooler"}}
    model.write_text(json.dumps(json.loads(TINY_CLIP.read_text()) | text))
    with pytest.raises(ExportError, match=r"has the configuration of .*hf_model_name in a copy"):
        export(tmp_path / "models", model)


def test_adding_a_text_tower_changes_nothing_of_the_image_tower(image_only: Path) -> None:
    before, files = installed(image_only), contents(image_only)
    assert all(path.startswith(("clip_image", "clip_preprocess", "clip_encoder")) for path in files)
    first, after = inode(image_only), export(image_only)
    assert replace(after, text=None) == before
    assert inode(image_only) == first, "it was not even written again"
    now = contents(image_only)
    assert {name for name in files if now[name] != files[name]} == {"clip_encoder/1/model.json"}
    (version_directory(image_only, DEFAULT_NAMES.tokenize) / "tokenizer.json").unlink()
    assert export(image_only) == after, "a text tower that lost a file is written again"
    assert contents(image_only) == now


def test_a_text_tower_goes_with_its_image_tower_but_not_a_model_of_the_user_with_such_a_name(pair: Path) -> None:
    assert export(pair, text=False).text is not None, "it is the same model"
    assert (pair / "clip_text").exists()
    assert export(pair, weights="random:1", text=False).text is None
    assert not list(pair.glob("clip_t*"))
    mine = pair / "clip_tokenize" / "1" / "model.py"
    mine.parent.mkdir(parents=True)
    mine.write_text("my own tokenizer")
    export(pair, weights="random:2", text=False)
    assert mine.read_text() == "my own tokenizer"


def test_two_models_share_a_repository(pair: Path) -> None:
    files, names = contents(pair), ModelNames("second")
    export(pair, weights="random:1", name="second")
    models = {*names.of_images, *names.of_texts}
    assert {path.name for path in pair.iterdir()} == {*DEFAULT_NAMES.of_images, *DEFAULT_NAMES.of_texts, *models}
    assert {name: data for name, data in contents(pair).items() if name.startswith("clip_")} == files
    for name in models:
        config = read_config(pair / name / "config.pbtxt")
        assert config.name == name
        assert {step.model_name for step in config.ensemble_scheduling.step} <= models
        if name in (names.preprocess, names.tokenize):
            assert config.parameters["passport"].string_value == "../second_encoder/1/model.json"
    assert not np.allclose(text_vectors(pair, TEXTS, names), text_vectors(pair, TEXTS))
    export(pair, weights="random:2", name="second", text=False)
    assert (pair / "clip_text").exists()
    assert not (pair / "second_text").exists()
