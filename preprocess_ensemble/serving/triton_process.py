"""One tritonserver as a child process: started, listened to, drained or killed, and cleaned up after."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
import signal
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from preprocess_ensemble.serving.cleanup import remove_stale_regions
from preprocess_ensemble.serving.launcher import PARENT_VARIABLE
from preprocess_ensemble.serving.logs import LogFile, parse_line
from preprocess_ensemble.serving.process_group import EndWatch, any_runs, hide_argument, processor_time_s

if TYPE_CHECKING:
    from collections.abc import Callable

    from preprocess_ensemble.serving.tls import ServerTls

__all__ = ("ServeConfig", "TritonProcess")

logger = logging.getLogger(__name__)

_ADMIN_KEY: Final = "clip-admin"
_ADMIN_PROTOCOLS: Final = "model-repository,shared-memory,trace,logging"
"""What changes the server or reaches into its machine; what a client needs stays open."""

_GONE_POLL_S: Final = 0.02
_GONE_POLLS: Final = 250
"""How often to look whether a killed process group is gone, 5 s in all."""

_LISTEN_S: Final = 2.0
"""How long to read the last words of a server that has ended."""

_IDLE: Final = b"All models are stopped"
"""In Triton's log, when it shuts down and the last request is answered."""

_UNLOAD_S: Final = 6.0
"""For unloading the models after that; ViT-B-32 takes one second."""

_LINE_LIMIT: Final = 2**20
"""Bytes of one line of output. Longer ones are only seen with verbose logging."""


@dataclass(frozen=True, kw_only=True)
class ServeConfig:
    """What to serve, and where."""

    repository: Path
    host: str = "127.0.0.1"
    grpc_port: int = 8001
    http_port: int | None = None
    """No HTTP unless you ask for it: Triton's knows neither TLS nor limits, and single requests have crashed it."""
    metrics_port: int = 8002
    http_host: str = "127.0.0.1"
    """It does not follow ``host``, for the same reasons."""
    tls: ServerTls | None = None
    canary_timeout_s: float = 5.0
    """How long the supervisor waits for the answer to its own image."""
    drain_s: int = 30
    """How long requests that are under way may take once the server is told to stop."""
    log_file: Path | None = None
    """Everything that Triton says goes there; warnings and errors also go to this program's log."""
    extra: tuple[str, ...] = ()
    """More arguments for tritonserver."""
    open_statistics: bool = False
    """Let anyone read how much each model is used."""
    admin_secret: str = field(default_factory=lambda: secrets.token_hex(16), repr=False)
    """Value of the header that model control asks for."""

    @property
    def client_host(self) -> str:
        """Where this machine reaches the server."""
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.host, self.host)
        return f"[{host}]" if ":" in host else host

    @property
    def grpc_url(self) -> str:
        """The server's address for a client on this machine."""
        return f"{'grpc' if self.tls is None else 'grpcs'}://{self.client_host}:{self.grpc_port}"

    @property
    def arguments(self) -> tuple[str, ...]:
        """Arguments for tritonserver."""
        protocols = _ADMIN_PROTOCOLS if self.open_statistics else f"{_ADMIN_PROTOCOLS},statistics"
        admin = f"{protocols}:{_ADMIN_KEY}={self.admin_secret}"
        return (
            f"--model-repository={self.repository}",
            "--model-control-mode=explicit",
            "--load-model=*",
            # The configurations say everything; else Triton asks each model for the rest, in a process that is started
            # for that alone, and every load takes more than a second longer.
            "--disable-auto-complete-config",
            f"--grpc-address={f'[{self.host}]' if ':' in self.host else self.host}",
            f"--metrics-address={_libevent_address(self.host)}",
            f"--grpc-port={self.grpc_port}",
            f"--metrics-port={self.metrics_port}",
            f"--grpc-restricted-protocol={admin}",
            *self._http_arguments(admin),
            f"--exit-timeout-secs={self.drain_s}",
            # Quantiles of the latency beside the sums; the sums alone give nothing but a mean.
            "--metrics-config=summary_latencies=true",
            *(self.tls.arguments if self.tls is not None else ()),
            *self.extra,
        )

    def _http_arguments(self, admin: str) -> tuple[str, ...]:
        if self.http_port is None:
            return ("--allow-http=false",)
        return (
            f"--http-address={_libevent_address(self.http_host)}",
            f"--http-port={self.http_port}",
            f"--http-restricted-api={admin}",
        )


class TritonProcess:
    """A running tritonserver with its stubs. Make it by :meth:`start`, from the main thread's event loop.

    The main thread, because the kernel ends the server together with the *thread* that started it.
    """

    def __init__(self, process: asyncio.subprocess.Process, log: LogFile | None, *, secret: str) -> None:
        self._process = process
        self._log = log
        self._secret = secret
        self._first_error: str | None = None
        self._stubs: EndWatch | None = None
        self._idle = asyncio.Event()
        self._listener = asyncio.create_task(self._listen(), name="tritonserver's output")

    @classmethod
    async def start(cls, config: ServeConfig) -> TritonProcess:
        """Start the server in a process group of its own, so that Ctrl-C in a terminal reaches only the supervisor.

        Raises ``OSError`` if no process can be started.
        """
        log = LogFile(config.log_file) if config.log_file is not None else None
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-c",
            "from preprocess_ensemble.serving.launcher import main; main()",
            *config.arguments,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            limit=_LINE_LIMIT,
            start_new_session=True,
            env={
                **os.environ,
                PARENT_VARIABLE: str(os.getpid()),
                "PYTHONPATH": os.pathsep.join(filter(None, (_package_root(), os.environ.get("PYTHONPATH")))),
            },
        )
        return cls(process, log, secret=config.admin_secret)

    @property
    def pid(self) -> int:
        """The server's process, and its process group."""
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether the server has not ended; a frozen one runs."""
        return self._process.returncode is None

    def computed_s(self) -> float:
        """Processor time of the server and its stubs, in seconds; it falls when a stub ends."""
        return processor_time_s(self.pid)

    def watch_stubs(self, ended: Callable[[], None]) -> None:
        """Call ``ended`` when one of the models' processes that there are now ends."""
        self._stubs = EndWatch(self.pid, ended)

    async def ended(self) -> int:
        """Wait for the end; returns the exit code, negative for a signal."""
        return await self._process.wait()

    async def reason(self) -> str:
        """Why it ended: the first error it reported, since later ones follow from it, or its exit code."""
        code = await self._process.wait()
        await asyncio.wait({self._listener}, timeout=_LISTEN_S)
        return self._first_error or (f"signal {-code}" if code < 0 else f"exit code {code}")

    async def stop(self, *, drain_s: float) -> None:
        """Ask the server to finish what it has and end; kill what is left after ``drain_s`` (0: at once)."""
        if self._stubs is not None:
            self._stubs.close()
            self._stubs = None
        if drain_s > 0 and self.running:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(signal.SIGTERM)
            await self._drained(drain_s)
        await self._clear()

    async def _drained(self, drain_s: float) -> None:
        """Wait until the server has ended or, with all requests answered, fails to.

        An instance whose stub was killed is never unloaded; such a server would wait for it to the end of its time.
        """
        ended = asyncio.create_task(self._process.wait())
        idle = asyncio.create_task(self._idle.wait())
        await asyncio.wait({ended, idle}, timeout=drain_s, return_when=asyncio.FIRST_COMPLETED)
        if idle.done():
            await asyncio.wait({ended}, timeout=_UNLOAD_S)
        for task in (ended, idle):
            task.cancel()

    async def _clear(self) -> None:
        """Kill what is left of the process group, wait until it is gone, and remove its shared memory."""
        # The stubs are no children of this process, so nobody tells when they have ended.
        for _ in range(_GONE_POLLS):
            if not self._kill_group():
                break
            await asyncio.sleep(_GONE_POLL_S)
        await self._process.wait()
        await asyncio.wait({self._listener}, timeout=_LISTEN_S)
        self._listener.cancel()
        if self._log is not None:
            self._log.close()
        remove_stale_regions()

    def _kill_group(self) -> bool:
        """Kill what is left, and say whether any of that runs still. When it is reaped is up to the machine's init."""
        try:
            os.killpg(self.pid, signal.SIGKILL)
        except ProcessLookupError:
            return False
        return any_runs(self.pid)

    async def _listen(self) -> None:
        output = self._process.stdout
        assert output is not None
        hidden = False
        while True:
            try:
                line = await output.readline()
            except ValueError:
                # A line over the limit; the reader has dropped it.
                continue
            if not line:
                return
            # A server that speaks has read its arguments, and from here on nobody needs to see the secret in `ps`.
            hidden = hidden or hide_argument(self.pid, self._secret.encode(), program="tritonserver")
            if self._log is not None:
                self._log.write(line)
            if _IDLE in line:
                self._idle.set()
            entry = parse_line(line.decode("utf-8", "replace").rstrip())
            if entry is None:
                continue
            if entry.level == "error" and self._first_error is None:
                self._first_error = entry.text
            logger.log(logging.ERROR if entry.level == "error" else logging.WARNING, "triton: %s", entry.text)


def _libevent_address(host: str) -> str:
    return f"ipv6:{host}" if ":" in host else host


def _package_root() -> str:
    return str(Path(__file__).resolve().parents[2])
