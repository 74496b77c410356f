"""The Triton models with a stand-in for Triton's in-process API only; images, texts, threads and files are real."""

import json
import os
import tarfile
import types
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import numpy.typing as npt
import pytest
from google.protobuf import json_format
from PIL import Image, QoiImagePlugin

from preprocess_ensemble.contract import ImageStatus
from preprocess_ensemble.export.tokenizer_files import write_tokenizer
from preprocess_ensemble.imaging.decode import decode
from preprocess_ensemble.imaging.transform import PreprocessConfig, preprocess
from preprocess_ensemble.model_repository.config import read_config
from preprocess_ensemble.model_repository.location import model_names
from preprocess_ensemble.model_repository.passport import Passport
from tests.fixtures.images import image_files
from tests.fixtures.models.passports import PASSPORT, WITH_TEXT
from tests.paths import ROOT
from tests.unit.backends.triton_stand_in import (
    Logger,
    MetricFamily,
    Request,
    Tensor,
    TritonError,
    imported_beside,
    initialized,
    load_error,
    request_of,
    run_model_file,
)  # fmt: skip

PREPROCESS = PreprocessConfig(size=(64, 48), mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5))
ALL_DECODED = ("pixels", "status", "error")
GOOD = [image_files.encoded(image_files.picture(seed=seed), "PNG") for seed in range(6)]
TRUNCATED = GOOD[0][: len(GOOD[0]) // 2]


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> Iterator[types.ModuleType]:
    with imported_beside(monkeypatch, "preprocess_ensemble.triton_model") as module:
        yield module


@pytest.fixture
def passport(tmp_path: Path) -> Path:
    file = tmp_path / "clip_encoder" / "1" / "model.json"
    file.parent.mkdir(parents=True)
    file.write_text(replace(PASSPORT, preprocess=PREPROCESS.to_mapping()).to_json())
    return file


def arguments(
    file: Path, *, dims: tuple[int, ...] = (64, 48, 3), instances: int = 1, **parameters: str
) -> dict[str, str]:
    settings = {"passport": "../clip_encoder/1/model.json", **parameters}
    config = {
        "name": "clip_preprocess",
        "output": [{"name": "pixels", "dims": [str(side) for side in dims]}, {"name": "status", "dims": ["1"]}],
        "parameters": {name: {"string_value": value} for name, value in settings.items()},
        "instance_group": [{"count": instances}],
    }
    (folder := file.parents[2] / "clip_preprocess").mkdir(exist_ok=True)
    return {"model_repository": str(folder), "model_version": "1", "model_config": json.dumps(config)}


@pytest.fixture
def model(module: types.ModuleType, passport: Path) -> Iterator[Any]:
    with initialized(module, arguments(passport)) as model:
        yield model


def request(*files: bytes, outputs: tuple[str, ...] = ALL_DECODED) -> Request:
    return request_of("image", files, outputs)


def expected_pixels(file: bytes) -> npt.NDArray[np.uint8]:
    return preprocess(decode(file), PREPROCESS)


def test_rows_of_several_requests_keep_their_order_beside_bad_ones(model: Any) -> None:
    bad = request(b"", GOOD[3], b"no image", TRUNCATED)
    responses = model.execute([request(*GOOD[:3]), bad, request(), request(*reversed(GOOD))])
    statuses = [response["status"].ravel().tolist() for response in responses]
    assert statuses == [[0] * 3, [ImageStatus.EMPTY, 0, ImageStatus.NOT_AN_IMAGE, ImageStatus.TRUNCATED], [], [0] * 6]
    for row, file in enumerate(reversed(GOOD)):
        assert np.array_equal(responses[3]["pixels"][row], expected_pixels(file))
    assert responses[0].names == set(ALL_DECODED)
    assert (responses[0]["pixels"].dtype, responses[0]["status"].dtype) == (np.uint8, np.int32)
    assert responses[0]["error"].tolist() == [[b""]] * 3
    assert not responses[1]["pixels"][[0, 2, 3]].any()
    assert np.array_equal(responses[1]["pixels"][1], expected_pixels(GOOD[3]))
    assert b"truncated" in responses[1]["error"][3, 0]


def test_the_handshake_decodes_nothing(model: Any) -> None:
    (response,) = model.execute([request(b"", outputs=("model",))])
    assert response.names == {"model"}
    assert Passport.from_json(response["model"][0, 0]).model == PASSPORT.model
    assert MetricFamily.counts == {}, "every decoded image is counted"
    (response,) = model.execute([request(*GOOD[:2], outputs=("model", "status"))])
    assert response.names == {"model", "status"}
    assert response["model"].shape == (2, 1)


@pytest.mark.parametrize(
    "array", [None, np.array([b"x"], np.object_), np.zeros((1, 1), np.float32), np.empty((1, 2), np.object_)]
)
def test_a_malformed_request_fails_alone(model: Any, array: npt.NDArray[Any] | None) -> None:
    inputs = [] if array is None else [Tensor("image", array)]
    first, malformed, last = model.execute([request(GOOD[0]), Request(inputs, ALL_DECODED), request(GOOD[1])])
    assert malformed.error.code == TritonError.INVALID_ARG
    assert "input image" in malformed.error.text
    assert "Traceback" not in malformed.error.text
    assert malformed.output_tensors == []
    assert np.array_equal(first["pixels"][0], expected_pixels(GOOD[0]))
    assert np.array_equal(last["pixels"][0], expected_pixels(GOOD[1]))


def test_a_defect_stays_in_its_row_and_its_text_in_the_log(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    defect = Mock(side_effect=AttributeError("/secret/path"))
    monkeypatch.setattr(QoiImagePlugin.QoiImageFile, "load_prepare", defect)
    bad = image_files.encoded(image_files.picture(), "QOI")
    (response,) = model.execute([request(GOOD[0], bad, GOOD[2])])
    assert response["status"].ravel().tolist() == [0, ImageStatus.INTERNAL, 0]
    assert b"secret" not in response["error"][1, 0]
    assert not response["pixels"][1].any()
    assert "Image 1 of request a-request" in Logger.errors[0]
    assert "/secret/path" in Logger.errors[0]
    assert "qoif" not in Logger.errors[0], "nothing of the image"


@pytest.mark.parametrize(
    ("parameter", "value", "file", "status"),
    [
        ("max_image_bytes", "100", GOOD[0], ImageStatus.TOO_LARGE),
        ("max_megapixels", "0.001", GOOD[0], ImageStatus.TOO_LARGE),
        ("max_side_ratio", "1.2", GOOD[0], ImageStatus.LIMIT),
        ("max_frames", "9999", image_files.endless_tiff(), ImageStatus.LIMIT),
        ("max_metadata_bytes", "10", image_files.jpeg(icc_profile=bytes(100)), ImageStatus.LIMIT),
        ("allow_truncated", "true", TRUNCATED, ImageStatus.OK),
        ("allow_truncated", "false", TRUNCATED, ImageStatus.TRUNCATED),
    ],
)
def test_parameters_have_their_effect(
    module: types.ModuleType, passport: Path, parameter: str, value: str, file: bytes, status: ImageStatus
) -> None:
    with initialized(module, arguments(passport, **dict[str, Any]({parameter: value}))) as model:
        (response,) = model.execute([request(file)])
    assert response["status"].tolist() == [[status]]


def test_a_request_that_spent_its_time_gets_no_more_large_images(module: types.ModuleType, passport: Path) -> None:
    large = image_files.encoded(Image.new("L", (4100, 4000), 100), "JPEG")  # over 16 megapixels
    small = image_files.jpeg(size=(30, 20))
    limits = arguments(passport, max_decode_seconds="1e-9", max_image_bytes="500000", decode_threads="1")
    with initialized(module, limits) as model:
        slow, neighbour = model.execute([request(large, large, small, bytes(600_000)), request(large)])
    assert slow["status"].ravel().tolist() == [0, ImageStatus.LIMIT, 0, ImageStatus.TOO_LARGE]
    assert b"took more than 1e-09 s" in slow["error"][1, 0]
    assert not slow["pixels"][1].any()
    assert neighbour["status"].tolist() == [[ImageStatus.OK]]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"dims": (224, 224, 3)}, ["[224, 224, 3]", "[64, 48, 3]", "clip-export"]),
        ({"passport": "../clip_encoder/2/model.json"}, ["run clip-export", "own --name"]),
        ({"passport": "../clip_encoder/1/empty.json"}, ["export the model again"]),
        ({"decode_threads": "many"}, ["decode_threads"]),
        ({"decode_threads": "-1"}, ["decode_threads"]),
        ({"max_frames": "0"}, ["max_frames"]),
        ({"max_megapixels": "inf"}, ["max_megapixels"]),
        ({"max_decode_seconds": "0"}, ["max_decode_seconds"]),
        ({"allow_truncated": "perhaps"}, ["allow_truncated"]),
        ({"max_colour": "1"}, ["max_colour"]),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_a_load_that_fails_says_why(
    module: types.ModuleType, passport: Path, settings: dict[str, Any], words: list[str]
) -> None:
    passport.with_name("empty.json").write_text("{}")
    message = load_error(module, arguments(passport, **settings))
    assert [word for word in words if word not in message] == []


@pytest.mark.parametrize(("asked", "instances", "threads"), [("0", 1, 6), ("0", 4, 2), ("3", 1, 3)])
def test_instances_share_the_cores(
    module: types.ModuleType, passport: Path, monkeypatch: pytest.MonkeyPatch, asked: str, instances: int, threads: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(6)))
    tritons_own: dict[str, Any] = {"FORCE_CPU_ONLY_INPUT_TENSORS": "yes"}
    with initialized(module, arguments(passport, instances=instances, decode_threads=asked, **tritons_own)):
        pass
    assert f" {threads} decode threads" in Logger.infos[-1]


def test_the_repository_re_exports_this_model(module: types.ModuleType) -> None:
    assert run_model_file(ROOT / "triton_models" / "clip_preprocess") is module.TritonPythonModel


TOKENIZED = ("tokens", "status", "error", "truncated")


@pytest.fixture
def exported(tmp_path: Path, passport: Path) -> Path:
    """The passport of a model with a text tower, whose tokenizer has 16 tokens."""
    files = tmp_path / "clip_tokenize" / "1"
    files.mkdir(parents=True)
    config, digests = write_tokenizer(files, {"context_length": 16})
    assert WITH_TEXT.text is not None
    text = replace(WITH_TEXT.text, tokenizer=asdict(config), tokenizer_sha256=digests)
    passport.write_text(replace(PASSPORT, text=text).to_json())
    return passport


def tokenizer_arguments(passport: Path, *, length: int = 16) -> dict[str, str]:
    config = {
        "name": "clip_tokenize",
        "output": [{"name": "tokens", "dims": [str(length)]}],
        "parameters": {"passport": {"string_value": "../clip_encoder/1/model.json"}},
    }
    folder = str(passport.parents[2] / "clip_tokenize")
    return {"model_repository": folder, "model_version": "1", "model_config": json.dumps(config)}


@pytest.fixture
def tokenizer(monkeypatch: pytest.MonkeyPatch) -> Iterator[types.ModuleType]:
    with imported_beside(monkeypatch, "preprocess_ensemble.triton_tokenizer") as module:
        yield module


def test_the_tokenizer_answers_rows_of_several_requests(tokenizer: types.ModuleType, exported: Path) -> None:
    rows = request_of("text", (b"a dog", b"\xff", b"word " * 20), TOKENIZED)
    requests = [rows, Request([], TOKENIZED), request_of("text", (b"a dog",), ("tokens",))]
    with initialized(tokenizer, tokenizer_arguments(exported)) as model:
        first, malformed, second = model.execute(requests)
    assert (first["tokens"].shape, first["tokens"].dtype) == ((3, 16), np.int32)
    assert first["status"].tolist() == [[0], [ImageStatus.NOT_UTF8], [0]]
    assert (first["truncated"].tolist(), first["truncated"].dtype) == ([[False], [False], [True]], np.bool_)
    assert first["error"][0, 0] == b""
    assert b"not UTF-8" in first["error"][1, 0]
    assert "input text" in malformed.error.text
    assert second.names == {"tokens"}
    assert np.array_equal(second["tokens"][0], first["tokens"][0])
    assert MetricFamily.counts == {
        ("clip_tokenize_texts_total", "OK"): 3, ("clip_tokenize_texts_total", "NOT_UTF8"): 1,
        ("clip_tokenize_truncated_total",): 1,
        ("clip_tokenize_requests_total", "2-4"): 1, ("clip_tokenize_requests_total", "1"): 1,
    }  # fmt: skip


def test_a_tokenizer_that_does_not_belong_to_the_model_is_refused(tokenizer: types.ModuleType, exported: Path) -> None:
    def refused(passport: str, length: int = 16) -> str:
        exported.write_text(passport)
        return load_error(tokenizer, tokenizer_arguments(exported, length=length))

    text = exported.read_text()
    assert "dims [77] for the output tokens and the exported model needs [16]" in refused(text, 77)
    assert "no tokenizer of the kind 'bytes'" in refused(text.replace('"clip-bpe"', '"bytes"'))
    assert "own --name, --model and --pretrained" in refused(PASSPORT.to_json())
    file = exported.parents[2] / "clip_tokenize" / "1" / "tokenizer.json"
    file.write_text(file.read_text(encoding="utf-8") + " ", encoding="utf-8")
    assert "not the file that was exported with this model" in refused(text)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """What commit b5eb4341 exported: its ``model.py`` files name modules of this package, and still load.

    The archive is what ``clip-export --model benchmarks/fixtures/tiny_clip.json --pretrained random --towers
    image,text`` wrote there, without both ``model.onnx`` and without ``tokenizer.json``, which have megabytes.
    """
    with tarfile.open(ROOT / "tests" / "data" / "kept_repository.tar.gz") as archive:
        archive.extractall(tmp_path, filter="data")
    return tmp_path


def answer_of(folder: Path, asked: Request) -> Any:
    config = json_format.MessageToDict(read_config(folder / "config.pbtxt"), preserving_proto_field_name=True)
    model = run_model_file(folder)()
    model.initialize({"model_repository": str(folder), "model_version": "1", "model_config": json.dumps(config)})
    (answer,) = model.execute([asked])
    model.finalize()
    return answer


def test_clip_serve_finds_it_and_its_preprocessor_decodes(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert model_names(repository) == ["clip"]
    with imported_beside(monkeypatch, "preprocess_ensemble.triton_model"):
        answer = answer_of(repository / "clip_preprocess", request(GOOD[0], outputs=("pixels", "status", "model")))
    assert (answer["pixels"].shape, answer["status"].tolist()) == ((1, 224, 224, 3), [[0]])
    assert Passport.from_json(answer["model"][0, 0]).id == "tiny_clip/random:0@67cf463d"


def test_its_tokenizer_reads_texts(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, digests = write_tokenizer(repository / "clip_tokenize" / "1", {"context_length": 77})
    file = repository / "clip_encoder" / "1" / "model.json"
    passport = json.loads(file.read_bytes())
    passport["text"]["tokenizer_sha256"] = digests
    file.write_text(json.dumps(passport), encoding="utf-8")
    with imported_beside(monkeypatch, "preprocess_ensemble.triton_tokenizer"):
        answer = answer_of(repository / "clip_tokenize", request_of("text", (b"a dog",), ("tokens", "status")))
    assert (answer["tokens"].shape, answer["status"].tolist()) == ((1, 77), [[0]])
