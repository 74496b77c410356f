"""The text tower of an export: what is written, the kinds of towers, and what happens to one that is installed."""

from __future__ import annotations

import json
import os
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import pytest

from benchmarks.fixtures.server import TINY_CLIP
from preprocess_ensemble.contract import DEFAULT_NAMES, ModelNames
from preprocess_ensemble.export import atomic_install, exporter
from preprocess_ensemble.export.model_source import ExportError, WrongChoice
from preprocess_ensemble.model_repository.config import (
    installed_passport,
    read_config,
    version_directory,
)
from preprocess_ensemble.runtimes.agreement import checked_vectors
from preprocess_ensemble.runtimes.onnx_session import open_session
from preprocess_ensemble.text.tokenizer import Tokenizer, TokenizerConfig
from tests.fixtures.models.text_towers import KINDS, open_clips_vectors

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import numpy.typing as npt

    from preprocess_ensemble.model_repository.passport import Passport, TextTower

TEXTS = ["a dog on the beach", "Ein HUND &amp; zwei Katzen!", "海边的狗", "x", "one word after another " * 40]


def export(repository: Path, model: object = TINY_CLIP, seed: int = 0, **options: Any) -> Passport:
    return exporter.export_model(model=str(model), pretrained=f"random:{seed}", repository=repository, **options)


def contents(repository: Path) -> dict[str, bytes]:
    files = (path for path in repository.rglob("*") if path.is_file() and not path.name.startswith("."))
    return {str(path.relative_to(repository)): path.read_bytes() for path in files}


def text_of(passport: Passport | None) -> TextTower:
    assert passport is not None
    assert passport.text is not None
    return passport.text


def tokens_of(repository: Path, texts: list[str], names: ModelNames = DEFAULT_NAMES) -> npt.NDArray[np.int32]:
    text = text_of(installed_passport(repository, names))
    config = TokenizerConfig.from_mapping(text.tokenizer)
    tokenizer = Tokenizer.load(version_directory(repository, names.tokenize), config, text.tokenizer_sha256)
    return tokenizer.encode(texts)[0]


def vectors_of(repository: Path, texts: list[str], names: ModelNames = DEFAULT_NAMES) -> npt.NDArray[np.float32]:
    """Vectors by what is installed, whose fingerprint must be that of the passport."""
    text = text_of(installed_passport(repository, names))
    session = open_session(version_directory(repository, names.text_encoder) / "model.onnx")
    return checked_vectors(session, tokens_of(repository, texts, names), text.fingerprint)


def test_the_file_is_readable_for_the_oldest_server(tiny_pair_repository: Path) -> None:
    model = onnx.load(str(version_directory(tiny_pair_repository, DEFAULT_NAMES.text_encoder) / "model.onnx"))
    assert model.ir_version == 8
    assert [(opset.domain, opset.version) for opset in model.opset_import] == [("", 17)]
    assert [tensor.name for tensor in model.graph.input] == ["tokens", "status"]
    assert [tensor.name for tensor in model.graph.output] == ["embedding", "fingerprint"]


def test_vectors_are_those_of_open_clip_at_any_batch_size(tiny_pair_repository: Path) -> None:
    expected = open_clips_vectors(TINY_CLIP, TEXTS)
    for count in (1, 2, 5):
        vectors = vectors_of(tiny_pair_repository, TEXTS[:count])
        assert (vectors * expected[:count]).sum(axis=1).min() > 0.999999
    assert (expected @ expected.T - np.eye(5)).max() < 0.999, "the texts have different vectors"


def test_the_passport_describes_the_pair(tiny_pair_repository: Path, tiny_repository: Path) -> None:
    pair, image = installed_passport(tiny_pair_repository), installed_passport(tiny_repository)
    text = text_of(pair)
    assert pair is not None
    assert image is not None
    assert image == replace(pair, text=None)
    assert text.fingerprint != pair.fingerprint
    assert text.parity.min_cosine >= 0.999999
    assert text.parity.images == 5
    assert text.tokenizer["context_length"] == 77
    assert text.logit_bias is None
    assert vectors_of(tiny_pair_repository, [text.canary])[0] @ np.array(text.canary_vector) > 0.999999


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_tower_gives_open_clips_vectors(kind: str, tmp_path: Path) -> None:
    folder = tmp_path / kind
    folder.mkdir()
    model = KINDS[kind](folder)
    text = text_of(export(tmp_path / "models", model))
    expected = open_clips_vectors(model, TEXTS)
    assert (vectors_of(tmp_path / "models", TEXTS) * expected).sum(axis=1).min() > 0.999999
    assert text.parity.min_cosine >= 0.999999
    assert (text.logit_bias is None) == (kind == "multilingual")


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
    assert set(files) == {path for path in files if path.startswith(("clip_image", "clip_preprocess", "clip_encoder"))}
    model = tmp_path / "clip_encoder" / "1" / "model.onnx"
    inode = model.stat().st_ino
    after = export(tmp_path)
    assert replace(after, text=None) == before
    assert (after.id, after.fingerprint) == (before.id, before.fingerprint)
    assert model.stat().st_ino == inode, "it was not even written again"
    now = contents(tmp_path)
    assert {name for name in files if now[name] != files[name]} == {"clip_encoder/1/model.json"}
    said: list[str] = []
    export(tmp_path, report=said.append)
    assert "installed already" in said[-1]
    assert contents(tmp_path) == now


def test_a_text_tower_goes_with_its_image_tower(tmp_path: Path) -> None:
    export(tmp_path)
    assert export(tmp_path, text=False).text is not None, "it is the same model"
    assert (tmp_path / "clip_text").exists()
    assert export(tmp_path, seed=1, text=False).text is None
    assert not list(tmp_path.glob("clip_t*"))
    text_of(export(tmp_path, seed=1))
    assert export(tmp_path, seed=1, precision="int8", text=False).text is None
    assert not list(tmp_path.glob("clip_t*"))


def test_a_model_of_the_user_with_such_a_name_is_not_removed(tmp_path: Path) -> None:
    mine = tmp_path / "clip_tokenize" / "1" / "model.py"
    mine.parent.mkdir(parents=True)
    mine.write_text("my own tokenizer")
    export(tmp_path, text=False)
    assert mine.read_text() == "my own tokenizer"


def test_a_text_tower_that_lost_a_file_is_written_again(tmp_path: Path) -> None:
    text = text_of(export(tmp_path))
    files = contents(tmp_path)
    (version_directory(tmp_path, DEFAULT_NAMES.tokenize) / "tokenizer.json").unlink()
    assert text_of(export(tmp_path)) == text
    assert contents(tmp_path) == files


def test_two_models_share_a_repository(tmp_path: Path) -> None:
    export(tmp_path)
    files = contents(tmp_path)
    export(tmp_path, seed=1, name="second")
    names = ModelNames("second")
    assert {path.name for path in tmp_path.iterdir()} == {
        name for both in (DEFAULT_NAMES, names) for name in (*both.of_images, *both.of_texts)
    }
    assert {name: data for name, data in contents(tmp_path).items() if name.startswith("clip_")} == files
    for name in (*names.of_images, *names.of_texts):
        config = read_config(tmp_path / name / "config.pbtxt")
        assert config.name == name
        assert {step.model_name for step in config.ensemble_scheduling.step} <= {*names.of_images, *names.of_texts}
        if name in (names.preprocess, names.tokenize):
            assert config.parameters["passport"].string_value == "../second_encoder/1/model.json"
    assert vectors_of(tmp_path, TEXTS, names).shape == (5, 512)
    assert not np.allclose(vectors_of(tmp_path, TEXTS, names), vectors_of(tmp_path, TEXTS))
    export(tmp_path, seed=2, name="second", text=False)
    assert (tmp_path / "clip_text").exists()
    assert not (tmp_path / "second_text").exists()


def test_a_name_that_triton_models_cannot_have_is_misuse(tmp_path: Path) -> None:
    with pytest.raises(WrongChoice, match="'my_model' is no name of a model"):
        export(tmp_path / "models", name="my_model")
    assert not (tmp_path / "models").exists()


class Killed(BaseException):
    """Ends an export as a kill would: no handler of ours catches it."""


@contextmanager
def killed_after(moves: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    def move(source: Path, target: Path) -> None:
        nonlocal moves
        if not moves:
            raise Killed
        moves -= 1
        os.rename(source, target)

    with monkeypatch.context() as patch, suppress(Killed):
        patch.setattr(os, "replace", move)
        yield


@pytest.mark.parametrize("adds", [True, False])
def test_an_installation_that_is_killed_anywhere_has_no_marker_that_lies(
    adds: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The marker lists the files and what is in them."""

    def holds(marker: Path) -> bool:
        named = json.loads(marker.read_text())
        return all((marker.parent / name).read_text() == text for name, text in named.items())

    for moves in range(6):
        folder = tmp_path / str(moves)
        old, new = {"image": "old"}, {"image": "old" if adds else "new", "text": "new", "tokens": "new"}
        for name, content in ((old, folder / "installed"), (new, folder / "staged")):
            content.mkdir(parents=True)
            for file, text in {**name, "marker": json.dumps(name)}.items():
                (content / file).write_text(text)
        files = {folder / "staged" / name: folder / "installed" / name for name in new if name not in old or not adds}
        marker = (folder / "staged" / "marker", folder / "installed" / "marker")
        with killed_after(moves, monkeypatch):
            atomic_install.install(files, {}, [], marker, adds=adds)
        assert marker[1].exists() == (adds or moves > len(files))
        assert not marker[1].exists() or holds(marker[1])
        if moves > len(files):
            assert json.loads(marker[1].read_text()) == new
            break


@pytest.mark.timeout(180)
@pytest.mark.parametrize("moves", [1, 7])
def test_a_killed_export_of_a_text_tower_leaves_the_image_tower(
    moves: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = export(tmp_path, text=False)
    files = contents(tmp_path)
    with killed_after(moves, monkeypatch):
        export(tmp_path)
    assert installed_passport(tmp_path) == before
    assert {name: data for name, data in contents(tmp_path).items() if name in files} == files
    assert export(tmp_path, text=False) == before
    assert contents(tmp_path) == files, "what was left is gone"
