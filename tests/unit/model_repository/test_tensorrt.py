"""The block that ``clip-export --tensorrt`` writes into the configuration of encoders."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import json_format

from preprocess_ensemble.backends.onnxruntime.session_plan import plan_session
from preprocess_ensemble.contract import ModelNames
from preprocess_ensemble.export.atomic_install import write
from preprocess_ensemble.export.command import main
from preprocess_ensemble.model_repository.config import pending_files, read_config
from preprocess_ensemble.model_repository.passport import Passport
from preprocess_ensemble.model_repository.tensorrt import VERSIONS, Tensorrt
from tests.fixtures.commands import Run
from tests.fixtures.models.passports import WITH_TEXT

ENCODERS = ("mine_encoder", "mine_text_encoder")
HALF = replace(WITH_TEXT, weights_dtype="fp16", dimension=512)
FULL = replace(WITH_TEXT, dimension=512)


def exported(folder: Path, passport: Passport, version: int | None = None, cache: str = "/c") -> dict[str, Any]:
    """Export into ``folder``; return the configurations by the names of their models."""
    tensorrt = None if version is None else Tensorrt(version=version, cache=Path(cache))
    write(pending_files(folder, passport, ModelNames("mine"), tensorrt))
    return {path.parent.name: read_config(path) for path in folder.glob("*/config.pbtxt")}


def keys(config: Any) -> dict[str, str]:
    found = config.optimization.execution_accelerators.gpu_execution_accelerator
    return dict(found[0].parameters) if found else {}


@pytest.mark.parametrize("version", VERSIONS)
def test_only_the_encoders_change_and_the_backend_takes_every_key(version: int, tmp_path: Path) -> None:
    plain, found = exported(tmp_path / "plain", HALF), exported(tmp_path / "with", HALF, version)
    assert {name for name in found if found[name] != plain[name]} == set(ENCODERS)
    assert not any(map(keys, plain.values())), "the default configuration names no GPU"
    for name in ENCODERS:
        config = json_format.MessageToDict(found[name], preserving_proto_field_name=True)
        tensorrt, *_ = plan_session(config, kind="GPU", device_id=0).providers
        assert tensorrt.required
        assert tensorrt.options["trt_engine_cache_path"] == tensorrt.options["trt_timing_cache_path"] == "/c"
        assert [group.kind for group in found[name].instance_group] == [1], "KIND_GPU: never the CPU without a word"


@pytest.mark.parametrize(("passport", "mode"), [(HALF, "FP16"), (FULL, "FP32")])
def test_the_graph_says_the_precision_and_only_tensorrt_10_is_told(
    passport: Passport, mode: str, tmp_path: Path
) -> None:
    ten, eleven = (keys(exported(tmp_path / str(one), passport, one)["mine_encoder"]) for one in VERSIONS)
    assert ten["precision_mode"] == mode
    assert {"precision_mode", "trt_layer_norm_fp32_fallback"} == ten.keys() - eleven.keys()


def test_a_text_tower_in_fp32_stays_on_cuda(tmp_path: Path) -> None:
    assert keys(exported(tmp_path, FULL, 11)["mine_text_encoder"]) == {}
    assert keys(exported(tmp_path, HALF, 11)["mine_text_encoder"])
    assert exported(tmp_path, FULL)["mine_text_encoder"] == exported(tmp_path / "new", FULL)["mine_text_encoder"]


def test_an_int8_export_takes_the_encoders_off_tensorrt(tmp_path: Path) -> None:
    exported(tmp_path, HALF, 10)
    small = replace(HALF, weights_dtype="int8")
    found, plain = exported(tmp_path, small), exported(tmp_path / "new", small)
    assert [found[name] for name in ENCODERS] == [plain[name] for name in ENCODERS]


def test_one_profile_covers_every_batch(tmp_path: Path) -> None:
    exported(tmp_path, HALF)
    path = tmp_path / "mine_encoder" / "config.pbtxt"
    path.write_text(path.read_text().replace("max_batch_size: 32", "max_batch_size: 64"))
    found = keys(exported(tmp_path, HALF, 11)["mine_encoder"])
    assert found["trt_profile_min_shapes"] == "pixels:1x224x224x3,status:1x1"
    assert found["trt_profile_opt_shapes"] == found["trt_profile_max_shapes"] == "pixels:64x224x224x3,status:64x1"


def test_engines_of_other_weights_precision_or_batch_have_another_name(tmp_path: Path) -> None:
    def prefix(passport: Passport, **options: Any) -> str:
        return keys(exported(tmp_path, passport, **options)["mine_encoder"])["trt_engine_cache_prefix"]

    first = prefix(HALF, version=10, cache="/mine")
    assert prefix(HALF) == first, "an export without --tensorrt leaves it as it is"
    changed = prefix(replace(HALF, weights_sha256="f" * 64))
    full = prefix(FULL)
    path = tmp_path / "mine_encoder" / "config.pbtxt"
    path.write_text(path.read_text().replace("max_batch_size: 32", "max_batch_size: 64"))
    assert len({first, changed, full, prefix(FULL)}) == 4
    left = keys(exported(tmp_path, FULL)["mine_encoder"])
    assert (left["precision_mode"], left["trt_engine_cache_path"]) == ("FP32", "/mine")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--tensorrt", "--precision=int8"), "TensorRT does not take an int8 export"),
        (("--tensorrt", "--repository=triton_models"), "belongs to this checkout"),
        (("--tensorrt-cache=/c",), "--tensorrt-cache needs --tensorrt"),
    ],
)
def test_what_tensorrt_cannot_have_is_misuse(
    options: tuple[str, ...], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Run
) -> None:
    (tmp_path / ".git").mkdir()
    monkeypatch.chdir(tmp_path)
    assert says in run(main, "--pretrained=random", *options, code=2).err
    assert not (tmp_path / "triton_models").exists()
