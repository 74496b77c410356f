"""The Triton model with a stand-in for Triton's in-process API only; images, threads and files are real."""

from __future__ import annotations

import json
import os
import types
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image, QoiImagePlugin

from preprocess_ensemble.contract import ImageStatus
from preprocess_ensemble.imaging.decode import decode
from preprocess_ensemble.imaging.transform import PreprocessConfig, preprocess
from preprocess_ensemble.model_repository.passport import Canary, Parity, Passport
from tests.fixtures.images import image_files
from tests.paths import ROOT
from tests.unit.backends.triton_stand_in import (
    Logger,
    MetricFamily,
    Request,
    Tensor,
    TritonError,
    TritonModelException,
    imported_beside,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PREPROCESS = PreprocessConfig(size=(64, 48), mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5))
ALL_DECODED = ("pixels", "status", "error")


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> Iterator[types.ModuleType]:
    with imported_beside(monkeypatch, "preprocess_ensemble.triton_model") as module:
        yield module


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    passport = Passport(
        model="tiny",
        pretrained="random:0",
        weights_sha256="0" * 64,
        preprocess=PREPROCESS.to_mapping(),
        preprocess_id=PREPROCESS.id,
        dimension=2,
        precision="fp32",
        fingerprint=(1, 2),
        parity=Parity(images=1, min_cosine=1.0, required=0.9999),
        canary=Canary(image=image_files.jpeg(), vector=(1.0, 0.0)),
        opset=17,
        ir_version=8,
    )
    (tmp_path / "clip_preprocess").mkdir()
    (tmp_path / "clip_encoder" / "1").mkdir(parents=True)
    (tmp_path / "clip_encoder" / "1" / "model.json").write_text(passport.to_json())
    return tmp_path


def arguments(repository: Path, *, dims: tuple[int, ...] = (64, 48, 3), **parameters: Any) -> dict[str, str]:
    settings = {"passport": "../clip_encoder/1/model.json", **parameters}
    config = {
        "name": "clip_preprocess",
        "output": [{"name": "pixels", "dims": [str(side) for side in dims]}, {"name": "status", "dims": ["1"]}],
        "parameters": {name: {"string_value": value} for name, value in settings.items()},
    }
    return {"model_repository": str(repository / "clip_preprocess"), "model_config": json.dumps(config)}


@pytest.fixture
def model(module: types.ModuleType, repository: Path) -> Iterator[Any]:
    model = module.TritonPythonModel()
    model.initialize(arguments(repository))
    yield model
    model.finalize()


def request(*files: bytes, outputs: tuple[str, ...] = ALL_DECODED) -> Request:
    rows = np.empty((len(files), 1), dtype=np.object_)
    rows[:, 0] = files
    return Request([Tensor("image", rows)], outputs)


def expected_pixels(file: bytes) -> npt.NDArray[np.uint8]:
    return preprocess(decode(file), PREPROCESS)


GOOD = [image_files.encoded(image_files.picture(seed=seed), "PNG") for seed in range(6)]
TRUNCATED = GOOD[0][: len(GOOD[0]) // 2]


def test_one_request_of_one_image(model: Any) -> None:
    (response,) = model.execute([request(GOOD[0])])
    assert response.error is None
    assert response.names == set(ALL_DECODED)
    assert response["pixels"].shape == (1, 64, 48, 3)
    assert response["pixels"].dtype == np.uint8
    assert np.array_equal(response["pixels"][0], expected_pixels(GOOD[0]))
    assert response["status"].dtype == np.int32
    assert response["status"].tolist() == [[0]]
    assert response["error"].tolist() == [[b""]]


def test_a_single_bad_image_is_an_answer(model: Any) -> None:
    (response,) = model.execute([request(TRUNCATED)])
    assert response.error is None
    assert response["status"].tolist() == [[ImageStatus.TRUNCATED]]
    assert not response["pixels"].any()
    assert b"truncated" in response["error"][0, 0]


def test_five_requests_with_one_bad_image(model: Any) -> None:
    responses = model.execute([request(file) for file in (*GOOD[:2], TRUNCATED, *GOOD[3:5])])
    assert len(responses) == 5
    for number, response in enumerate(responses):
        if number == 2:
            assert response["status"].tolist() == [[ImageStatus.TRUNCATED]]
        else:
            assert response["status"].tolist() == [[0]]
            assert np.array_equal(response["pixels"][0], expected_pixels(GOOD[number]))


def test_batches_keep_their_order(model: Any) -> None:
    responses = model.execute(
        [request(*GOOD[:3]), request(b"", GOOD[3], b"no image"), request(), request(*reversed(GOOD))]
    )
    assert [response["status"].ravel().tolist() for response in responses] == [
        [0, 0, 0],
        [ImageStatus.EMPTY, 0, ImageStatus.NOT_AN_IMAGE],
        [],
        [0] * 6,
    ]
    for row, file in enumerate(reversed(GOOD)):
        assert np.array_equal(responses[3]["pixels"][row], expected_pixels(file))
    assert not responses[1]["pixels"][[0, 2]].any()
    assert np.array_equal(responses[1]["pixels"][1], expected_pixels(GOOD[3]))


def test_the_handshake_decodes_nothing(model: Any) -> None:
    (response,) = model.execute([request(b"", outputs=("model",))])
    assert response.names == {"model"}
    assert Passport.from_json(response["model"][0, 0]).model == "tiny"
    assert MetricFamily.counts == {}, "every decoded image is counted"


def test_model_beside_the_decoded_outputs(model: Any) -> None:
    (response,) = model.execute([request(*GOOD[:2], outputs=("model", "status"))])
    assert response.names == {"model", "status"}
    assert response["model"].shape == (2, 1)


@pytest.mark.parametrize(
    "inputs",
    [
        [],
        [Tensor("image", np.array([b"x"], dtype=np.object_))],
        [Tensor("image", np.zeros((1, 1), dtype=np.float32))],
        [Tensor("image", np.empty((1, 2), dtype=np.object_))],
    ],
)
def test_a_malformed_request_fails_alone(model: Any, inputs: list[Tensor]) -> None:
    first, malformed, last = model.execute([request(GOOD[0]), Request(inputs, ALL_DECODED), request(GOOD[1])])
    assert malformed.error.code == TritonError.INVALID_ARG
    assert "input image" in malformed.error.text
    assert "Traceback" not in malformed.error.text
    assert malformed.output_tensors == []
    assert np.array_equal(first["pixels"][0], expected_pixels(GOOD[0]))
    assert np.array_equal(last["pixels"][0], expected_pixels(GOOD[1]))


def test_a_defect_stays_in_its_row_and_its_text_in_the_log(
    model: Any, module: types.ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    def defect(self: QoiImagePlugin.QoiImageFile) -> None:
        raise AttributeError("/secret/path")

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
    module: types.ModuleType, repository: Path, parameter: str, value: str, file: bytes, status: ImageStatus
) -> None:
    model = module.TritonPythonModel()
    model.initialize(arguments(repository, **dict[str, Any]({parameter: value})))
    (response,) = model.execute([request(file)])
    model.finalize()
    assert response["status"].tolist() == [[status]]


def test_a_request_that_spent_its_time_gets_no_more_large_images(module: types.ModuleType, repository: Path) -> None:
    large = image_files.encoded(Image.new("L", (4100, 4000), 100), "JPEG")  # over 16 megapixels
    small = image_files.jpeg(size=(30, 20))
    model = module.TritonPythonModel()
    model.initialize(arguments(repository, max_decode_seconds="1e-9", max_image_bytes="500000", decode_threads="1"))
    slow, neighbour = model.execute([request(large, large, small, bytes(600_000)), request(large)])
    model.finalize()
    assert slow["status"].ravel().tolist() == [0, ImageStatus.LIMIT, 0, ImageStatus.TOO_LARGE]
    assert b"took more than 1e-09 s" in slow["error"][1, 0]
    assert not slow["pixels"][1].any()
    assert neighbour["status"].tolist() == [[ImageStatus.OK]]


def load_error(module: types.ModuleType, args: dict[str, str]) -> str:
    with pytest.raises(TritonModelException) as caught:
        module.TritonPythonModel().initialize(args)
    return str(caught.value)


def test_without_a_passport_the_load_says_what_to_do(module: types.ModuleType, repository: Path) -> None:
    (repository / "clip_encoder" / "1" / "model.json").unlink()
    assert "run clip-export" in load_error(module, arguments(repository))


def test_a_passport_that_is_none(module: types.ModuleType, repository: Path) -> None:
    (repository / "clip_encoder" / "1" / "model.json").write_text("{}")
    assert "export the model again" in load_error(module, arguments(repository))


def test_dims_of_another_model(module: types.ModuleType, repository: Path) -> None:
    message = load_error(module, arguments(repository, dims=(224, 224, 3)))
    assert "[224, 224, 3]" in message
    assert "[64, 48, 3]" in message
    assert "clip-export" in message


@pytest.mark.parametrize(
    ("parameter", "value"),
    [
        ("decode_threads", "many"),
        ("decode_threads", "-1"),
        ("max_frames", "0"),
        ("max_megapixels", "inf"),
        ("max_decode_seconds", "0"),
        ("allow_truncated", "perhaps"),
        ("max_colour", "1"),
    ],
)
def test_parameters_that_make_no_sense(module: types.ModuleType, repository: Path, parameter: str, value: str) -> None:
    assert parameter in load_error(module, arguments(repository, **dict[str, Any]({parameter: value})))


def test_tritons_own_parameters_are_let_through(module: types.ModuleType, repository: Path) -> None:
    model = module.TritonPythonModel()
    model.initialize(arguments(repository, FORCE_CPU_ONLY_INPUT_TENSORS="yes", decode_threads="3"))
    model.finalize()
    assert " 3 decode threads" in Logger.infos[-1]


def test_the_repository_re_exports_this_model(module: types.ModuleType) -> None:
    path = ROOT / "triton_models" / "clip_preprocess" / "1" / "model.py"
    namespace: dict[str, Any] = {}
    exec(compile(path.read_text(), str(path), "exec"), namespace)
    assert namespace["TritonPythonModel"] is module.TritonPythonModel


@pytest.mark.parametrize(("instances", "threads"), [(1, 6), (2, 3), (4, 2)])
def test_instances_share_the_cores(
    module: types.ModuleType, repository: Path, monkeypatch: pytest.MonkeyPatch, instances: int, threads: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(6)))
    args = arguments(repository, decode_threads="0")
    config = json.loads(args["model_config"]) | {"instance_group": [{"count": instances}]}
    model = module.TritonPythonModel()
    model.initialize(args | {"model_config": json.dumps(config)})
    model.finalize()
    assert f" {threads} decode threads" in Logger.infos[-1]
