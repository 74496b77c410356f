"""Every option of an accelerator for GPUs, set as an operator would and read back from the open session.

On a machine with an NVIDIA card, install onnxruntime-gpu in place of onnxruntime and run this file.
"""

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import onnxruntime
import pytest
from google.protobuf import text_format

from benchmarks.fixtures.server import serving
from clip_client import SyncClipClient
from clip_client.serving.tensorrt import check_tensorrt, usable_gpus
from preprocess_ensemble.backends.onnxruntime.session import open_planned_session
from preprocess_ensemble.backends.onnxruntime.session_plan import plan_session
from preprocess_ensemble.contract import DEFAULT_NAMES
from preprocess_ensemble.errors import ReportedError
from preprocess_ensemble.export.atomic_install import write
from preprocess_ensemble.model_repository.config import pending_files, read_config
from preprocess_ensemble.model_repository.tensorrt import Tensorrt
from preprocess_ensemble.tritonserver.installation import find_triton
from tests.fixtures.models import tiny_onnx
from tests.fixtures.models.exports import installed

PROVIDERS: Final = {"cuda": "CUDAExecutionProvider", "tensorrt": "TensorrtExecutionProvider"}
_SHAPES: Final = {f"trt_profile_{end}_shapes": f"x:{rows}x4" for end, rows in (("min", 1), ("opt", 4), ("max", 8))}
_CACHE: Final = {"trt_engine_cache_path": "CACHE", **_SHAPES}
_TUNED: Final = {"trt_builder_optimization_level": "2"}
OPTIONS: Final[tuple[tuple[str, Mapping[str, str], Mapping[str, str], Mapping[str, str]], ...]] = (
    # device, parameters of the accelerator, parameters of the model, what ONNX Runtime must report
    ("cuda", {}, {}, {"device_id": "0"}),
    ("cuda", {"use_tf32": "1"}, {}, {"use_tf32": "1"}),
    ("cuda", {"use_tf32": "0"}, {}, {"use_tf32": "0"}),
    ("cuda", {"enable_cuda_graph": "1"}, {}, {"enable_cuda_graph": "1"}),
    ("cuda", {}, {"gpu_mem_limit": str(2**25)}, {"gpu_mem_limit": str(2**25)}),
    ("cuda", {}, {"arena_extend_strategy": "0"}, {"arena_extend_strategy": "kNextPowerOfTwo"}),
    ("cuda", {}, {"arena_extend_strategy": "1"}, {"arena_extend_strategy": "kSameAsRequested"}),
    ("cuda", {}, {"cudnn_conv_algo_search": "0"}, {"cudnn_conv_algo_search": "EXHAUSTIVE"}),
    ("cuda", {}, {"cudnn_conv_algo_search": "1"}, {"cudnn_conv_algo_search": "HEURISTIC"}),
    ("cuda", {}, {"cudnn_conv_algo_search": "2"}, {"cudnn_conv_algo_search": "DEFAULT"}),
    ("cuda", {}, {"do_copy_in_default_stream": "0"}, {"do_copy_in_default_stream": "0"}),
    ("tensorrt", {"precision_mode": "FP16"}, {}, {"device_id": "0", "trt_fp16_enable": "1"}),
    ("tensorrt", {"max_workspace_size_bytes": str(2**30)}, {}, {"trt_max_workspace_size": str(2**30)}),
    ("tensorrt", {"trt_engine_cache_enable": "true", **_CACHE}, {}, {"trt_engine_cache_enable": "1", **_CACHE}),
    ("tensorrt", {"trt_timing_cache_enable": "true", **_TUNED}, {}, {"trt_timing_cache_enable": "1", **_TUNED}),
)


def skip_without(device: str) -> None:
    if PROVIDERS[device] not in onnxruntime.get_available_providers():
        pytest.skip(f"this ONNX Runtime has no {PROVIDERS[device]}")
    if device == "tensorrt":
        try:
            check_tensorrt(find_triton())
        except ReportedError as missing:
            pytest.skip(str(missing))
    if not usable_gpus():
        pytest.skip("the driver shows no NVIDIA GPU")


@pytest.mark.parametrize(("device", "keys", "parameters", "reported"), OPTIONS)
def test_an_option_arrives(
    device: str, keys: Mapping[str, str], parameters: Mapping[str, str], reported: Mapping[str, str], tmp_path: Path
) -> None:
    skip_without(device)

    def here(options: Mapping[str, str]) -> dict[str, str]:
        return {key: text.replace("CACHE", str(tmp_path)) for key, text in options.items()}

    gpu = tiny_onnx.accelerators("gpu", device, **here(keys))
    config = {"max_batch_size": 1, **tiny_onnx.parameters(**parameters), **gpu}
    tiny_onnx.affine(tmp_path / "model.onnx")
    session = open_planned_session(tmp_path / "model.onnx", plan_session(config, kind="GPU", device_id=0))
    options = session.get_provider_options()[PROVIDERS[device]]
    assert {key: options.get(key, "not listed") for key in reported} == here(reported)


def test_the_log_of_a_server_on_a_card_names_what_cuda_was_told(tiny_repository: Path, tmp_path: Path) -> None:
    skip_without("cuda")
    copy = shutil.copytree(tiny_repository, tmp_path / "models")
    config = read_config(copy / DEFAULT_NAMES.encoder / "config.pbtxt")
    config.instance_group[0].kind = 1  # KIND_GPU
    accelerator = config.optimization.execution_accelerators.gpu_execution_accelerator.add(name="cuda")
    accelerator.parameters.update({"use_tf32": "1", "enable_cuda_graph": "1"})
    (copy / DEFAULT_NAMES.encoder / "config.pbtxt").write_text(text_format.MessageToString(config))
    log = tmp_path / "log"
    with serving(copy, "--log-file", str(log)):
        (line,) = (line for line in log.read_text().splitlines() if "CUDAExecutionProvider: " in line)
    assert {"device_id=0", "use_tf32=1", "enable_cuda_graph=1"} <= set(line.rpartition(": ")[2].split(", "))


def test_clip_serve_on_tensorrt_has_one_engine_for_every_batch(tiny_repository: Path, tmp_path: Path) -> None:
    skip_without("tensorrt")
    copy = shutil.copytree(tiny_repository, tmp_path / "models")
    # onnxruntime-gpu is built for TensorRT 10.
    write(pending_files(copy, installed(copy), tensorrt=Tensorrt(version=10, cache=tmp_path)))
    for _ in range(2):
        with serving(copy) as server, SyncClipClient(server.grpc_url) as clip:
            assert clip.health().ok
        engines = [path.name for path in tmp_path.rglob("*.engine")]
        assert engines, "the cache is used"
        assert len(engines) == len({name.split("_sm")[0] for name in engines})
