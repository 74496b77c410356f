"""Container images, built and run for real; only the base image is a stand-in."""

from __future__ import annotations

import re
import signal
import stat
import subprocess
import sys
from typing import TYPE_CHECKING

import psutil
import pytest

from clip_client import SyncClipClient
from preprocess_ensemble.testing.server import free_port
from preprocess_ensemble.testing.tiny_model import TINY_CLIP
from tests.fixtures.containers import BASE, Engine, require_tools
from tests.paths import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.timeout(900)

CPU = "localhost/clip-triton:cpu"
USER = 1000
LARGEST_MB = {CPU: 400}
"""What an image may add to its base."""


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[Engine]:
    require_tools()
    directory = tmp_path_factory.mktemp("images")
    engine = Engine(directory=directory)
    engine.import_base(request.config.cache.mkdir("base") / "bookworm.tar")
    yield engine
    engine.remove()


@pytest.fixture(scope="module")
def cpu(engine: Engine) -> str:
    """The image for people without a GPU, and what to call it."""
    engine.build("cpu.Dockerfile", CPU)
    return CPU


def test_the_image_says_how_it_runs(engine: Engine, cpu: str) -> None:
    found = engine.inspect(cpu)
    config = found["Config"]
    assert config["User"] == f"{USER}:{USER}"
    assert config["Entrypoint"][0] == "clip-serve"
    assert config["StopSignal"] == "SIGTERM"
    assert config["Volumes"] == {"/models": {}}
    assert set(config["ExposedPorts"]) == {"8001/tcp", "8002/tcp", "8003/tcp"}
    assert found["Healthcheck"]["Test"][0] == "CMD"
    added = (found["Size"] - engine.inspect(BASE)["Size"]) / 1e6
    sys.stderr.write(f"\n{cpu}: {added:.0f} MB beside its base\n")
    assert added < LARGEST_MB[cpu]


def test_nothing_in_the_image_is_secret_left_over_or_open_to_others(engine: Engine, cpu: str) -> None:
    with engine.mounted(cpu) as root, engine.mounted(BASE) as base:
        for path in root.rglob("*"):
            name = path.relative_to(root)
            info = path.lstat()
            if stat.S_ISLNK(info.st_mode) or (base / name).exists():
                continue
            owner = USER if str(name) == "models" else 0
            assert info.st_uid == owner, f"{name} belongs to {info.st_uid}"
            assert not info.st_mode & (stat.S_IWOTH | stat.S_ISUID | stat.S_ISGID), name
            assert info.st_mode & stat.S_IROTH or name.parts[0] != "opt", f"the image's user cannot read {name}"
            assert not re.search(r"(^|/)(\.git|\.env|\.netrc|id_\w+|pip-.*\.whl)$|\.(key|whl|onnx)$", str(name)), name
        assert not list((root / "root").glob(".cache"))
        assert not list((root / "var/lib/apt/lists").glob("*_Packages"))
        assert not (root / "build").exists()
        (packages,) = (root / "opt/clip").glob("lib/python3.*/site-packages")
        assert not (packages / "torch").exists()
        assert (packages / "onnxruntime").exists()


def _pinned(lines: str) -> dict[str, str]:
    return {
        re.sub(r"[-_.]+", "-", name).lower(): found for name, found in re.findall(r"^([\w.-]+)==(\S+)", lines, re.M)
    }


def test_every_package_has_the_version_of_the_constraints(engine: Engine, cpu: str) -> None:
    with engine.mounted(cpu) as root:
        (packages,) = (root / "opt/clip").glob("lib/python3.*/site-packages")
        names = [found.name.removesuffix(".dist-info").rsplit("-", 1) for found in packages.glob("*.dist-info")]
    installed = _pinned("\n".join(f"{name}=={version}" for name, version in names))
    del installed["clip-triton"]
    pinned = _pinned((ROOT / "containers" / "constraints.txt").read_text(encoding="utf-8"))
    assert installed.items() <= pinned.items()


def _ready(process: subprocess.Popen[str]) -> str:
    """Wait until the server in the container is ready; return all that it said before."""
    assert process.stdout is not None
    said: list[str] = []
    for line in process.stdout:
        if line.startswith("ready:"):
            return "".join(said)
        said.append(line)
    raise AssertionError("".join(said))


def _check(engine: Engine, image: str, port: int) -> int:
    """Run the image's health check on another port than the image has; containers here share the machine's network."""
    python, *rest = engine.inspect(image)["Healthcheck"]["Test"][1:]
    assert python == "python3"
    command = [sys.executable, *(part.replace("8003", str(port)) for part in rest)]
    return subprocess.run(command, timeout=30, capture_output=True, check=False).returncode


def test_the_cpu_image_serves_checks_itself_and_ends(
    engine: Engine, cpu: str, tiny_repository: Path, photos: Path
) -> None:
    """With a repository that is there already, on a read-only root file system."""
    grpc, metrics, health = (free_port() for _ in range(3))
    ports = (f"--grpc-port={grpc}", f"--metrics-port={metrics}", f"--health-port={health}")
    volume = f"--volume={tiny_repository}:/models:ro"
    with engine.running(cpu, *ports, "--model", TINY_CLIP.name, options=[volume]) as process:
        _ready(process)
        with SyncClipClient(f"127.0.0.1:{grpc}") as clip:
            assert len(clip.embed([photos / "coffee.jpg", photos / "rocket.webp"]).vectors) == 2
        assert _check(engine, cpu, health) == 0
        assert _check(engine, cpu, free_port()) == 1
        servers = [one for one in psutil.process_iter() if f"--grpc-port={grpc}" in _words(one)]
        family = {one for one in servers if one.name() == "tritonserver"}
        assert {one.uids().real for server in family for one in (server, *server.children(recursive=True))} == {USER}
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    assert not [one for one in family if one.is_running()]


def _words(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []
