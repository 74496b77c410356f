import json
import socket
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from clip_client.cli.commands import doctor_checks
from clip_client.cli.commands.doctor_checks import CLIENT, SERVER, Check, Level, check_machine, table_lines
from clip_client.cli.main import main
from preprocess_ensemble.errors import pip_install
from preprocess_ensemble.runtimes import processor
from tests.fixtures.commands import Run
from tests.fixtures.packaging.unpacked_triton import lay_out_triton


def machine(*, server_answers: bool = False) -> dict[str, Check]:
    return {check.name: check for check in check_machine(server_answers=server_answers)}


@pytest.fixture
def unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder as ``/opt/tritonserver`` of NVIDIA's image, version 2.58, which ``CLIP_TRITON`` names."""
    folder = lay_out_triton(tmp_path / "tritonserver", "2.58.0")
    monkeypatch.setenv("CLIP_TRITON", str(folder))
    return folder


def cpu_info(folder: Path, vendor: str, flags: str) -> Path:
    file = folder / "cpuinfo"
    file.write_text(f"processor\t: 0\nvendor_id\t: {vendor}\nflags\t\t: {flags}\n")
    return file


def test_without_a_server_it_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Run) -> None:
    monkeypatch.chdir(tmp_path)
    with socket.socket() as closed:  # holds the port, so that no other program takes it, and refuses every connection
        closed.bind(("127.0.0.1", 0))
        url = f"127.0.0.1:{closed.getsockname()[1]}"
        report: dict[str, Any] = json.loads(run(main, "doctor", "--url", url, "--json", "-", code=1).out)
    found = {check["name"]: check for check in report["findings"]}
    assert report["ok"] is False
    assert found["health"]["level"] == "problem"
    assert url in found["health"]["remedy"]
    assert "clip-export" in found["model repository"]["remedy"]
    assert found["numpy"]["level"] == "ok"


@pytest.mark.parametrize(
    ("absent", "level", "remedy"),
    [
        ("grpcio", Level.PROBLEM, "install it with: pip install . in a clone"),
        ("pyarrow", Level.HINT, "pip install '.[cli]' in a clone"),
        ("faiss-cpu", Level.HINT, pip_install("dedup")),
        ("onnxruntime onnxruntime-gpu onnxruntime-openvino", Level.HINT, "pip install '.[local]' in a clone"),
        ("openvino", Level.HINT, "pip install '.[local]' in a clone"),
    ],
)
def test_missing_packages_are_named_with_the_remedy(
    absent: str, level: Level, remedy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    version = metadata.version

    def find(name: str) -> str:
        if name in absent.split():
            raise metadata.PackageNotFoundError(name)
        return version(name)

    monkeypatch.setattr(metadata, "version", find)
    monkeypatch.setattr(processor, "_CPU_INFO", cpu_info(tmp_path, "AuthenticAMD", "avx512_bf16"))
    found = machine()[absent.split()[0]]
    assert (found.level, remedy in found.remedy) == (level, True)


@pytest.mark.parametrize(
    ("vendor", "flags", "says", "names_openvino"),
    [
        ("AuthenticAMD", "avx2", "ONNX Runtime fp32 for images, ", False),
        ("GenuineIntel", "avx512_bf16", "OpenVINO fp32 for images, OpenVINO fp32 for texts, as measured", True),
        ("GenuineIntel", "avx2", "; python -m benchmarks runtimes, in a clone of the source, measures it", False),
    ],
)
def test_the_row_that_counts_for_this_processor_is_named(
    vendor: str, flags: str, says: str, names_openvino: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processor, "_CPU_INFO", cpu_info(tmp_path, vendor, flags))
    found = machine()
    assert says in found["precision auto"].value
    assert ("openvino" in found, found["CPU"].value.endswith(", with bf16")) == (names_openvino, "bf16" in flags)


def test_the_tritonserver_of_this_machine_is_named(unpacked: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = machine()
    assert found["tritonserver"].value == f"2.58.0, NVIDIA's, in {unpacked} (CLIP_TRITON)"
    assert "a classification of a text output ends the server" in found["known holes"].value
    assert "known holes" not in machine(server_answers=True), "that server's holes count, and are named beside it"
    (unpacked / "TRITON_VERSION").write_text("2.75.0\n")
    assert "classification" not in machine()["known holes"].value
    monkeypatch.setenv("CLIP_TRITON", str(unpacked / "bin"))
    found = machine()
    assert found["tritonserver"].level is Level.HINT
    assert "is not an unpacked /opt/tritonserver" in found["tritonserver"].remedy


def test_a_gpu_needs_its_libraries(unpacked: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    needs = {"libonnxruntime_providers_cuda.so": ["libcublas.so.13"]}
    monkeypatch.setattr(doctor_checks, "missing_libraries", lambda _, files: needs[files[0].name])
    monkeypatch.setattr(doctor_checks, "_NVIDIA_DEVICE", tmp_path / "absent")
    assert machine()["tritonserver"].level is Level.OK
    monkeypatch.setattr(doctor_checks, "_NVIDIA_DEVICE", tmp_path)
    remedy = f"the GPU needs libcublas.so.13: copy them from the image into {unpacked}/lib"
    assert machine()["tritonserver"].remedy == remedy


def test_a_model_that_waits_for_its_server_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    model = tmp_path / "triton_models" / "clip_encoder" / "1" / "model.json"
    model.parent.mkdir(parents=True)
    assert machine()["model repository"].value == "no model in triton_models"
    model.touch()
    assert machine()["model repository"].remedy == "start it with: clip-serve"
    assert "model repository" not in machine(server_answers=True)


def test_small_shared_memory_is_a_hint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor_checks, "_SHARED_MEMORY", tmp_path)
    for needed, level in ((2**62, Level.HINT), (0, Level.OK)):
        monkeypatch.setattr(doctor_checks, "_SHARED_MEMORY_BYTES", needed)
        assert machine()[str(tmp_path)].level is level
    monkeypatch.setattr(doctor_checks, "_SHARED_MEMORY", tmp_path / "absent")
    assert str(tmp_path / "absent") not in machine()


def test_ports_in_use_matter_if_no_server_answers() -> None:
    with socket.socket() as other:
        with suppress(OSError):  # another program has the port already
            other.bind(("127.0.0.1", 8001))
        assert "8001 (gRPC)" in machine()["ports"].value
        assert machine()["ports"].level is Level.HINT
        assert machine(server_answers=True)["ports"].level is Level.OK


def test_the_table_fits_the_terminal() -> None:
    checks = [Check(SERVER, "health", "failed", Level.PROBLEM, "do this " * 20), Check(CLIENT, "CPU", "2 cores")]
    plain = list(table_lines(checks, width=60, colour=False))
    assert all(len(line) <= 60 for text in plain for line in text.splitlines())
    assert plain[1] == "! health  failed"
    assert "  CPU     2 cores" in plain
    assert plain[-1] == "! 1 problem to fix before photos can be embedded"
    assert "\x1b" not in "".join(plain)
    assert "\x1b" in "".join(table_lines(checks, width=60, colour=True))
