"""The Triton model of the tokenizer with a stand-in for Triton's in-process API only; CLIP's tokenizer is real."""

from __future__ import annotations

import json
import types
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from preprocess_ensemble.contract import ImageStatus
from preprocess_ensemble.export.tokenizer_files import write_tokenizer
from tests.fixtures.models.passports import PASSPORT, WITH_TEXT
from tests.unit.backends.triton_stand_in import (
    MetricFamily,
    Request,
    TritonError,
    imported_beside,
    load_error,
    request_of,
)

OUTPUTS = ("tokens", "status", "error", "truncated")


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> Iterator[types.ModuleType]:
    with imported_beside(monkeypatch, "preprocess_ensemble.triton_tokenizer") as module:
        yield module


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    files = tmp_path / "clip_tokenize" / "1"
    files.mkdir(parents=True)
    config, digests = write_tokenizer(files, {"context_length": 16})
    assert WITH_TEXT.text is not None
    text = replace(WITH_TEXT.text, tokenizer=asdict(config), tokenizer_sha256=digests)
    (tmp_path / "clip_encoder" / "1").mkdir(parents=True)
    (tmp_path / "clip_encoder" / "1" / "model.json").write_text(replace(PASSPORT, text=text).to_json())
    return tmp_path


def arguments(repository: Path, *, length: int = 16) -> dict[str, str]:
    config = {
        "name": "clip_tokenize",
        "output": [{"name": "tokens", "dims": [str(length)]}],
        "parameters": {"passport": {"string_value": "../clip_encoder/1/model.json"}},
    }
    folder = str(repository / "clip_tokenize")
    return {"model_repository": folder, "model_version": "1", "model_config": json.dumps(config)}


@pytest.fixture
def model(module: types.ModuleType, repository: Path) -> Iterator[Any]:
    model = module.TritonPythonModel()
    model.initialize(arguments(repository))
    yield model
    model.finalize()


def request(*texts: bytes, outputs: tuple[str, ...] = OUTPUTS) -> Request:
    return request_of("text", texts, outputs)


def test_rows_of_several_requests(model: Any) -> None:
    first, second = model.execute([request(b"a dog", b"\xff", b"word " * 20), request(b"a dog", outputs=("tokens",))])
    assert first["tokens"].dtype == np.int32
    assert first["tokens"].shape == (3, 16)
    assert first["status"].tolist() == [[0], [ImageStatus.NOT_UTF8], [0]]
    assert first["truncated"].dtype == np.bool_
    assert first["truncated"].tolist() == [[False], [False], [True]]
    assert first["error"][0, 0] == b""
    assert b"not UTF-8" in first["error"][1, 0]
    assert second.names == {"tokens"}
    assert np.array_equal(second["tokens"][0], first["tokens"][0])
    assert MetricFamily.counts == {
        ("clip_tokenize_texts_total", "OK"): 3,
        ("clip_tokenize_texts_total", "NOT_UTF8"): 1,
        ("clip_tokenize_truncated_total",): 1,
        ("clip_tokenize_requests_total", "2-4"): 1,
        ("clip_tokenize_requests_total", "1"): 1,
    }


def test_a_malformed_request_fails_alone(model: Any) -> None:
    malformed, good = model.execute([Request([], OUTPUTS), request(b"a dog")])
    assert malformed.error.code == TritonError.INVALID_ARG
    assert "input text" in malformed.error.text
    assert good["status"].tolist() == [[0]]


def test_what_does_not_belong_to_the_model_is_refused(module: types.ModuleType, repository: Path) -> None:
    assert "dims [77] for the output tokens and the exported model needs [16]" in load_error(
        module, arguments(repository, length=77)
    )
    passport = repository / "clip_encoder" / "1" / "model.json"
    file = repository / "clip_tokenize" / "1" / "tokenizer.json"
    as_exported = passport.read_text()
    passport.write_text(as_exported.replace('"clip-bpe"', '"bytes"'))
    assert "no tokenizer of the kind 'bytes'" in load_error(module, arguments(repository))
    passport.write_text(as_exported)
    file.write_text(file.read_text(encoding="utf-8") + " ", encoding="utf-8")
    assert "not the file that was exported with this model" in load_error(module, arguments(repository))
    passport.write_text(PASSPORT.to_json())
    assert "no text tower" in load_error(module, arguments(repository))
    passport.unlink()
    assert "model.json, is missing" in load_error(module, arguments(repository))
