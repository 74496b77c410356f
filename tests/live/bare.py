"""A tritonserver without a supervisor: what breaks stays broken."""

import contextlib
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from benchmarks.fixtures.server import free_port
from preprocess_ensemble.tritonserver.cleanup import remove_leftovers
from preprocess_ensemble.tritonserver.launcher import PARENT_VARIABLE


@contextmanager
def launched(command: Sequence[str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run a command that becomes a tritonserver; at the end of the block, remove the process and its shared memory.

    It is killed, because unloading its models would take Triton two more seconds.
    """
    environment = {**os.environ, PARENT_VARIABLE: str(os.getpid())}
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, env=environment, start_new_session=True)
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        remove_leftovers()


def wait_until_live(server: subprocess.Popen[bytes], http_port: int, log: Path, *, ready: bool = True) -> None:
    """Return once the server answers and, if ``ready``, has loaded its models."""
    url = f"http://127.0.0.1:{http_port}/v2/health/{'ready' if ready else 'live'}"
    while True:
        try:
            with urllib.request.urlopen(url, timeout=60):
                return
        except OSError as error:
            if isinstance(error, urllib.error.HTTPError):
                error.close()
            assert server.poll() is None, log.read_text(encoding="utf-8")
            time.sleep(0.05)


@dataclass(frozen=True, kw_only=True)
class Triton:
    process: subprocess.Popen[bytes]
    url: str
    http_url: str
    log: Path

    def stub(self, model: str) -> psutil.Process:
        children = psutil.Process(self.process.pid).children()
        return next(child for child in children if f"/{model}/" in " ".join(child.cmdline()))


@contextmanager
def bare_triton(repository: Path, folder: Path, *options: str, ready: bool = True) -> Iterator[Triton]:
    """Run the tritonserver of pip; its log is in ``folder``."""
    grpc_port, http_port = free_port(), free_port()
    command = [sys.executable, "-m", "preprocess_ensemble.tritonserver.launcher", f"--model-repository={repository}"]
    command += ["--grpc-address=127.0.0.1", "--http-address=127.0.0.1", "--allow-metrics=false"]
    # Otherwise Triton starts one more process per model, to ask it for the rest of its configuration.
    command += ["--disable-auto-complete-config"]
    command += [f"--grpc-port={grpc_port}", f"--http-port={http_port}", *options]
    log = folder / f"{grpc_port}.log"
    with launched(command, log) as process:
        wait_until_live(process, http_port, log, ready=ready)
        yield Triton(process=process, url=f"localhost:{grpc_port}", http_url=f"localhost:{http_port}", log=log)
