"""``clip-serve --triton`` with a real server in the places of NVIDIA's, whose model this package's backend runs."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.fixtures.server import QUIET, free_port, serving
from clip_client import SyncClipClient
from clip_client.cli.doctor import check_machine
from preprocess_ensemble.tritonserver import find_triton
from tests.fixtures.packaging.unpacked_triton import unpack_triton


@pytest.fixture
def unpacked(tmp_path: Path) -> Path:
    folder = tmp_path / "tritonserver"
    unpack_triton(folder)
    return folder


def test_an_unpacked_server_embeds(
    unpacked: Path, tiny_repository: Path, photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (
        serving(tiny_repository, f"--triton={unpacked}", *QUIET) as server,
        SyncClipClient(server.grpc_url) as clip,
    ):
        clip.embed([photos / "coffee.jpg"]).raise_for_errors()
        assert server.triton.exe() == str(unpacked / "bin" / "tritonserver")
        libraries = {Path(mapped.path).name for mapped in server.triton.memory_maps()}
        assert any(name.startswith("libtritonserver") for name in libraries)
    monkeypatch.setenv("CLIP_TRITON", str(unpacked))
    found = {check.name: check for check in check_machine(server_answers=False)}
    assert found["tritonserver"].value == f"2.51.0, NVIDIA's, in {unpacked} (CLIP_TRITON)"
    assert found["tritonserver"].remedy == ""


def _refused(folder: Path, repository: Path) -> str:
    ports = [f"--{name}-port={free_port()}" for name in ("grpc", "metrics")]
    command = [sys.executable, "-m", "preprocess_ensemble.serving.command", f"--repository={repository}", *ports]
    done = subprocess.run([*command, f"--triton={folder}"], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1, done.stderr
    return done.stderr.splitlines()[-1]


def test_a_stub_for_another_python_is_refused(unpacked: Path, tiny_repository: Path) -> None:
    own, other = f"3.{sys.version_info.minor}", "3.11" if sys.version_info.minor == 12 else "3.12"
    stub = find_triton().stub
    shutil.copy(stub.parents[1] / other / stub.name, unpacked / "backends" / "python")
    sentence = _refused(unpacked, tiny_repository)
    assert f"was built for Python {other}, and this is Python {own}: install clip-triton" in sentence


def test_missing_libraries_are_named(unpacked: Path, tiny_repository: Path) -> None:
    (unpacked / "lib").unlink()
    sentence = _refused(unpacked, tiny_repository)
    assert f"clip-serve: {unpacked}/bin/tritonserver cannot run here, because this system has no lib" in sentence
    assert ", libtritonserver-" in sentence
