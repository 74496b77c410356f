"""``python -m benchmarks gpu`` and its kit: files and processes. A live test runs the experiments."""

import importlib
import os
import subprocess
import sys
from math import nan
from pathlib import Path

import onnxruntime
import pytest

from benchmarks.__main__ import MODULES
from benchmarks.fixtures.server_setting import ServerSetting
from benchmarks.gpu import command, run
from benchmarks.gpu.in_process import verdict
from benchmarks.gpu.kit import copy_tree, write_parts
from clip_client.serving.tensorrt import usable_gpus
from preprocess_ensemble.contract import DEFAULT_NAMES
from tests.fixtures.models.passports import configs
from tests.paths import ROOT


def test_every_option_of_a_run_is_one_of_the_experiment(capsys: pytest.CaptureFixture[str]) -> None:
    """Otherwise a wrong option would be found only on the machine with the card."""
    words = {"photos": "p", "exports": "e", "many": 2, "loads": 1}
    for name, one in command.RUNS.items():
        experiment, *options = one.command.format(**words).split()
        with pytest.raises(SystemExit):
            importlib.import_module(f"benchmarks.{MODULES[experiment]}").measure([*options, "--no-such-option"])
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
    copy_tree(tmp_path)
    assert (tmp_path / "COMMIT").read_text().strip()
    assert not (tmp_path / "benchmarks" / "results").exists()
    asked = subprocess.run(
        [sys.executable, "-m", "benchmarks", "gpu"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert asked.returncode == 1
    assert asked.stderr == "benchmarks gpu: the driver shows no NVIDIA GPU (does nvidia-smi?)\n"
    environment = run.environment_with([], tmp_path)
    with pytest.raises(run.RunError, match="The kit has no onnxruntime-gpu"):
        run.check_cuda(tmp_path, environment)
    provider = tmp_path / run.PROVIDER
    provider.parent.mkdir(parents=True)
    provider.touch()
    with pytest.raises(run.RunError, match=r"shows no NVIDIA GPU here.*--device cpu"):
        run.check_cuda(tmp_path, environment)


def test_missing_libraries_of_a_cuda_provider_are_named() -> None:
    (library,) = (Path(onnxruntime.__file__).parent / "capi").glob("onnxruntime_pybind11_state*.so")
    opened_later = ("libm.so.6", "libnosuch.so.9")
    assert run.missing_libraries(library, run.environment_with([], Path()), opened_later) == ["libnosuch.so.9"]


@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_a_setting_is_written_as_an_operator_would_write_it(device: str) -> None:
    setting = ServerSetting(device=device, tf32=True, graphs=True, max_batch_size=16, encoders=2, delay_us=500)
    assert setting.name == "tf32, graphs, batch 16, 2 x encoder, delay 500 us"
    config = configs()[DEFAULT_NAMES.encoder]
    setting.change_encoder(config)
    assert (config.instance_group[0].count, config.instance_group[0].kind) == (2, 1 if device == "cuda" else 2)
    assert config.dynamic_batching.max_queue_delay_microseconds == 500
    assert [warmup.batch_size for warmup in config.model_warmup] == [1, 16]
    accelerators = config.optimization.execution_accelerators.gpu_execution_accelerator
    if device == "cuda":
        assert dict(accelerators[0].parameters) == {"use_tf32": "1", "enable_cuda_graph": "1"}
    else:
        assert not accelerators


@pytest.mark.parametrize(
    ("least", "healthy", "valid"),
    [(0.9999, True, True), (0.9998, True, False), (nan, True, False), (1.0, False, False)],
)
def test_rates_count_only_with_the_right_vectors(least: float, healthy: bool, valid: bool) -> None:
    compared = {"cosine": {"1": 1.0, "2": least}}
    assert verdict({"vectors": compared, "load": {"rate": 1.0}, "health": {"ok": healthy}})["valid"] is valid


def test_parts_are_joined_once_and_only_if_each_arrived_whole(tmp_path: Path) -> None:
    content, kit = tmp_path / "content", tmp_path / "kit"
    content.mkdir()
    noise = os.urandom(102_500)  # in more than 99 parts, whose names are not in their order
    (content / "file").write_bytes(noise)
    first, *_, last = parts = write_parts(content, kit, 1000)
    assert [part.name for part in parts] == [f"part-{number:02}" for number in range(1, len(parts) + 1)]
    assert len(parts) > 99
    (kit / "part-99x").write_bytes(b"of an older kit")
    assert max(part.stat().st_size for part in parts) == 1000
    whole = last.read_bytes()
    for damage in (lambda: last.write_bytes(whole[:-1]), lambda: last.unlink()):
        damage()
        with pytest.raises(run.RunError, match="missing or damaged"):
            run.unpack(kit, tmp_path / "unpacked")
    last.write_bytes(whole)
    run.unpack(kit, tmp_path / "unpacked")
    first.unlink()
    run.unpack(kit, tmp_path / "unpacked")
    assert (tmp_path / "unpacked" / "file").read_bytes() == noise
