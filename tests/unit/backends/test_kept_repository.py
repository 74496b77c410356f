"""A model repository that commit b5eb4341 exported still loads: its ``model.py`` files name modules of this package.

``kept_repository.tar.gz`` is what ``clip-export --model benchmarks/fixtures/tiny_clip.json --pretrained random --towers
image,text`` wrote there, without both ``model.onnx`` and without ``tokenizer.json``, which have megabytes.
"""

import json
import tarfile
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import json_format

from preprocess_ensemble.export.tokenizer_files import write_tokenizer
from preprocess_ensemble.model_repository.config import read_config
from preprocess_ensemble.model_repository.location import model_names
from preprocess_ensemble.model_repository.passport import Passport
from tests.fixtures.images import image_files
from tests.paths import ROOT
from tests.unit.backends.triton_stand_in import imported_beside, request_of, run_model_file


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    with tarfile.open(ROOT / "tests" / "data" / "kept_repository.tar.gz") as archive:
        archive.extractall(tmp_path, filter="data")
    return tmp_path


def loaded(folder: Path) -> Any:
    config = json_format.MessageToDict(read_config(folder / "config.pbtxt"), preserving_proto_field_name=True)
    model = run_model_file(folder)()
    model.initialize({"model_repository": str(folder), "model_version": "1", "model_config": json.dumps(config)})
    return model


def test_its_preprocessor_decodes(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    photo = image_files.encoded(image_files.picture(), "PNG")
    with imported_beside(monkeypatch, "preprocess_ensemble.triton_model"):
        model = loaded(repository / "clip_preprocess")
        (answer,) = model.execute([request_of("image", (photo,), ("pixels", "status", "model"))])
        model.finalize()
    assert (answer["pixels"].shape, answer["status"].tolist()) == ((1, 224, 224, 3), [[0]])
    assert Passport.from_json(answer["model"][0, 0]).id == "tiny_clip/random:0@67cf463d"


def test_its_tokenizer_reads_texts(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, digests = write_tokenizer(repository / "clip_tokenize" / "1", {"context_length": 77})
    file = repository / "clip_encoder" / "1" / "model.json"
    passport = json.loads(file.read_bytes())
    passport["text"]["tokenizer_sha256"] = digests
    file.write_text(json.dumps(passport), encoding="utf-8")
    with imported_beside(monkeypatch, "preprocess_ensemble.triton_tokenizer"):
        model = loaded(repository / "clip_tokenize")
        (answer,) = model.execute([request_of("text", (b"a dog",), ("tokens", "status"))])
        model.finalize()
    assert (answer["tokens"].shape, answer["status"].tolist()) == ((1, 77), [[0]])


def test_clip_serve_finds_its_model(repository: Path) -> None:
    assert model_names(repository) == ["clip"]
