"""``clip-serve --tensorrt`` as far as no GPU is needed: what is staged, and what is said where TensorRT is missing."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest
from google.protobuf import json_format

from preprocess_ensemble.backends.onnxruntime.session_plan import plan_session
from preprocess_ensemble.errors import ReportedError
from preprocess_ensemble.model_repository.config import config_text, installed_passport, read_config
from preprocess_ensemble.serving import tensorrt
from preprocess_ensemble.serving.tensorrt import TensorrtMissing, check_tensorrt, on_tensorrt, stage_repository
from tests.fixtures.models.configurations import configs
from tests.fixtures.models.passports import PASSPORT

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    directory = tmp_path / "triton_models"
    for name, config in configs().items():
        (directory / name / "1").mkdir(parents=True)
        (directory / name / "config.pbtxt").write_text(config_text(config))
    (directory / "clip_encoder" / "1" / "model.onnx").write_bytes(b"weights")
    (directory / "clip_encoder" / "1" / "model.json").write_text(PASSPORT.to_json())
    return directory


def stage(repository: Path, precision: str = "fp16") -> dict[str, str]:
    """Stage it, or update it; return the parameters of its accelerator."""
    root = repository.parent
    stage_repository(repository, root / "staged", cache=root / "cache", precision=precision)
    config = read_config(root / "staged" / "clip_encoder" / "config.pbtxt")
    (accelerator,) = config.optimization.execution_accelerators.gpu_execution_accelerator
    return dict(accelerator.parameters)


def test_the_names_stay_and_only_the_encoder_changes(repository: Path) -> None:
    before = {path: path.read_bytes() for path in repository.rglob("*") if path.is_file()}
    stage(repository)
    staged = repository.parent / "staged"
    assert {model.name for model in staged.iterdir()} == set(configs())
    for name, original in configs().items():
        assert (read_config(staged / name / "config.pbtxt") == original) == (name != "clip_encoder")
    assert read_config(staged / "clip_encoder" / "config.pbtxt").name == "clip_encoder"
    assert (staged / "clip_encoder" / "1" / "model.onnx").read_bytes() == b"weights"
    assert installed_passport(staged) == PASSPORT
    assert {path: path.read_bytes() for path in repository.rglob("*") if path.is_file()} == before


def test_the_profile_follows_the_repositorys_own_shapes_and_largest_batch(repository: Path) -> None:
    path = repository / "clip_encoder" / "config.pbtxt"
    path.write_text(path.read_text().replace("max_batch_size: 32", "max_batch_size: 64").replace("224", "336"))
    found = stage(repository, "fp32")
    assert found["trt_profile_min_shapes"] == "pixels:1x336x336x3,status:1x1"
    assert found["trt_profile_opt_shapes"] == found["trt_profile_max_shapes"] == "pixels:64x336x336x3,status:64x1"
    assert found["precision_mode"] == "FP32"


def test_the_backend_takes_every_key_and_asks_for_tensorrt(repository: Path) -> None:
    config = on_tensorrt(read_config(repository / "clip_encoder" / "config.pbtxt"), cache="/c", precision="fp16")
    plan = plan_session(json_format.MessageToDict(config, preserving_proto_field_name=True), kind="GPU", device_id=0)
    assert plan.providers[0].name == "TensorrtExecutionProvider"
    assert plan.providers[0].required
    assert plan.providers[0].options["trt_timing_cache_path"] == "/c"
    assert [group.kind for group in config.instance_group] == [1], "KIND_GPU: never the CPU without a word"


def test_other_weights_get_a_cache_of_their_own_at_the_next_start(repository: Path) -> None:
    first = stage(repository)
    assert first["trt_engine_cache_path"] == first["trt_timing_cache_path"]
    assert stage(repository) == first
    other = stage(repository, "fp32")
    passport = repository / "clip_encoder" / "1" / "model.json"
    passport.write_text(passport.read_text().replace(PASSPORT.weights_sha256, "f" * 64))
    changed = stage(repository)
    config = repository / "clip_encoder" / "config.pbtxt"
    config.write_text(config.read_text().replace("max_batch_size: 32", "max_batch_size: 64"))
    larger = stage(repository)
    assert len({found["trt_engine_cache_path"] for found in (first, other, changed, larger)}) == 4


def test_a_model_that_is_replaced_is_followed_and_its_text_tower_goes_with_it(repository: Path) -> None:
    (repository / "clip_text_encoder").mkdir()
    (repository / "clip_text_encoder" / "config.pbtxt").write_text("as it is")
    stage(repository)
    staged, encoder = repository.parent / "staged", repository / "clip_encoder" / "1"
    assert (staged / "clip_text_encoder" / "config.pbtxt").read_text() == "as it is"
    shutil.rmtree(repository / "clip_text_encoder")
    shutil.rmtree(encoder)
    with pytest.raises(ReportedError, match="no complete model"):
        stage(repository)
    encoder.mkdir()
    (encoder / "model.onnx").write_bytes(b"others")
    (encoder / "model.json").write_text(PASSPORT.to_json())
    stage(repository)
    assert (staged / "clip_encoder" / "1" / "model.onnx").read_bytes() == b"others"
    assert not (staged / "clip_text_encoder").is_symlink()


@pytest.mark.parametrize(
    ("gpus", "provider", "sentence"),
    [
        (0, None, r"needs an NVIDIA GPU.*--gpus all.*without --tensorrt"),
        (1, None, r"no TensorRT provider.*pip install onnxruntime-gpu"),
        (1, b"\0libnvinfer.so.10\0", r"needs libnvinfer.so.10, .*pip install 'tensorrt-cu13==10\.\*'"),
    ],
)
def test_what_is_missing_is_named_with_its_remedy(
    gpus: int, provider: bytes | None, sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = tmp_path / "libonnxruntime_providers_tensorrt.so"
    if provider is not None:
        library.write_bytes(provider)
    monkeypatch.setattr(tensorrt, "usable_gpus", lambda: gpus)
    monkeypatch.setattr(tensorrt, "_provider", lambda _: library)
    monkeypatch.setattr(tensorrt, "_loads", lambda name, _: name != "libnvinfer.so.10")
    with pytest.raises(TensorrtMissing, match=sentence):
        check_tensorrt()
    monkeypatch.setattr(tensorrt, "usable_gpus", lambda: 1)
    library.write_bytes(b"\0libnvinfer.so.11\0")
    check_tensorrt()
