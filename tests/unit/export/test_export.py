"""Exports of a small seeded CLIP: what is written, and what belongs to whom in a repository."""

from __future__ import annotations

import io
import json
import shutil
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import pytest
from PIL import Image

from benchmarks.fixtures.server import TINY_CLIP
from preprocess_ensemble.contract import DEFAULT_NAMES, ModelNames
from preprocess_ensemble.export import exporter
from preprocess_ensemble.export.model_source import ExportError, WrongChoice
from preprocess_ensemble.model_repository.config import read_config, version_directory
from preprocess_ensemble.runtimes.agreement import checked_vectors, sample_pixels
from preprocess_ensemble.runtimes.onnx_session import open_session
from tests.fixtures.models.exports import contents, export, installed, text_of, text_vectors
from tests.fixtures.models.text_towers import KINDS, open_clips_vectors

if TYPE_CHECKING:
    from pathlib import Path

TEXTS = ["a dog on the beach", "Ein HUND &amp; zwei Katzen!", "海边的狗", "x", "one word after another " * 40]


@pytest.mark.parametrize(("model", "takes"), [("clip_encoder", "pixels"), ("clip_text_encoder", "tokens")])
def test_the_files_are_readable_for_the_oldest_server(model: str, takes: str, tiny_pair_repository: Path) -> None:
    graph = onnx.load(str(version_directory(tiny_pair_repository, model) / "model.onnx"))
    assert graph.ir_version == 8
    assert [(opset.domain, opset.version) for opset in graph.opset_import] == [("", 17)]
    assert [tensor.name for tensor in graph.graph.input] == [takes, "status"]
    assert [tensor.name for tensor in graph.graph.output] == ["embedding", "fingerprint"]


def test_image_vectors_are_those_of_pytorch_at_any_batch_size(tiny_pair_repository: Path) -> None:
    import torch

    network: Any = exporter.load_model(str(TINY_CLIP), "random:0")
    session = open_session(version_directory(tiny_pair_repository) / "model.onnx")
    pixels = np.random.default_rng(7).integers(0, 256, (5, 224, 224, 3), np.uint8)
    mean, std = (torch.tensor(network.visual.preprocess_cfg[key]) for key in ("mean", "std"))
    with torch.inference_mode():
        images = ((torch.from_numpy(pixels) / 255 - mean) / std).permute(0, 3, 1, 2)
        expected = network.encode_image(images, normalize=True).numpy()
    for count in (1, 2, 5):
        vectors = checked_vectors(session, pixels[:count], installed(tiny_pair_repository).fingerprint)
        assert (vectors * expected[:count]).sum(axis=1).min() > 0.999999


@pytest.mark.parametrize("kind", ["clip", *KINDS])
def test_text_vectors_of_every_kind_of_tower_are_those_of_open_clip(kind: str, tmp_path: Path) -> None:
    (folder := tmp_path / kind).mkdir()
    model = KINDS[kind](folder) if kind in KINDS else TINY_CLIP
    text = text_of(export(tmp_path / "models", model))
    expected = open_clips_vectors(model, TEXTS)
    for count in (1, 2, 5):
        vectors = text_vectors(tmp_path / "models", TEXTS[:count])
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


def test_the_canaries_have_open_clips_own_vectors(tiny_pair_repository: Path) -> None:
    import open_clip
    import torch

    passport = installed(tiny_pair_repository)
    network: Any = exporter.load_model(str(TINY_CLIP), "random:0")
    transform: Any = open_clip.transform.image_transform_v2(
        open_clip.transform.PreprocessCfg(**open_clip.get_model_preprocess_cfg(network)), is_train=False
    )
    with torch.inference_mode():
        image = transform(Image.open(io.BytesIO(passport.canary.image)))[None]
        expected = network.encode_image(image, normalize=True)[0].numpy()
    assert expected @ np.array(passport.canary.vector) > 0.999999
    text = text_of(passport)
    assert open_clips_vectors(TINY_CLIP, [text.canary])[0] @ np.array(text.canary_vector) > 0.999999


def test_a_second_export_does_nothing_unless_forced(tiny_pair_repository: Path, tmp_path: Path) -> None:
    repository = shutil.copytree(tiny_pair_repository, tmp_path / "models")
    before, said = contents(repository), list[str]()
    model = version_directory(repository) / "model.onnx"
    inode = model.stat().st_ino
    export(repository, report=said.append)
    assert model.stat().st_ino == inode
    assert "installed already" in said[-1]
    export(repository, force=True)
    assert model.stat().st_ino != inode
    assert contents(repository) == before


def test_the_same_weights_from_a_file_are_the_same_model(tiny_pair_repository: Path, tmp_path: Path) -> None:
    import torch

    checkpoint = tmp_path / "weights.pt"
    torch.save(exporter.load_model(str(TINY_CLIP), "random:0").state_dict(), checkpoint)
    passport, random = export(tmp_path / "models", weights=checkpoint), installed(tiny_pair_repository)
    assert passport.pretrained == "file:weights.pt"
    assert (passport.fingerprint, passport.weights_sha256) == (random.fingerprint, random.weights_sha256)
    assert export(tmp_path / "models", weights="random:1").fingerprint != random.fingerprint


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
    export(tmp_path, weights="random:1")
    old = {path.name for path in directory.iterdir()}
    passport = export(tmp_path)
    new = {path.name for path in directory.iterdir()}
    assert len(old) == len(new) == 3
    assert len(old & new) == 2, "the old weights are gone"
    assert len({path.stat().st_mode for path in directory.iterdir()}) == 1, "every file has the same mode"
    checked_vectors(open_session(directory / "model.onnx"), sample_pixels(224, 224), passport.fingerprint)


def test_a_tokenizer_with_other_ids_than_open_clips_is_not_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import open_clip

    said: list[str] = []
    theirs = open_clip.get_tokenizer("ViT-B-32")
    monkeypatch.setattr(open_clip, "get_tokenizer", lambda _: lambda texts: theirs([*texts[:-1], "another text"]))
    with pytest.raises(ExportError, match=r"gives other token ids here than in open_clip .* for 'a crowded street"):
        export(tmp_path)
    assert not (tmp_path / "clip_text").exists()

    def missing(_: str) -> None:
        raise ImportError("No module named 'transformers'")

    monkeypatch.setattr(open_clip, "get_tokenizer", missing)
    export(tmp_path, report=said.append)
    assert "the tokenizer was not compared with open_clip's, which cannot be loaded here (No module" in " ".join(said)


def test_a_transformer_that_is_not_there_is_named(tmp_path: Path) -> None:
    model = tmp_path / "without_config.json"
    text = {"text_cfg": {"hf_model_name": str(tmp_path), "hf_pooler_type": "mean_pooler"}}
    model.write_text(json.dumps(json.loads(TINY_CLIP.read_text()) | text))
    with pytest.raises(ExportError, match=r"has the configuration of .*hf_model_name in a copy"):
        export(tmp_path / "models", model)


def test_adding_a_text_tower_changes_nothing_of_the_image_tower(tmp_path: Path) -> None:
    before = export(tmp_path, text=False)
    files = contents(tmp_path)
    assert all(path.startswith(("clip_image", "clip_preprocess", "clip_encoder")) for path in files)
    model = version_directory(tmp_path) / "model.onnx"
    inode = model.stat().st_ino
    after = export(tmp_path)
    assert replace(after, text=None) == before
    assert model.stat().st_ino == inode, "it was not even written again"
    now = contents(tmp_path)
    assert {name for name in files if now[name] != files[name]} == {"clip_encoder/1/model.json"}
    (version_directory(tmp_path, DEFAULT_NAMES.tokenize) / "tokenizer.json").unlink()
    assert export(tmp_path) == after, "a text tower that lost a file is written again"
    assert contents(tmp_path) == now


def test_a_text_tower_goes_with_its_image_tower(tmp_path: Path) -> None:
    export(tmp_path)
    assert export(tmp_path, text=False).text is not None, "it is the same model"
    assert (tmp_path / "clip_text").exists()
    assert export(tmp_path, weights="random:1", text=False).text is None
    assert not list(tmp_path.glob("clip_t*"))
    text_of(export(tmp_path, weights="random:1"))
    assert export(tmp_path, weights="random:1", precision="int8", text=False).text is None
    assert not list(tmp_path.glob("clip_t*"))


def test_a_model_of_the_user_with_such_a_name_is_not_removed(tmp_path: Path) -> None:
    mine = tmp_path / "clip_tokenize" / "1" / "model.py"
    mine.parent.mkdir(parents=True)
    mine.write_text("my own tokenizer")
    export(tmp_path, text=False)
    assert mine.read_text() == "my own tokenizer"


def test_two_models_share_a_repository(tmp_path: Path) -> None:
    export(tmp_path)
    files, names = contents(tmp_path), ModelNames("second")
    export(tmp_path, weights="random:1", name="second")
    models = {*names.of_images, *names.of_texts}
    assert {path.name for path in tmp_path.iterdir()} == {*DEFAULT_NAMES.of_images, *DEFAULT_NAMES.of_texts, *models}
    assert {name: data for name, data in contents(tmp_path).items() if name.startswith("clip_")} == files
    for name in models:
        config = read_config(tmp_path / name / "config.pbtxt")
        assert config.name == name
        assert {step.model_name for step in config.ensemble_scheduling.step} <= models
        if name in (names.preprocess, names.tokenize):
            assert config.parameters["passport"].string_value == "../second_encoder/1/model.json"
    assert not np.allclose(text_vectors(tmp_path, TEXTS, names), text_vectors(tmp_path, TEXTS))
    export(tmp_path, weights="random:2", name="second", text=False)
    assert (tmp_path / "clip_text").exists()
    assert not (tmp_path / "second_text").exists()


def test_a_name_that_triton_models_cannot_have_is_misuse(tmp_path: Path) -> None:
    with pytest.raises(WrongChoice, match="'my_model' is no name of a model"):
        export(tmp_path / "models", name="my_model")
    assert not (tmp_path / "models").exists()
