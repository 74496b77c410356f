"""``clip-serve`` in surroundings not made for it: folders, paths, ports, a broken shell, process 1, and no model."""

import contextlib
import hashlib
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import venv
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import psutil
import pytest

from benchmarks.fixtures.server import QUIET, command_line, free_port, serving
from clip_client import SyncClipClient
from tests.fixtures.models.exports import load_model
from tests.fixtures.waiting import wait_until
from tests.live.processes import health
from tests.paths import ROOT

SERVE = (sys.executable, "-m", "clip_client.serving.command")
SPECIAL = 'My Modèles, it\'s "a" (b) & c; d | $e {f,g}'


def test_a_repository_may_have_other_folders_and_any_path_and_so_may_the_environment(
    tiny_repository: Path, photos: Path, tmp_path: Path
) -> None:
    """The hub's cache, lost+found of a volume and folders of tools are not models. Triton's shell breaks such paths."""
    repository = shutil.copytree(tiny_repository, tmp_path / SPECIAL / "models")
    for name in (".weights/hub", "lost+found", "..data", "@eaDir", ".git"):
        (repository / name).mkdir(parents=True)
    environment = tmp_path / SPECIAL / "environment"
    venv.create(environment, symlinks=True)
    packages = sysconfig.get_path("purelib", vars={"base": str(environment)})
    text = f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n{ROOT}\n"
    Path(packages, "outer.pth").write_text(text, encoding="utf-8")
    with (
        serving(repository, *QUIET, python=environment / "bin" / "python") as server,
        SyncClipClient(server.grpc_url) as clip,
    ):
        assert not clip.embed([photos / "coffee.jpg"]).errors


def test_of_two_servers_on_the_same_ports_the_second_ends_with_a_sentence(tiny_repository: Path) -> None:
    """Both find the port free, and both may listen there."""
    command = [*SERVE, f"--repository={tiny_repository}", f"--grpc-port={free_port()}"]
    # The second server is stopped until the first is ready: its check of the ports is over by then.
    second = subprocess.Popen(
        [*command, f"--metrics-port={free_port()}"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        wait_until(lambda: psutil.Process(second.pid).children(), "it has started tritonserver")
        triton = psutil.Process(second.pid).children()[0]
        triton.suspend()
        with subprocess.Popen([*command, f"--metrics-port={free_port()}"], stdout=subprocess.PIPE, text=True) as first:
            try:
                assert first.stdout is not None
                assert first.stdout.readline().startswith("ready: "), "the ports were free until now"
                triton.resume()
                said, errors = second.communicate()
                assert first.poll() is None
            finally:
                first.terminate()
    finally:
        second.kill()
        second.communicate()
    assert (second.returncode, said) == (1, "")
    assert "Another program has opened port" in errors.splitlines()[-1]
    assert "ready" not in errors


@pytest.fixture
def container(tiny_repository: Path) -> Iterator[tuple[Path, Path, Path]]:
    """A ``python`` that runs as process 1 with a ``/tmp`` of its own; that folder, and a repository.

    The folder is empty, but for what this test itself needs of the ``/tmp`` that it hides.
    """
    if os.geteuid() != 0:
        pytest.skip("only root may make namespaces")
    with tempfile.TemporaryDirectory(dir="/var/tmp", prefix="clip-test-") as folder:
        python, own, mounts = Path(folder, "python"), Path(folder, "own"), []
        own.mkdir()
        for needed in {ROOT, Path(sys.prefix), Path(sys.base_prefix)}:
            if needed.is_relative_to("/tmp"):
                (shown := own / needed.relative_to("/tmp")).mkdir(parents=True, exist_ok=True)
                mounts.append(f"mount --bind {needed} {shown}")
        inside = " && ".join((*mounts, f"mount --rbind {own} /tmp", f'exec {sys.executable} "$@"'))
        python.write_text(
            f"#!/bin/sh\nexec unshare --pid --fork --mount --mount-proc --kill-child sh -c '{inside}' sh \"$@\"\n"
        )
        python.chmod(0o755)
        yield python, own, shutil.copytree(tiny_repository, Path(folder, "models"))


def test_as_process_1_it_waits_for_the_processes_of_dead_servers_and_leaves_nothing_in_tmp(
    container: tuple[Path, Path, Path],
) -> None:
    python, own, repository = container
    before = set(own.iterdir())
    with serving(repository, *QUIET, python=python, health=True) as server:
        (serve,) = psutil.Process(server.process.pid).children()
        of_one_server = len(list(own.iterdir()))
        try:
            for _ in range(2):
                wait_until(lambda: health(server)[0] == 200, "the server is ready")
                (triton,) = serve.children()
                (stub,) = (one for one in triton.children() if "/clip_encoder/" in " ".join(command_line(one)))
                stub.kill()
                wait_until(lambda: health(server)[0] != 200, "the death is noticed")
            wait_until(lambda: health(server)[0] == 200, "the server is ready again")
            assert len(list(own.iterdir())) == of_one_server, "those of dead servers are removed"
            assert not [child for child in serve.children(recursive=True) if child.status() == psutil.STATUS_ZOMBIE]
            serve.send_signal(signal.SIGTERM)
            assert server.process.wait(60) == 0
        finally:
            with contextlib.suppress(psutil.NoSuchProcess):
                serve.kill()  # and with it all processes of its namespace
    assert set(own.iterdir()) == before


@contextmanager
def _hub(weights: Path) -> Iterator[str]:
    """A stand-in for the Hugging Face hub that has one file in every repository; the block gets its address."""
    with weights.open("rb") as file:
        sha256 = hashlib.file_digest(file, "sha256").hexdigest()

    class Hub(SimpleHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def translate_path(self, path: str) -> str:
            return str(weights if "/resolve/" in path and path.endswith(".safetensors") else weights / "none")

        def send_error(self, code: int, *_: object) -> None:
            self.send_response(code)
            self.send_header("x-error-code", "EntryNotFound")
            self.send_header("content-length", "0")
            self.end_headers()

        def end_headers(self) -> None:
            self.send_header("etag", f'"{sha256}"')
            self.send_header("x-repo-commit", "0" * 40)
            super().end_headers()

    with ThreadingHTTPServer(("127.0.0.1", 0), Hub) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.mark.timeout(1800)
@pytest.mark.long
def test_the_first_start_downloads_the_weights_even_if_their_cache_is_in_the_repository(
    photos: Path, tmp_path: Path
) -> None:
    from safetensors.torch import save_file

    weights, repository = tmp_path / "weights.safetensors", tmp_path / "models"
    save_file(
        {name: value.contiguous() for name, value in load_model("ViT-B-32", "random:0").state_dict().items()}, weights
    )
    with _hub(weights) as hub:
        environment = {
            "HF_ENDPOINT": hub,
            "HF_HOME": str(repository / ".weights"),
            "HF_HUB_CACHE": str(repository / ".weights" / "hub"),
        }
        with (
            serving(repository, *QUIET, "--model", "ViT-B-32", environment=environment) as server,
            SyncClipClient(server.grpc_url) as clip,
        ):
            clip.embed([photos / "coffee.jpg"]).raise_for_errors()
    assert list((repository / ".weights").rglob("*.safetensors"))
