"""The server image without a container engine: its install script, its entry point, its health check and its end.

The scripts run as in the build, with nothing of the development environment on PATH. What NVIDIA's image brings, the
server and an ONNX Runtime, is linked in from the development environment instead.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

from benchmarks.fixtures.server import free_port
from preprocess_ensemble.serving.cleanup import SHARED_MEMORY, region_prefix
from tests.live.processes import still_running
from tests.paths import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator

DOCKERFILE = (ROOT / "containers" / "Dockerfile").read_text(encoding="utf-8")
BASE_IMAGE = ("pytriton", "nvidia_pytriton.libs", "onnxruntime")
"""Stands for what the base image has: the server with its backends."""

SITE = Path(importlib.metadata.distribution("nvidia-pytriton").locate_file("pytriton")).parent  # type: ignore[arg-type]


def _find_python() -> Path:
    """The folder of a ``python3`` outside the environment, of the same version, that has pip."""
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    probe = "import sys, pip; print('%d.%d' % sys.version_info[:2])"
    for folder in (Path("/usr/bin"), Path(sys.base_prefix) / "bin"):
        with contextlib.suppress(OSError):
            done = subprocess.run([folder / "python3", "-c", probe], capture_output=True, text=True, check=False)
            if done.stdout.strip() == version:
                return folder
    pytest.skip("no python3 with pip outside the environment", allow_module_level=True)


PYTHON = _find_python()
# The first test builds the image, which takes as long as the package index does.
pytestmark = pytest.mark.timeout(360)
# Who builds Python in a private folder has one that other users cannot run.
USER = 1000 if os.geteuid() == 0 and all(folder.stat().st_mode & 0o001 for folder in PYTHON.resolve().parents) else None
"""That of the image, where this process may become it."""


def _stage(name: str) -> str:
    found = re.search(rf"^FROM [^\n]* AS {name}\n(.*?)(?=^FROM |\Z)", DOCKERFILE, re.S | re.M)
    assert found is not None
    return found[1]


def _command(instruction: str) -> list[str]:
    found = re.search(rf"^\s*{instruction} (\[.*\])$", _stage("mounted"), re.M)
    assert found is not None, "exec form"
    command: list[str] = json.loads(found[1])
    return command


def _check(*, port: int) -> subprocess.CompletedProcess[bytes]:
    """Run the image's health check, on another port than the image has."""
    python, *rest = _command("CMD")
    assert python == "python3"
    command = [sys.executable, *(part.replace("8003", str(port)) for part in rest)]
    return subprocess.run(command, timeout=30, capture_output=True, check=False)


def _regions(prefix: str) -> list[str]:
    return [path.name for path in SHARED_MEMORY.glob(f"{prefix}*")]


@dataclass(frozen=True, kw_only=True)
class Image:
    """What the build leaves at /opt/clip, and the environment of the image."""

    clip: Path
    home: Path

    @property
    def packages(self) -> Path:
        (packages,) = self.clip.glob("lib/python3.*/site-packages")
        return packages

    @property
    def environment(self) -> dict[str, str]:
        return {
            "PATH": f"{self.clip / 'bin'}:{PYTHON}:/usr/bin:/bin",
            "PYTHONDONTWRITEBYTECODE": "1",
            "HOME": str(self.home),
        }


@pytest.fixture(scope="module")
def image() -> Iterator[Image]:
    """The stages ``source`` and ``package``: files copied, and RUN executed with another target."""
    with tempfile.TemporaryDirectory(prefix="clip-image-") as name:
        directory = Path(name)
        directory.chmod(0o755)
        context, home = directory / "build", directory / "home"
        home.mkdir()
        if USER is not None:
            os.chown(home, USER, USER)
        for line in re.findall(r"^COPY (.*)$", _stage("source"), re.M):
            *sources, target = line.split()
            for source in sources:
                copy = context / (source if target == "/" else target.removeprefix("/"))
                copy.parent.mkdir(parents=True, exist_ok=True)
                if (ROOT / source).is_dir():
                    shutil.copytree(ROOT / source, copy, ignore=shutil.ignore_patterns("__pycache__"))
                else:
                    shutil.copyfile(ROOT / source, copy)
        (command,) = re.findall(r"^RUN (\[.*\])$", _stage("package"), re.M)
        script, target, *extras = json.loads(command)
        assert target == "/opt/clip"
        built = Image(clip=directory / "clip", home=home)
        # An index that is set up for this machine is one for its image builds, too.
        pip = {key: value for key, value in os.environ.items() if key.startswith("PIP_") or "proxy" in key.lower()}
        done = subprocess.run(
            ["sh", context / script.removeprefix("/build/"), built.clip, *extras],
            env={**built.environment, **pip},
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )
        if done.returncode != 0 and "(from versions: none)" in done.stderr:
            pytest.skip("no package index can be reached")
        assert done.returncode == 0, done.stderr
        yield built


@pytest.fixture(scope="module")
def with_server(image: Image) -> Image:
    for name in (*BASE_IMAGE, *(path.name for path in SITE.glob("nvidia_pytriton-*.dist-info"))):
        (image.packages / name).symlink_to(SITE / name)
    return image


@pytest.fixture(scope="module")
def models(tiny_repository: Path) -> Iterator[Path]:
    """The repository, readable for the image's user and writable for no user."""
    with tempfile.TemporaryDirectory(prefix="clip-models-") as name:
        models = Path(name) / "models"
        shutil.copytree(tiny_repository, models)
        for path in (Path(name), models, *models.rglob("*")):
            path.chmod(0o555 if path.is_dir() else 0o444)
        yield models
        Path(name).chmod(0o755)
        for path in (models, *models.rglob("*")):
            path.chmod(0o755)


def test_the_package_brings_all_that_it_imports_and_no_pytorch(image: Image) -> None:
    for program in ("clip-serve", "clip-client", "clip-export", "clip-gateway"):
        done = subprocess.run(
            [image.clip / "bin" / program, "--help"], env=image.environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
    modules = "clip_client._transports.grpc, clip_client.gateway.app, preprocess_ensemble.imaging.decode"
    subprocess.run(["python3", "-c", f"import {modules}"], env=image.environment, check=True)
    assert not (image.packages / "torch").exists()


def test_the_versions_are_those_of_the_constraints(image: Image) -> None:
    constraints = (ROOT / "containers" / "constraints.txt").read_text(encoding="utf-8")
    pinned = dict(re.findall(r"^([\w.-]+)==([\w.]+)", constraints, re.M))
    pinned = {re.sub(r"[-_.]+", "-", name).lower(): version for name, version in pinned.items()}
    installed = {
        re.sub(r"[-_.]+", "-", found.name).lower(): found.version
        for found in importlib.metadata.distributions(path=[str(image.packages)])
    }
    del installed["clip-triton"]
    assert installed.items() <= pinned.items(), "every package is pinned, with those that it brings along"


def test_the_entry_point_serves_checks_itself_and_ends(with_server: Image, models: Path) -> None:
    entry_point = _command("ENTRYPOINT")
    assert entry_point[0] == "clip-serve"
    grpc, metrics, health = (free_port() for _ in range(3))
    # As `docker run IMAGE ARGUMENTS` appends them; the last of each counts.
    arguments = ["--host=127.0.0.1", f"--repository={models}", f"--grpc-port={grpc}"]
    arguments += [f"--metrics-port={metrics}", f"--health-port={health}"]
    with subprocess.Popen(
        [with_server.clip / "bin" / entry_point[0], *entry_point[1:], *arguments],
        env=with_server.environment,
        cwd="/tmp",
        user=USER,
        group=USER,
        extra_groups=[] if USER is not None else None,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline().startswith("ready:")
            (triton,) = psutil.Process(process.pid).children()
            family = [triton, *triton.children(recursive=True)]
            # Not all that is new there: another server of this machine may have started meanwhile.
            prefix = region_prefix(triton.pid)
            assert _regions(prefix)
            listens = {one.laddr.port for one in triton.net_connections() if one.status == psutil.CONN_LISTEN}
            assert listens == {grpc, metrics}, "no HTTP"
            assert all(member.uids().real == (USER or os.geteuid()) for member in family)
            assert _check(port=health).returncode == 0
            assert _check(port=free_port()).returncode == 1
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 0
        finally:
            process.kill()
    assert not still_running(family)
    assert not _regions(prefix)
