"""A real ``clip-serve`` that runs for the duration of a ``with`` block."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil

from preprocess_ensemble.errors import ReportedError

QUIET: Final = ("--canary-interval-s", "3600")
"""Options for measurements: without them the supervisor's canary is an additional request that shares batches."""


class ServerDidNotStart(ReportedError):
    """clip-serve ended before it was ready; its standard error says why."""


@dataclass(frozen=True, kw_only=True)
class Server:
    """A running clip-serve."""

    process: subprocess.Popen[str]
    repository: Path
    grpc_url: str
    http_url: str
    """Empty unless HTTP was requested."""
    metrics_url: str

    @property
    def triton(self) -> psutil.Process:
        """The tritonserver that clip-serve runs now, its only child."""
        (child,) = psutil.Process(self.process.pid).children()
        return child

    def stub(self, model: str) -> psutil.Process:
        """The process in which tritonserver runs this model's Python code now. Raises ValueError if there is none."""
        (stub,) = (child for child in self.triton.children() if f"/{model}/" in " ".join(child.cmdline()))
        return stub


_given: set[int] = set()
_giving: Final = threading.Lock()


def free_port() -> int:
    """Return a free TCP port on loopback.

    A process never gets the same port twice. The kernel chooses from 14,000 ports, so one of fifty servers with four
    ports each would otherwise sometimes fail to start.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        with _giving:
            is_new = port not in _given
            _given.add(port)
        # While the probe holds this one, the kernel has to name another.
        return port if is_new else free_port()


def python_with_shared_memory(directory: Path, *, mebibytes: int) -> Path:
    """Return a ``python`` for :func:`serving` that first mounts its own ``/dev/shm`` of this size; needs root."""
    script = directory / "python"
    mount = f'mount -t tmpfs -o size={mebibytes}m none /dev/shm && exec "$0" "$@"'
    script.write_text(f"#!/bin/sh\nexec unshare --mount sh -c '{mount}' {sys.executable} \"$@\"\n", encoding="utf-8")
    script.chmod(0o755)
    return script


@contextmanager
def serving(
    repository: Path,
    *options: str,
    python: str | Path = sys.executable,
    cores: Collection[int] = (),
    gpu: int | None = None,
    environment: Mapping[str, str] | None = None,
    http: bool = False,
) -> Iterator[Server]:
    """Run ``clip-serve`` on free ports. The block starts when it is ready, and the end of the block stops it at once.

    ``options`` are those of the command line. ``python`` is the interpreter of the environment to serve with. ``cores``
    pins the server and all its processes, ``gpu`` is the only GPU that it sees, and ``environment`` is added to this
    process's. With ``http`` it also opens
    Triton's HTTP. Raises :class:`ServerDidNotStart` if it ends before it is ready.
    """
    ports = {"grpc": free_port(), "metrics": free_port(), **({"http": free_port()} if http else {})}
    command = (str(python), "-m", "preprocess_ensemble.serving.command", "--repository", str(repository))
    chosen = [f"--{name}-port={port}" for name, port in ports.items()]
    pin = (lambda: os.sched_setaffinity(0, cores)) if cores else None
    seen = {} if gpu is None else {"CUDA_VISIBLE_DEVICES": str(gpu)}
    process = subprocess.Popen(
        [*command, *chosen, *options],
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=pin,
        env={**os.environ, **seen, **(environment or {})},
    )
    assert process.stdout is not None
    try:
        for line in process.stdout:
            if line.startswith("ready:"):
                break
        else:
            raise ServerDidNotStart(f"clip-serve ended with exit code {process.wait()} before it was ready")
        # If the pipe were not read, it would fill up and block the server.
        drain = threading.Thread(target=process.stdout.read, daemon=True)
        drain.start()
        yield Server(
            process=process,
            repository=repository,
            grpc_url=f"127.0.0.1:{ports['grpc']}",
            http_url=f"http://127.0.0.1:{ports['http']}" if http else "",
            metrics_url=f"http://127.0.0.1:{ports['metrics']}/metrics",
        )
    finally:
        # No request is running any more: the second signal ends the draining that the first one starts. Two signals of
        # the same kind may arrive as one.
        process.send_signal(signal.SIGTERM)
        process.send_signal(signal.SIGINT)
        process.wait(timeout=60)
        process.stdout.close()


def peak_memory(server: Server) -> dict[str, int]:
    """Return the peak resident bytes of each process below clip-serve, by its name and, for a stub, its model."""
    peaks = {}
    for process in psutil.Process(server.process.pid).children(recursive=True):
        try:
            words = process.cmdline()
            status = Path(f"/proc/{process.pid}/status").read_text()
        except (psutil.NoSuchProcess, FileNotFoundError):
            continue
        model = next((word.split("/")[-3] for word in words if word.endswith("model.py")), "")
        line = next((line for line in status.splitlines() if line.startswith("VmHWM")), "VmHWM: 0 kB")
        peaks[f"{process.name()} {model}".strip()] = int(line.split()[1]) * 1024
    return peaks
