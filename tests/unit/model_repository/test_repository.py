"""The files beside an exported model and those that are tracked, the settings that stay, and the default repository."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2

from preprocess_ensemble import contract
from preprocess_ensemble.backends.preprocess_settings import PreprocessSettings
from preprocess_ensemble.errors import ReportedError
from preprocess_ensemble.export.atomic_install import write
from preprocess_ensemble.model_repository.config import installed_passport, pending_files, read_config
from preprocess_ensemble.model_repository.location import (
    HERE,
    MisnamedModel,
    default_repository,
    model_to_export,
    repository_to_fill,
    user_repository,
)
from preprocess_ensemble.model_repository.passport import Passport
from tests.fixtures.models.passports import DEFAULT, PASSPORT, WITH_TEXT, configs
from tests.paths import ROOT

TRITON_MODELS = ROOT / "triton_models"
LARGER = replace(DEFAULT, preprocess={"size": [256, 320]}, dimension=1024)


def lay_out(repository: Path, passport: Passport) -> set[str]:
    pending = pending_files(repository, passport)
    write(pending)
    return {str(path.relative_to(repository)) for path in pending}


def parse(repository: Path, name: str) -> Any:
    return read_config(repository / name / "config.pbtxt")


def test_an_empty_directory_gets_what_is_tracked_once(tmp_path: Path) -> None:
    written = lay_out(tmp_path, DEFAULT)
    assert written == {
        "clip_encoder/config.pbtxt",
        "clip_image/1/.gitkeep",
        "clip_image/config.pbtxt",
        "clip_preprocess/1/model.py",
        "clip_preprocess/config.pbtxt",
    }
    for name in written:
        assert (tmp_path / name).read_text() == (TRITON_MODELS / name).read_text()
    for name, config in configs().items():
        assert parse(tmp_path, name) == config
    assert lay_out(tmp_path, DEFAULT) == set()
    assert pending_files(TRITON_MODELS, DEFAULT) == {}


def test_another_model_changes_shapes_and_nothing_else(tmp_path: Path) -> None:
    lay_out(tmp_path, DEFAULT)
    assert lay_out(tmp_path, LARGER) == {f"{name}/config.pbtxt" for name in configs(LARGER)}
    for name, config in configs(LARGER).items():
        assert parse(tmp_path, name) == config
    encoder = parse(tmp_path, "clip_encoder")
    assert [list(tensor.dims) for tensor in encoder.input] == [[256, 320, 3], [1]]
    assert [list(warmup.inputs["pixels"].dims) for warmup in encoder.model_warmup] == [[256, 320, 3]] * 2


def test_an_operators_settings_and_comment_outlive_another_model(tmp_path: Path) -> None:
    lay_out(tmp_path, DEFAULT)
    path = tmp_path / "clip_encoder" / "config.pbtxt"
    mine = parse(tmp_path, "clip_encoder")
    mine.max_batch_size = 128
    mine.parameters["intra_op_thread_count"].string_value = "6"
    text = f"# Tuned for the L40S.\n\n{text_format.MessageToString(mine)}"
    path.write_text(text)
    assert lay_out(tmp_path, DEFAULT) == set()
    assert path.read_text() == text

    lay_out(tmp_path, LARGER)
    assert path.read_text().startswith("# Tuned for the L40S.\n")
    changed = parse(tmp_path, "clip_encoder")
    assert list(changed.output[0].dims) == [1024]
    assert changed.max_batch_size == 128
    assert changed.parameters["intra_op_thread_count"].string_value == "6"


def test_the_graph_level_of_an_fp16_model_goes_with_it_and_an_operators_stays(tmp_path: Path) -> None:
    lay_out(tmp_path, replace(DEFAULT, weights_dtype="fp16"))
    assert parse(tmp_path, "clip_encoder").optimization.graph.level == 1
    lay_out(tmp_path, DEFAULT)
    assert parse(tmp_path, "clip_encoder") == configs()["clip_encoder"]
    path = tmp_path / "clip_encoder" / "config.pbtxt"
    path.write_text(path.read_text() + "optimization { graph { level: -1 } }\n")
    for weights_dtype in ("fp16", "fp32"):
        lay_out(tmp_path, replace(DEFAULT, weights_dtype=weights_dtype))
        assert parse(tmp_path, "clip_encoder").optimization.graph.level == -1


def test_a_text_encoder_warms_up_with_the_longest_text(tmp_path: Path) -> None:
    lay_out(tmp_path, WITH_TEXT)
    file = tmp_path / "clip_text_encoder" / "warmup" / "full-context"
    assert list(np.frombuffer(file.read_bytes(), np.int32)) == [0] * 76 + [1]
    config = parse(tmp_path, "clip_text_encoder")
    for warm_up in config.model_warmup:
        assert warm_up.inputs["tokens"].input_data_file == file.name
        warm_up.inputs["tokens"].zero_data = True
    path = tmp_path / "clip_text_encoder" / "config.pbtxt"
    path.write_text(text_format.MessageToString(config))
    file.write_bytes(b"of another model")
    assert lay_out(tmp_path, WITH_TEXT) == {str(one.relative_to(tmp_path)) for one in (path, file)}
    assert parse(tmp_path, "clip_text_encoder") == configs(WITH_TEXT)["clip_text_encoder"]


def test_a_file_that_is_no_configuration_is_named(tmp_path: Path) -> None:
    lay_out(tmp_path, DEFAULT)
    path = tmp_path / "clip_image" / "config.pbtxt"
    path.write_text("max_batch_size: many")
    with pytest.raises(ReportedError, match=r"clip_image/config\.pbtxt is not a model configuration"):
        pending_files(tmp_path, LARGER)


def test_the_installed_passport_is_that_of_a_complete_model(tmp_path: Path) -> None:
    directory = tmp_path / "clip_encoder" / "1"
    assert installed_passport(tmp_path) is None
    directory.mkdir(parents=True)
    (directory / "model.json").write_text(PASSPORT.to_json())
    assert installed_passport(tmp_path) is None, "there is no model.onnx"
    (directory / "model.onnx").touch()
    assert installed_passport(tmp_path) == PASSPORT
    (directory / "model.json").write_text(replace(PASSPORT, contract=99).to_json())
    assert installed_passport(tmp_path) is None


@pytest.fixture(autouse=True)
def in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))


def export_into(repository: Path) -> None:
    (repository / contract.DEFAULT_NAMES.encoder / "1").mkdir(parents=True)
    (repository / contract.DEFAULT_NAMES.encoder / "1" / "model.json").write_text("{}")


def test_the_environment_comes_before_a_folder_here_and_that_before_the_users(monkeypatch: pytest.MonkeyPatch) -> None:
    assert default_repository() == repository_to_fill() == user_repository()
    HERE.mkdir()
    assert default_repository() == repository_to_fill() == HERE
    export_into(user_repository())
    assert default_repository() == user_repository()
    assert repository_to_fill() == HERE
    export_into(HERE)
    assert default_repository() == HERE
    monkeypatch.setenv("CLIP_REPOSITORY", "elsewhere")
    assert default_repository() == repository_to_fill() == Path("elsewhere")


def test_a_repository_in_the_variable_of_the_model_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder := Path("ViT-B-32")).mkdir()
    monkeypatch.setenv("CLIP_MODEL", "ViT-B-32")
    assert default_repository() == user_repository(), "a folder may be called like a model"
    (folder / "clip_encoder").mkdir()
    (folder / "clip_encoder" / "config.pbtxt").touch()
    for path in ("ViT-B-32", str(tmp_path)):
        monkeypatch.setenv("CLIP_MODEL", path)
        for find in (default_repository, repository_to_fill, model_to_export):
            with pytest.raises(MisnamedModel, match=f"CLIP_MODEL is the folder {path}, .* into CLIP_REPOSITORY"):
                find()
    monkeypatch.setenv("CLIP_REPOSITORY", "elsewhere")
    assert default_repository() == Path("elsewhere")


# (tensor, type, dims) as in the wire contract; None is the model's own dimension.
IMAGE = (contract.IMAGE, "TYPE_STRING", [1])
STATUS = (contract.STATUS, "TYPE_INT32", [1])
ERROR = (contract.ERROR, "TYPE_STRING", [1])
MODEL = (contract.PASSPORT, "TYPE_STRING", [1])
FINGERPRINT = (contract.FINGERPRINT, "TYPE_INT32", [2])
EMBEDDING = (contract.EMBEDDING, "TYPE_FP32", [512])
PIXELS = ("pixels", "TYPE_UINT8", [224, 224, 3])


def signature(tensors: Any) -> list[tuple[str, str, list[int]]]:
    return [(tensor.name, model_config_pb2.DataType.Name(tensor.data_type), list(tensor.dims)) for tensor in tensors]


TENSORS: dict[str, tuple[list[Any], list[Any]]] = {
    contract.DEFAULT_NAMES.image: ([IMAGE], [EMBEDDING, STATUS, ERROR, FINGERPRINT]),
    contract.DEFAULT_NAMES.preprocess: ([IMAGE], [PIXELS, STATUS, ERROR, MODEL]),
    contract.DEFAULT_NAMES.encoder: ([PIXELS, STATUS], [EMBEDDING, FINGERPRINT]),
}


def test_models_and_tensors_are_those_of_the_wire_contract() -> None:
    configs = {
        path.parent.name: parse(TRITON_MODELS, path.parent.name) for path in TRITON_MODELS.glob("*/config.pbtxt")
    }
    assert {name: config.name for name, config in configs.items()} == {name: name for name in TENSORS}
    assert {name: (signature(one.input), signature(one.output)) for name, one in configs.items()} == TENSORS


def test_the_tracked_parameters_are_the_defaults() -> None:
    parameters = {
        name: value.string_value
        for name, value in parse(TRITON_MODELS, contract.DEFAULT_NAMES.preprocess).parameters.items()
    }
    settings = PreprocessSettings.from_parameters(parameters, instances=1)
    assert settings == PreprocessSettings.from_parameters({"passport": "../clip_encoder/1/model.json"}, instances=1)
    assert len(parameters) == 10, "each has a line that an operator can change"


def test_the_warm_up_covers_every_input_and_the_largest_batch() -> None:
    encoder = parse(TRITON_MODELS, contract.DEFAULT_NAMES.encoder)
    assert {warmup.batch_size for warmup in encoder.model_warmup} == {1, encoder.max_batch_size}
    for warmup in encoder.model_warmup:
        assert [
            (name, model_config_pb2.DataType.Name(tensor.data_type), list(tensor.dims))
            for name, tensor in sorted(warmup.inputs.items())
        ] == signature(encoder.input)


@pytest.mark.parametrize("name", [contract.DEFAULT_NAMES.preprocess, contract.DEFAULT_NAMES.encoder])
def test_no_queue_policy_and_one_instance(name: str) -> None:
    config = parse(TRITON_MODELS, name)
    assert config.HasField("dynamic_batching")
    assert not config.dynamic_batching.HasField("default_queue_policy")
    assert [group.count for group in config.instance_group] == [1]
