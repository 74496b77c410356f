"""One tritonserver as a child process: start it, read its output, drain or kill it, and clean up."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

from clip_client.serving.config import ServeConfig
from clip_client.serving.logs import OUTPUT, parse_line
from preprocess_ensemble.runtimes.model import PRECISION_VARIABLE
from preprocess_ensemble.tritonserver.launcher import PARENT_VARIABLE, with_package
from preprocess_ensemble.tritonserver.links import with_repository
from preprocess_ensemble.tritonserver.process_group import any_runs, ended_children, hide_argument, watch_ends

T = TypeVar("T")

logger = logging.getLogger(__name__)
logger.setLevel(logging.INFO)

COMPUTES: Final = 0.02  # share of a core with which a server works; idle it uses 0.006, and a fiftieth is progress
SAMPLE_S: Final = 1.0

_GONE_POLL_S: Final = 0.02
_GONE_POLLS: Final = 250  # checks for the end of a killed process group: 5 s in all

_LISTEN_S: Final = 10.0
"""Time to read the last output of a server that has ended; it ends when the guardian has cleaned up."""

_OPENED: Final = "Started GRPCInferenceService"  # line that Triton logs when all models are loaded
_LOG: Final = re.compile(r"[IWEF]\d{4} ")  # beginning of a line of Triton's log

_RAISE_LIMIT: Final = "(the limit on processes and threads is reached: raise docker's --pids-limit, or ulimit -u)"

_NO_STUB: Final = re.compile(
    r"\w\d{4} [\d:.]+ \d+ pb_stub\.cc:\d+\] +\"?Failed to preinitialize Python stub: (?P<why>.*)"
)
"""A stub logs this before it ends because it cannot run its model. Triton then waits for it without limit. It may
follow a line of the server: both write to one pipe, and each its line break last."""

_IDLE: Final = "All models are stopped"  # line that Triton logs in its shutdown, after the last answer
_UNLOAD_S: Final = 6.0  # time to unload the models; ViT-B-32 takes one second
_LINE_LIMIT: Final = 2**20  # bytes of one line of output; only verbose logging has longer lines

_CRASHES: Final = frozenset(
    -number for number in signal.Signals if number.name in ("SIGABRT", "SIGBUS", "SIGFPE", "SIGSEGV")
)
"""Exit codes after a defect, rather than by another program or itself."""

_STUB_CRASHED: Final = "boost::interprocess::lock_exception"
"""All that Triton (24.10) says if a stub crashes while it starts."""

_started_pids: Final[set[int]] = set()  # servers that were started and not waited for


class TritonProcess:
    """A running tritonserver with its stubs; :meth:`start` it in the main thread, because it ends with its thread."""

    def __init__(
        self,
        process: asyncio.subprocess.Process,
        output: asyncio.StreamReader,
        pipe: asyncio.ReadTransport,
        secret: str,
        repository: Path | None,
    ) -> None:
        self._process = process
        self._pipe = pipe
        self._first_error: str | None = None
        self._last_words = ""  # latest line that is not in the format of Triton's log, as of a shell
        self._ended_stubs: set[int] = set()
        self._lost_stub = False
        self.opened = False  # models loaded and gRPC port opened, as far as its output has been read
        self._stubs = contextlib.ExitStack()
        self._idle = asyncio.Event()
        self._listener = asyncio.create_task(self._listen(output, secret, repository), name="tritonserver's output")

    @classmethod
    async def start(cls, config: ServeConfig) -> TritonProcess:
        command = (sys.executable, "-c", "from preprocess_ensemble.tritonserver.launcher import main; main()")
        environment = with_package(os.environ) | {PARENT_VARIABLE: str(os.getpid())}
        if config.compute_precision is not None:
            environment[PRECISION_VARIABLE] = config.compute_precision
        if config.compute_precision == "fp32":
            # NVIDIA's libraries read it, whatever the backend and the provider say.
            environment["NVIDIA_TF32_OVERRIDE"] = "0"
        return await cls.run(
            (*command, *config.arguments), environment, secret=config.admin_secret, repository=config.repository
        )

    @classmethod
    async def run(
        cls, command: Sequence[str], environment: Mapping[str, str], *, secret: str, repository: Path | None = None
    ) -> TritonProcess:
        """Run ``command`` in its own group; hide ``secret`` there, and name ``repository`` in its output."""
        # With asyncio's own pipe, Python 3.11 would report the end of the process only when the stubs have closed their
        # copies of the pipe, which took two seconds under load.
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
        _started_pids.add(process.pid)
        output = asyncio.StreamReader(limit=_LINE_LIMIT)
        pipe, _ = await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(output), file)
        return cls(process, output, pipe, secret, repository)

    @property
    def pid(self) -> int:
        """PID of the server and of its process group."""
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process.returncode is None

    def end_without_stub(self) -> None:
        """Kill a loading server if two calls found the same ended stub, for which Triton would wait without limit."""
        ended = ended_children(self.pid)
        if self._ended_stubs & ended and not self.opened:
            self._lost_stub = True
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
        self._ended_stubs = ended

    @property
    def crashed(self) -> bool:
        """Whether a defect of Triton has ended the server: then the next start may succeed."""
        if self._lost_stub and not self._first_error:
            return not self._last_words
        return self._first_error == _STUB_CRASHED or self._process.returncode in _CRASHES

    def watch_stubs(self, ended: Callable[[], None]) -> None:
        """Consider the server ready: from now on, call ``ended`` when one of the models' processes ends."""
        self._first_error = None  # an error of some request is not why it ends a month later
        self._stubs = watch_ends(self.pid, ended)

    async def ended(self) -> int:
        """Wait for the end; return the exit code, negative for a signal."""
        return await self._process.wait()

    async def reason(self) -> str:
        """Return why it ended: the first error that it reported (later ones follow from it), or its signal or code."""
        code = await self._process.wait()
        await asyncio.wait({self._listener}, timeout=_LISTEN_S)
        reason = self._first_error or (_signal_name(-code) if code < 0 else f"exit code {code}")
        if self._lost_stub and not self._first_error:
            reason = f"the process of a model has ended: {self._last_words or 'it left no message'}"
        return f"{reason} {_RAISE_LIMIT}" if os.strerror(errno.EAGAIN) in reason else reason

    async def stop(self, *, drain_s: float) -> None:
        """Ask the server to finish its requests and end; kill the rest after ``drain_s`` (0: at once)."""
        self._stubs.close()
        if self.pid not in _started_pids:
            return  # it has been stopped, and its PID may be another's by now
        if drain_s > 0 and self.running:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(signal.SIGTERM)
            await race(self.ended(), self._idle.wait(), timeout_s=drain_s)
            if self._idle.is_set():
                # Triton never unloads an instance whose stub was killed, and would wait until its own time limit.
                await race(self.ended(), timeout_s=_UNLOAD_S)
        with contextlib.suppress(ProcessLookupError):
            # The stubs are not children of this process, so it cannot wait for them. Init reaps them.
            for _ in range(_GONE_POLLS):
                os.killpg(self.pid, signal.SIGKILL)
                if not any_runs(self.pid):
                    break
                await asyncio.sleep(_GONE_POLL_S)
        await self._process.wait()
        _started_pids.discard(self.pid)
        await asyncio.wait({self._listener}, timeout=_LISTEN_S)
        self._listener.cancel()
        self._pipe.close()

    async def _listen(self, output: asyncio.StreamReader, secret: str, repository: Path | None) -> None:
        hidden = False
        while True:
            try:
                line = await output.readline()
            except ValueError:
                # The line was over the limit and the reader has dropped it.
                continue
            if not line:
                return
            # A server that writes output has read its arguments, so the secret is no longer needed there.
            hidden = hidden or hide_argument(self.pid, secret.encode(), program="tritonserver")
            text = line.decode("utf-8", "surrogateescape").rstrip("\r\n")
            text = text if repository is None else with_repository(text, repository)
            OUTPUT.info("%s", text)
            if _IDLE in text:
                self._idle.set()
            if not self.opened:
                # Afterwards no stub is started, and a client may have text of its own logged.
                self.opened = _OPENED in text
                if text and not _LOG.match(text):
                    self._last_words = text
                if (no_stub := _NO_STUB.search(text)) is not None:
                    self._first_error = self._first_error or no_stub["why"]
                    with contextlib.suppress(ProcessLookupError):
                        self._process.kill()
            if (entry := parse_line(text)) is not None:
                level, sentence = entry
                if level == logging.ERROR and self._first_error is None:
                    self._first_error = sentence
                logger.log(level, "triton: %s", sentence)


def _signal_name(number: int) -> str:
    with contextlib.suppress(ValueError):  # Python has no names for most of the real-time signals
        return signal.Signals(number).name
    return f"signal {number}"


class Activity:
    """When a server last computed and last finished a request. ``ended`` gives their number, None if unknown."""

    def __init__(self, computed_s: Callable[[], float], ended: Callable[[], Coroutine[Any, Any, float | None]]) -> None:
        self._read_computed_s, self._ask_finished = computed_s, ended
        self._finished: float | None = None
        self.reset()

    def reset(self) -> None:
        """Start again after an answered canary; only the count of finished requests is kept."""
        self._computed_at = self._finished_at = self._sampled_at = asyncio.get_running_loop().time()
        self._computed_s = self._read_computed_s()

    async def sample(self) -> tuple[float, float]:
        """Return the seconds without any work, and those without a finished request."""
        finished = await race(self._ask_finished(), timeout_s=SAMPLE_S)  # a frozen server never says it
        now, computed_s = asyncio.get_running_loop().time(), self._read_computed_s()
        if computed_s - self._computed_s > COMPUTES * max(SAMPLE_S, now - self._sampled_at):  # housekeeping is less
            self._computed_at = now
        self._sampled_at, self._computed_s = now, computed_s
        if finished not in (None, self._finished):
            self._finished, self._finished_at = finished, now
        return now - max(self._computed_at, self._finished_at), now - self._finished_at


def reap_adopted() -> None:
    """Wait for ended children that others started: process 1 of a container gets a server's stubs and guardian."""
    for pid in ended_children(os.getpid()) - _started_pids:
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)


async def race(
    first: Coroutine[Any, Any, T], *others: Coroutine[Any, Any, Any], timeout_s: float | None = None
) -> T | None:
    """Return the result of ``first``; None if another or the time ends before. Cancel the rest, ignore their errors."""
    tasks = [asyncio.create_task(one) for one in (first, *others)]
    try:
        await asyncio.wait(tasks, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return None if tasks[0].cancelled() else tasks[0].result()
