"""Messages about repositories that need a GPU or TensorRT that is missing."""

from pathlib import Path

import pytest

from clip_client.serving import tensorrt
from clip_client.serving.config import ServeConfig
from clip_client.serving.tensorrt import check_gpu, check_tensorrt
from preprocess_ensemble.errors import ReportedError
from preprocess_ensemble.export.atomic_install import write
from preprocess_ensemble.model_repository.config import pending_files
from preprocess_ensemble.model_repository.tensorrt import Tensorrt
from preprocess_ensemble.tritonserver.installation import Triton
from tests.fixtures.models.passports import PASSPORT

TRITON = Triton(version="2.51.0", origin="pip", server=Path("/server"), libraries=None, stub=Path("/server/stub"))


def test_a_repository_for_a_gpu_needs_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensorrt, "usable_gpus", lambda: 0)
    repository, cache = tmp_path / "models", tmp_path / "engines" / "here"
    write(pending_files(repository, PASSPORT))
    check_gpu(ServeConfig(repository=repository), TRITON)
    write(pending_files(repository, PASSPORT, tensorrt=Tensorrt(version=11, cache=cache)))
    with pytest.raises(ReportedError, match=r"clip_encoder/config\.pbtxt needs an NVIDIA GPU.*--gpus all"):
        check_gpu(ServeConfig(repository=repository), TRITON)
    monkeypatch.setattr(tensorrt, "usable_gpus", lambda: 1)
    monkeypatch.setattr(tensorrt, "_provider", lambda _: tmp_path / "none.so")
    with pytest.raises(ReportedError, match="no TensorRT provider"):
        check_gpu(ServeConfig(repository=repository), TRITON)
    monkeypatch.setattr(tensorrt, "check_tensorrt", lambda _: None)
    check_gpu(ServeConfig(repository=repository), TRITON)
    assert cache.is_dir(), "ONNX Runtime would make only the last folder"


@pytest.mark.parametrize(
    ("provider", "sentence"),
    [
        (None, r"no TensorRT provider.*pip install onnxruntime-gpu.*exported without --tensorrt"),
        (b"\0libnvinfer.so.10\0", r"needs libnvinfer.so.10, .*pip install 'tensorrt-cu13==10\.\*'"),
    ],
)
def test_what_is_missing_is_named_with_its_remedy(
    provider: bytes | None, sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = tmp_path / "libonnxruntime_providers_tensorrt.so"
    if provider is not None:
        library.write_bytes(provider)
    monkeypatch.setattr(tensorrt, "_provider", lambda _: library)
    monkeypatch.setattr(tensorrt, "_loads", lambda name, _: name != "libnvinfer.so.10")
    with pytest.raises(ReportedError, match=sentence):
        check_tensorrt(TRITON)
    library.write_bytes(b"\0libnvinfer.so.11\0")
    check_tensorrt(TRITON)
