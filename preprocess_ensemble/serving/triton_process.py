"""One tritonserver as a child process: start it, read its output, drain or kill it, and clean up."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import re
import secrets
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from preprocess_ensemble.runtimes.precision import PRECISION_VARIABLE, Precision
from preprocess_ensemble.serving.cleanup import remove_stale_regions
from preprocess_ensemble.serving.launcher import PACKAGE_ROOT, PARENT_VARIABLE
from preprocess_ensemble.serving.logs import LogFile, parse_line
from preprocess_ensemble.serving.process_group import EndWatch, any_runs, hide_argument, processor_time_s

if TYPE_CHECKING:
    from preprocess_ensemble.serving.tls import ServerTls

logger = logging.getLogger(__name__)

_ADMIN_KEY: Final = "clip-admin"
_ADMIN_PROTOCOLS: Final = "model-repository,shared-memory,trace,logging"
"""Protocols that change the server or reach into its machine. What a client needs stays open."""

_GONE_POLL_S: Final = 0.02
_GONE_POLLS: Final = 250
"""How often to check whether a killed process group has ended, 5 s in all."""

_LISTEN_S: Final = 2.0
"""How long to read the last output of a server that has ended."""

_OPENED: Final = b"Started GRPCInferenceService"
"""Triton logs this when all models are loaded."""

_NO_STUB: Final = re.compile(
    r"\w\d{4} [\d:.]+ \d+ pb_stub\.cc:\d+\] +\"?Failed to preinitialize Python stub: (?P<why>.*)"
)
"""A stub logs this before it ends because it cannot run its model. Triton then waits for it without limit."""

_IDLE: Final = b"All models are stopped"
"""Triton logs this during its shutdown, after the last request is answered."""

_DRAIN_S: Final = 30
"""Triton's own time limit for running requests once it is told to stop. After that it unloads its models."""

_UNLOAD_S: Final = 6.0
"""For unloading the models after that; ViT-B-32 takes one second."""

_LINE_LIMIT: Final = 2**20
"""Bytes of one line of output. Only verbose logging has longer lines."""


@dataclass(frozen=True, kw_only=True)
class ServeConfig:
    """What to serve, and where."""

    repository: Path
    host: str = "127.0.0.1"
    grpc_port: int = 8001
    http_port: int | None = None
    """None: no HTTP. Triton's HTTP has neither TLS nor limits, and single requests have crashed it."""
    metrics_port: int = 8002
    http_host: str = "127.0.0.1"
    """Independent of ``host``, for the same reasons."""
    tls: ServerTls | None = None
    canary_timeout_s: float = 5.0
    """How long the supervisor waits for the answer to its own image."""
    log_file: Path | None = None
    """Gets all output of Triton; warnings and errors also go to this program's log."""
    extra: tuple[str, ...] = ()
    """More arguments for tritonserver."""
    open_statistics: bool = False
    """Let every client read how much each model is used."""
    precision: Precision | None = None
    """Precision of the model on a CPU; None leaves it to the environment and the model's configuration."""
    admin_secret: str = field(default_factory=lambda: secrets.token_hex(16), repr=False)
    """Value of the header that Triton requires for ``_ADMIN_PROTOCOLS``. clip-serve itself does not use them."""

    @property
    def client_host(self) -> str:
        """The host name under which this machine reaches the server."""
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
        http = ["--allow-http=false"]
        if self.http_port is not None:
            address = _libevent_address(self.http_host)
            http = [f"--http-address={address}", f"--http-port={self.http_port}", f"--http-restricted-api={admin}"]
        return (
            f"--model-repository={self.repository}",
            "--model-control-mode=explicit",
            "--load-model=*",
            # The configurations are complete. Otherwise Triton starts an additional process for each model to ask for
            # the rest, and every load takes more than a second longer.
            "--disable-auto-complete-config",
            f"--grpc-address={f'[{self.host}]' if ':' in self.host else self.host}",
            f"--metrics-address={_libevent_address(self.host)}",
            f"--grpc-port={self.grpc_port}",
            f"--metrics-port={self.metrics_port}",
            f"--grpc-restricted-protocol={admin}",
            *http,
            f"--exit-timeout-secs={_DRAIN_S}",
            # Quantiles of the latency; without them Triton reports only sums, which give a mean.
            "--metrics-config=summary_latencies=true",
            *(self.tls.arguments if self.tls is not None else ()),
            *self.extra,
        )


class TritonProcess:
    """A running tritonserver with its stubs. Create it with :meth:`start`, from the main thread's event loop.

    The main thread, because the kernel ends the server together with the *thread* that started it.
    """

    def __init__(
        self,
        process: asyncio.subprocess.Process,
        output: asyncio.StreamReader,
        pipe: asyncio.ReadTransport,
        *,
        log: LogFile | None,
        secret: str,
    ) -> None:
        self._process = process
        self._output = output
        self._pipe = pipe
        self._log = log
        self._secret = secret
        self._first_error: str | None = None
        self._opened = False
        self._stubs: EndWatch | None = None
        self._idle = asyncio.Event()
        self._listener = asyncio.create_task(self._listen(), name="tritonserver's output")

    @classmethod
    async def start(cls, config: ServeConfig) -> TritonProcess:
        """Start the server. Raises ``OSError`` if no process can be started."""
        command = (sys.executable, "-c", "from preprocess_ensemble.serving.launcher import main; main()")
        environment = {
            **os.environ,
            PARENT_VARIABLE: str(os.getpid()),
            **({PRECISION_VARIABLE: config.precision} if config.precision is not None else {}),
            "PYTHONPATH": os.pathsep.join(filter(None, (str(PACKAGE_ROOT), os.environ.get("PYTHONPATH")))),
        }
        log = LogFile(config.log_file) if config.log_file is not None else None
        return await cls.run((*command, *config.arguments), environment, log=log, secret=config.admin_secret)

    @classmethod
    async def run(
        cls, command: Sequence[str], environment: Mapping[str, str], *, log: LogFile | None, secret: str
    ) -> TritonProcess:
        """Run ``command`` in its own process group, so that Ctrl-C in a terminal reaches only the supervisor.

        ``secret`` is removed from the server's command line.
        """
        # Not asyncio's own pipe: with that one, Python 3.11 reports the end of the process only when the stubs have
        # closed their copies of the pipe, which took two seconds under load.
        read_end, write_end = os.pipe()
        file = os.fdopen(read_end, "rb", buffering=0)
        try:
            process = await asyncio.create_subprocess_exec(
                *command,
                stdin=subprocess.DEVNULL,
                stdout=write_end,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env=environment,
            )
        except BaseException:
            file.close()
            raise
        finally:
            os.close(write_end)
        output = asyncio.StreamReader(limit=_LINE_LIMIT)
        pipe, _ = await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(output), file)
        return cls(process, output, pipe, log=log, secret=secret)

    @property
    def pid(self) -> int:
        """The PID of the server, which is also its process group."""
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether the server has not ended; a frozen one runs."""
        return self._process.returncode is None

    @property
    def opened(self) -> bool:
        """Whether it has loaded its models and opened its gRPC port, as far as its output has been read."""
        return self._opened

    def computed_s(self) -> float:
        """Return the processor time of the server and its stubs in seconds; it falls when a stub ends."""
        return processor_time_s(self.pid)

    def watch_stubs(self, ended: Callable[[], None]) -> None:
        """Take the server for ready: from now on, call ``ended`` when one of the models' processes ends."""
        self._first_error = None  # an error of some request is not why it ends a month later
        self._stubs = EndWatch(self.pid, ended)

    async def ended(self) -> int:
        """Wait for the end; return the exit code, negative for a signal."""
        return await self._process.wait()

    async def reason(self) -> str:
        """Return why it ended: the first error that it reported, since later ones follow from it, or its exit code."""
        code = await self._process.wait()
        await asyncio.wait({self._listener}, timeout=_LISTEN_S)
        return self._first_error or (f"signal {-code}" if code < 0 else f"exit code {code}")

    async def stop(self, *, drain_s: float) -> None:
        """Ask the server to finish its requests and end; kill the rest after ``drain_s`` (0: at once)."""
        if self._stubs is not None:
            self._stubs.close()
            self._stubs = None
        if drain_s > 0 and self.running:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(signal.SIGTERM)
            await self._drained(drain_s)
        await self._clear()

    async def _drained(self, drain_s: float) -> None:
        """Wait until the server has ended, or has answered all requests and fails to end.

        Triton never unloads an instance whose stub was killed, and would wait for it until its own time limit.
        """
        ended = asyncio.create_task(self._process.wait())
        idle = asyncio.create_task(self._idle.wait())
        await asyncio.wait({ended, idle}, timeout=drain_s, return_when=asyncio.FIRST_COMPLETED)
        if idle.done():
            await asyncio.wait({ended}, timeout=_UNLOAD_S)
        for task in (ended, idle):
            task.cancel()

    async def _clear(self) -> None:
        """Kill the rest of the process group, wait until it has ended, and remove its shared memory."""
        with contextlib.suppress(ProcessLookupError):
            # The stubs are not children of this process, so it cannot wait for them. Init reaps them.
            for _ in range(_GONE_POLLS):
                os.killpg(self.pid, signal.SIGKILL)
                if not any_runs(self.pid):
                    break
                await asyncio.sleep(_GONE_POLL_S)
        await self._process.wait()
        await asyncio.wait({self._listener}, timeout=_LISTEN_S)
        self._listener.cancel()
        self._pipe.close()
        if self._log is not None:
            self._log.close()
        remove_stale_regions()

    async def _listen(self) -> None:
        hidden = False
        while True:
            try:
                line = await self._output.readline()
            except ValueError:
                # The line was over the limit and the reader has dropped it.
                continue
            if not line:
                return
            # A server that writes output has read its arguments, so the secret is no longer needed there.
            hidden = hidden or hide_argument(self.pid, self._secret.encode(), program="tritonserver")
            if self._log is not None:
                self._log.write(line)
            if _IDLE in line:
                self._idle.set()
            text = line.decode("utf-8", "replace").rstrip()
            if not self._opened:
                # Afterwards no stub is started, and a client may have text of its own logged.
                self._opened = _OPENED in line
                if (no_stub := _NO_STUB.match(text)) is not None:
                    self._first_error = self._first_error or no_stub["why"]
                    with contextlib.suppress(ProcessLookupError):
                        self._process.kill()
            entry = parse_line(text)
            if entry is None:
                continue
            if entry.level == logging.ERROR and self._first_error is None:
                self._first_error = entry.text
            logger.log(entry.level, "triton: %s", entry.text)


def _libevent_address(host: str) -> str:
    return f"ipv6:{host}" if ":" in host else host
