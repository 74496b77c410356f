"""A tritonserver without a supervisor, so nothing restarts it."""

import contextlib
import os
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

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
