"""What an export writes beside the model, whose settings stay, and where the repository is if a command names none."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2

from preprocess_ensemble import contract
from preprocess_ensemble.errors import ReportedError
from preprocess_ensemble.model_repository.config import installed_passport, pending_files
from preprocess_ensemble.model_repository.location import HERE, default_repository, repository_to_fill, user_repository
from tests.fixtures.models.configurations import DEFAULT, configs
from tests.fixtures.models.passports import PASSPORT

if TYPE_CHECKING:
    from preprocess_ensemble.model_repository.passport import Passport


LARGER = replace(DEFAULT, preprocess={"size": [256, 320]}, dimension=1024)


def lay_out(repository: Path, passport: Passport) -> set[str]:
    pending = pending_files(repository, passport)
    for path, text in pending.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return {str(path.relative_to(repository)) for path in pending}


def parse(repository: Path, name: str) -> Any:
    return text_format.Parse((repository / name / "config.pbtxt").read_text(), model_config_pb2.ModelConfig())


def test_an_empty_directory_gets_a_whole_repository_once(tmp_path: Path) -> None:
    assert lay_out(tmp_path, DEFAULT) == {
        "clip_encoder/config.pbtxt",
        "clip_image/1/.gitkeep",
        "clip_image/config.pbtxt",
        "clip_preprocess/1/model.py",
        "clip_preprocess/config.pbtxt",
    }
    for name, config in configs().items():
        assert parse(tmp_path, name) == config
    assert lay_out(tmp_path, DEFAULT) == set()


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
    lay_out(tmp_path, replace(DEFAULT, precision="fp16"))
    assert parse(tmp_path, "clip_encoder").optimization.graph.level == 1
    lay_out(tmp_path, DEFAULT)
    assert parse(tmp_path, "clip_encoder") == configs()["clip_encoder"]
    path = tmp_path / "clip_encoder" / "config.pbtxt"
    path.write_text(path.read_text() + "optimization { graph { level: -1 } }\n")
    for precision in ("fp16", "fp32"):
        lay_out(tmp_path, replace(DEFAULT, precision=precision))
        assert parse(tmp_path, "clip_encoder").optimization.graph.level == -1


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
    monkeypatch.delenv("CLIP_MODEL", raising=False)


def export_into(repository: Path) -> None:
    (repository / contract.ENCODER / "1").mkdir(parents=True)
    (repository / contract.ENCODER / "1" / "model.json").write_text("{}")


def test_a_folder_that_is_there_comes_before_the_users() -> None:
    assert default_repository() == repository_to_fill() == user_repository()
    HERE.mkdir()
    assert default_repository() == repository_to_fill() == HERE
    export_into(user_repository())
    assert default_repository() == user_repository()
    assert repository_to_fill() == HERE
    export_into(HERE)
    assert default_repository() == HERE


def test_the_environment_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    export_into(HERE)
    monkeypatch.setenv("CLIP_MODEL", "elsewhere")
    assert default_repository() == repository_to_fill() == Path("elsewhere")
