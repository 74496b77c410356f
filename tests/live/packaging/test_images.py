"""Container images, built and run for real; only the base image is a stand-in."""

import importlib.metadata
import os
import re
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from benchmarks.fixtures.server import TINY_CLIP, command_line, free_port
from clip_client import SyncClipClient
from tests.fixtures.packaging.containers import PYTHON, Engine, new_engine, require_tools
from tests.fixtures.packaging.unpacked_triton import unpack_triton
from tests.live.processes import still_running
from tests.paths import ROOT

pytestmark = pytest.mark.timeout(900)

USER = 1000
(TRITON_VERSION,) = re.findall(
    r"^ARG TRITON_VERSION=(.*)$", (ROOT / "containers" / "Dockerfile").read_text(encoding="utf-8"), re.M
)
TRITON = f"nvcr.io/nvidia/tritonserver:{TRITON_VERSION}-py3"


@dataclass(frozen=True, kw_only=True)
class Expected:
    base: str = TRITON
    program: str = "clip-serve"
    ports: tuple[int, ...] = (8001, 8002, 8003)
    volumes: tuple[str, ...] = ()
    largest_mb: int
    """Most megabytes that the image may add to its base."""
    is_pinned: bool = True


IMAGES = {
    "cpu": Expected(base=PYTHON, volumes=("/models", "/weights"), largest_mb=600),
    "mounted": Expected(largest_mb=270),
    "tensorrt": Expected(volumes=("/var/cache/clip-triton/tensorrt",), largest_mb=900),
    "plain": Expected(
        base=PYTHON, program="python3", ports=(8002,), volumes=("/weights",), largest_mb=7000, is_pinned=False
    ),
}


@pytest.fixture(scope="module")
def engine(request: pytest.FixtureRequest) -> Iterator[Engine]:
    require_tools("CLIP_TEST_IMAGES")
    assert request.config.cache is not None
    with new_engine() as engine:
        engine.import_base("bookworm", request.config.cache.mkdir("base"), PYTHON, ",libpython3.11")
        engine.build_triton(TRITON)
        yield engine


@pytest.fixture(scope="module", params=IMAGES)
def image(engine: Engine, request: pytest.FixtureRequest) -> str:
    name: str = request.param
    if name == "plain" and os.environ["CLIP_TEST_IMAGES"] != "all":
        pytest.skip("installs PyTorch, 5 GB; set CLIP_TEST_IMAGES=all")
    # Random weights need no download.
    engine.build(name, "--build-arg=PRETRAINED=random:0")
    return name


def test_the_image_says_how_it_runs(engine: Engine, image: str) -> None:
    expected = IMAGES[image]
    found = engine.inspect(image)
    config = found["Config"]
    assert config["User"] == f"{USER}:{USER}"
    assert config["Entrypoint"][0] == expected.program
    assert config["StopSignal"] == "SIGTERM"
    assert set(config.get("Volumes", {})) == set(expected.volumes)
    assert set(config["ExposedPorts"]) == {f"{port}/tcp" for port in expected.ports}
    assert found["Healthcheck"]["Test"][0] == "CMD"
    added = (found["Size"] - engine.inspect(expected.base)["Size"]) / 1e6
    sys.stderr.write(f"\n{image}: {added:.0f} MB beside its base\n")
    assert added < expected.largest_mb


def test_nothing_in_the_image_is_secret_left_over_or_open_to_others(engine: Engine, image: str) -> None:
    expected = IMAGES[image]
    with engine.mounted(image) as root, engine.mounted(expected.base) as base:
        for path in root.rglob("*"):
            name = path.relative_to(root)
            info = path.lstat()
            if stat.S_ISLNK(info.st_mode) or (base / name).exists():
                continue
            owner = USER if f"/{name}" in expected.volumes else 0
            assert info.st_uid == owner, f"{name} belongs to {info.st_uid}"
            assert not info.st_mode & (stat.S_IWOTH | stat.S_ISUID | stat.S_ISGID), name
            assert info.st_mode & stat.S_IROTH or name.parts[0] != "opt", f"the image's user cannot read {name}"
            assert not re.search(r"(^|/)(\.git|\.env|\.netrc|id_\w+)$|\.(key|whl|safetensors)$", str(name)), name
        assert not list((root / "root").glob(".cache"))
        assert not list((root / "var/lib/apt/lists").glob("*_Packages"))
        assert not (root / "build").exists()
        (packages,) = (root / "opt/clip").glob("lib/python3.*/site-packages")
        assert (packages / "torch").exists() == (image == "plain")
        assert not {"pillow_heif", "pillow_jxl"} & {path.name for path in packages.iterdir()}, "they are under the GPL"
        if expected.is_pinned:
            _check_versions(packages)


def _check_versions(packages: Path) -> None:
    names = [found.name.removesuffix(".dist-info").rsplit("-", 1) for found in packages.glob("*.dist-info")]
    installed = _pinned("\n".join(f"{name}=={version}" for name, version in names))
    del installed["clip-triton"]
    pinned = _pinned((ROOT / "containers" / "constraints.txt").read_text(encoding="utf-8"))
    assert installed.items() <= pinned.items(), "every package has the version of the constraints"


def _pinned(lines: str) -> dict[str, str]:
    return {
        re.sub(r"[-_.]+", "-", name).lower(): found for name, found in re.findall(r"^([\w.-]+)==(\S+)", lines, re.M)
    }


def _ready(process: subprocess.Popen[str]) -> str:
    """Wait until the server in the container is ready; return all that it said before."""
    assert process.stdout is not None
    said: list[str] = []
    for line in process.stdout:
        if "ready: grpc " in line:  # as it is, or in JSON: an image may log either
            return "".join(said)
        said.append(line)
    raise AssertionError("".join(said))


def _check(engine: Engine, image: str, port: int) -> int:
    """Run the image's health check on another port than the image has; containers here share the machine's network."""
    python, *rest = engine.inspect(image)["Healthcheck"]["Test"][1:]
    assert python == "python3"
    command = [sys.executable, *(part.replace("8003", str(port)) for part in rest)]
    return subprocess.run(command, timeout=30, capture_output=True, check=False).returncode


@pytest.mark.parametrize("image", ["cpu", "mounted"], indirect=True)
def test_the_package_brings_all_that_it_imports(engine: Engine, image: str) -> None:
    modules = "clip_client._transports.grpc, clip_client.gateway.app, preprocess_ensemble.imaging.decode"
    commands = [f"{program} --help" for program in ("clip-serve", "clip-client", "clip-export", "clip-gateway")]
    script = " && ".join([*commands, f"python3 -c 'import {modules}'"])
    with engine.running(image, "-c", script, options=["--entrypoint=sh"]) as process:
        said = process.communicate(timeout=120)[0]
    assert process.returncode == 0, said


@pytest.fixture(scope="module")
def nvidia(engine: Engine) -> list[str]:
    """Options that give the image of NVIDIA's Triton a server: that of pip, and an ONNX Runtime for it."""
    folder = engine.directory / "tritonserver"
    libraries = unpack_triton(folder).libraries
    onnxruntime = Path(importlib.metadata.distribution("onnxruntime").locate_file("onnxruntime"))  # type: ignore[arg-type]
    volumes = {
        folder: "/triton",
        libraries: libraries,
        onnxruntime: "/opt/clip/lib/python3.11/site-packages/onnxruntime",
    }
    options = [f"--volume={source}:{target}:ro" for source, target in volumes.items()]
    return [*options, "--env=CLIP_TRITON=/triton", "--env=XDG_CACHE_HOME=/tmp"]


@pytest.mark.parametrize("image", ["cpu", "mounted"], indirect=True)
def test_the_image_serves_checks_itself_and_ends(
    engine: Engine, image: str, tiny_repository: Path, photos: Path, nvidia: list[str]
) -> None:
    """The repository already has a model; the root file system is read-only."""
    grpc, metrics, health = (free_port() for _ in range(3))
    ports = (f"--grpc-port={grpc}", f"--metrics-port={metrics}", f"--health-port={health}")
    options = [f"--volume={tiny_repository}:/models:ro", *(nvidia if image == "mounted" else [])]
    with engine.running(image, *ports, "--model", TINY_CLIP.name, options=options) as process:
        _ready(process)
        with SyncClipClient(f"127.0.0.1:{grpc}") as clip:
            assert len(clip.embed([photos / "coffee.jpg", photos / "rocket.jpg"]).vectors) == 2
        assert _check(engine, image, health) == 0
        assert _check(engine, image, free_port()) == 1
        servers = [one for one in psutil.process_iter() if f"--grpc-port={grpc}" in command_line(one)]
        (server,) = [one for one in servers if one.name() == "tritonserver"]
        family = [server, *server.children(recursive=True)]
        assert {one.uids().real for one in family} == {USER}
        listens = [one.laddr for one in server.net_connections() if one.status == psutil.CONN_LISTEN]
        assert {port for address, port in listens if address != "127.0.0.1"} == {grpc}, "no HTTP"
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    assert not still_running(family)


@pytest.mark.parametrize("image", ["cpu"], indirect=True)
def test_the_first_start_makes_the_model(engine: Engine, image: str, photos: Path) -> None:
    """The volume is new, the user is the image's, and PyTorch is missing. Random weights need no download."""
    grpc, metrics, health = (free_port() for _ in range(3))
    ports = (f"--grpc-port={grpc}", f"--metrics-port={metrics}", f"--health-port={health}")
    model = ("--model", "ViT-B-32", "--pretrained", "random:0")
    volume = "--volume=clip-models:/models"
    with engine.running(image, *ports, *model, options=[volume]) as process:
        assert "installed ViT-B-32" in _ready(process)
        with SyncClipClient(f"127.0.0.1:{grpc}") as clip:
            clip.embed([photos / "coffee.jpg"]).raise_for_errors()
    with engine.running(image, *ports, *model, options=[volume]) as process:
        assert "installed" not in _ready(process), "the volume keeps it"
    no_hub = "--env=HF_ENDPOINT=http://127.0.0.1:9"
    with engine.running(image, *ports, "--model", "ViT-B-32", options=[no_hub]) as process:
        said = process.communicate(timeout=60)[0]
    assert process.returncode == 1
    assert "cannot be downloaded" in said
    assert "Traceback" not in said
