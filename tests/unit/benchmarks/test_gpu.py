"""``python -m benchmarks gpu`` and its offline bundle: files and processes. A live test runs the experiments."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import onnxruntime
import pytest

from benchmarks.experiments.serving import ensemble
from benchmarks.fixtures.server_setting import ServerSetting
from benchmarks.gpu import command, run
from benchmarks.gpu.offline_bundle import copy_tree, requirements, write_checksums
from preprocess_ensemble.contract import ENCODER
from preprocess_ensemble.serving.tensorrt import usable_gpus
from tests.fixtures.models.configurations import configs
from tests.paths import ROOT


def test_every_option_of_a_run_is_one_of_the_experiment(capsys: pytest.CaptureFixture[str]) -> None:
    """Otherwise a wrong option would be found only on the machine with the card."""
    for name, one in command.RUNS.items():
        words = one.options.format(photos="p", output="o", many=2, loads=1).split()
        with pytest.raises(SystemExit):
            ensemble.measure([*words, "--no-such-option"])
        assert capsys.readouterr().err.endswith(": error: unrecognized arguments: --no-such-option\n"), name
    assert sum(one.limit_s for one in command.RUNS.values()) <= 25 * 60


def test_a_run_is_cut_at_its_limit_and_nothing_that_it_started_outlives_it(tmp_path: Path) -> None:
    """Not even a process with its own session, like tritonserver, whose parent was killed."""
    stub = "import time; time.sleep(600)"
    server = (
        f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {stub!r}], start_new_session=True).wait()"
    )
    script = f"""
import ctypes, psutil, sys
from pathlib import Path
from benchmarks.gpu import command
command.TERMINATE_S = 1.0
ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)
log = Path({str(tmp_path / "log")!r})
print(command.execute([sys.executable, "-c", {server!r}], 2.0, log))
print(len(psutil.Process().children(recursive=True)))
print(command.execute([sys.executable, "-c", "print(1)"], 60, log))
print(command.execute([sys.executable, "-c", "raise SystemExit('the reason')"], 60, log))
"""
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=ROOT)
    cut = "cut after 2 s; the same command continues it"
    assert ran.stdout.splitlines() == [cut, "0", "None", "exit code 1: the reason"]


@pytest.mark.skipif(usable_gpus() > 0, reason="there is a GPU")
def test_without_a_gpu_one_sentence_says_so(tmp_path: Path) -> None:
    assert command.unusable("single", "cuda") == "the driver shows no NVIDIA GPU (does nvidia-smi?)"
    provider = tmp_path / run.PROVIDER
    with pytest.raises(run.RunError, match="The bundle has no onnxruntime-gpu"):
        run.check_cuda(sys.executable, tmp_path, run.environment_with([]))
    provider.parent.mkdir(parents=True)
    provider.touch()
    with pytest.raises(run.RunError, match=r"shows no NVIDIA GPU here.*--device cpu"):
        run.check_cuda(sys.executable, tmp_path, run.environment_with([]))


def test_missing_libraries_of_a_cuda_provider_are_named() -> None:
    (library,) = (Path(onnxruntime.__file__).parent / "capi").glob("onnxruntime_pybind11_state*.so")
    opened_later = ("libm.so.6", "libnosuch.so.9")
    assert run.missing_libraries(library, run.environment_with([]), opened_later) == ["libnosuch.so.9"]


@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_a_setting_is_written_as_an_operator_would_write_it(device: str) -> None:
    setting = ServerSetting(device=device, tf32=True, graphs=True, max_batch_size=16, encoders=2, delay_us=500)
    assert setting.name == "tf32, graphs, batch 16, 2 x encoder, delay 500 us"
    config = configs()[ENCODER]
    setting.change_encoder(config)
    assert (config.instance_group[0].count, config.instance_group[0].kind) == (2, 1 if device == "cuda" else 2)
    assert config.dynamic_batching.max_queue_delay_microseconds == 500
    assert [warmup.batch_size for warmup in config.model_warmup] == [1, 16]
    accelerators = config.optimization.execution_accelerators.gpu_execution_accelerator
    if device == "cuda":
        assert dict(accelerators[0].parameters) == {"use_tf32": "1", "enable_cuda_graph": "1"}
    else:
        assert not accelerators
        assert config.parameters["batch_buckets"].string_value == "1,2,4,8,16"


def test_a_bundle_that_did_not_arrive_whole_is_refused(tmp_path: Path) -> None:
    (tmp_path / "wheels").mkdir()
    file = tmp_path / "wheels" / "onnxruntime_gpu-1.31.1-cp39-cp39-manylinux.whl"
    file.write_bytes(b"wheel")
    assert write_checksums(tmp_path) == 5
    run.check_files(tmp_path)
    file.write_bytes(b"whale")
    with pytest.raises(run.RunError, match="missing or damaged"):
        run.check_files(tmp_path)
    file.unlink()
    with pytest.raises(run.RunError, match="missing or damaged"):
        run.check_files(tmp_path)


def test_the_tree_of_a_bundle_runs_in_place(tmp_path: Path) -> None:
    copy_tree(tmp_path)
    assert (tmp_path / "COMMIT").read_text().strip()
    assert not (tmp_path / "benchmarks" / "results").exists()
    asked = [sys.executable, "-m", "benchmarks", "gpu", "--exports", str(tmp_path / "none")]
    done = subprocess.run(asked, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "there is no exported model" in done.stderr


def test_a_bundle_brings_what_the_package_and_its_server_require() -> None:
    names = [one.partition(">")[0] for one in requirements()]
    assert {"anyio", "grpcio", "tritonclient[grpc]", "psutil", "nvidia-ml-py", "rich"} <= set(names)
    assert not {"nvidia-pytriton", "PyTurboJPEG"} & set(names), "these come without their dependencies"
    assert "numpy>=1.26,<2" in requirements()
    assert all(re.match(r"[A-Za-z][\w.\[\]-]*([<>=]|$)", one) for one in requirements()), requirements()
