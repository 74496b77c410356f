"""The tracked model repository against the code on both of its sides. Live tests load it in the server."""

from pathlib import Path
from typing import Any

import pytest
from tritonclient.grpc import model_config_pb2

from preprocess_ensemble import contract
from preprocess_ensemble.backends.preprocess_settings import PreprocessSettings
from preprocess_ensemble.model_repository import config as repository
from tests.fixtures.models.passports import DEFAULT
from tests.paths import ROOT

TRITON_MODELS = ROOT / "triton_models"

# (tensor, type, dims) as in the wire contract; None is the model's own dimension.
IMAGE = (contract.IMAGE, "TYPE_STRING", [1])
STATUS = (contract.STATUS, "TYPE_INT32", [1])
ERROR = (contract.ERROR, "TYPE_STRING", [1])
MODEL = (contract.PASSPORT, "TYPE_STRING", [1])
FINGERPRINT = (contract.FINGERPRINT, "TYPE_INT32", [2])
EMBEDDING = (contract.EMBEDDING, "TYPE_FP32", [512])
PIXELS = ("pixels", "TYPE_UINT8", [224, 224, 3])


def parse(name: str) -> Any:
    return repository.read_config(TRITON_MODELS / name / "config.pbtxt")


def signature(tensors: Any) -> list[tuple[str, str, list[int]]]:
    return [(tensor.name, model_config_pb2.DataType.Name(tensor.data_type), list(tensor.dims)) for tensor in tensors]


TENSORS: dict[str, tuple[list[Any], list[Any]]] = {
    contract.DEFAULT_NAMES.image: ([IMAGE], [EMBEDDING, STATUS, ERROR, FINGERPRINT]),
    contract.DEFAULT_NAMES.preprocess: ([IMAGE], [PIXELS, STATUS, ERROR, MODEL]),
    contract.DEFAULT_NAMES.encoder: ([PIXELS, STATUS], [EMBEDDING, FINGERPRINT]),
}


def test_models_and_tensors_are_those_of_the_wire_contract() -> None:
    configs = {path.parent.name: parse(path.parent.name) for path in TRITON_MODELS.glob("*/config.pbtxt")}
    assert {name: config.name for name, config in configs.items()} == {name: name for name in TENSORS}
    assert {name: (signature(one.input), signature(one.output)) for name, one in configs.items()} == TENSORS


def test_tracked_files_are_what_an_export_of_the_default_model_writes(tmp_path: Path) -> None:
    for path, text in repository.pending_files(tmp_path, DEFAULT).items():
        assert (TRITON_MODELS / path.relative_to(tmp_path)).read_text() == text
    assert repository.pending_files(TRITON_MODELS, DEFAULT) == {}


def test_the_tracked_parameters_are_the_defaults() -> None:
    parameters = {
        name: value.string_value for name, value in parse(contract.DEFAULT_NAMES.preprocess).parameters.items()
    }
    settings = PreprocessSettings.from_parameters(parameters, instances=1)
    assert settings == PreprocessSettings.from_parameters({"passport": "../clip_encoder/1/model.json"}, instances=1)
    assert len(parameters) == 10, "each has a line that an operator can change"


def test_the_warm_up_covers_every_input_and_the_largest_batch() -> None:
    encoder = parse(contract.DEFAULT_NAMES.encoder)
    assert {warmup.batch_size for warmup in encoder.model_warmup} == {1, encoder.max_batch_size}
    for warmup in encoder.model_warmup:
        assert [
            (name, model_config_pb2.DataType.Name(tensor.data_type), list(tensor.dims))
            for name, tensor in sorted(warmup.inputs.items())
        ] == signature(encoder.input)


@pytest.mark.parametrize("name", [contract.DEFAULT_NAMES.preprocess, contract.DEFAULT_NAMES.encoder])
def test_no_queue_policy_and_one_instance(name: str) -> None:
    config = parse(name)
    assert config.HasField("dynamic_batching")
    assert not config.dynamic_batching.HasField("default_queue_policy")
    assert [group.count for group in config.instance_group] == [1]
