"""Processor time and end of a group of processes."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
from typing import Any

import pytest

from preprocess_ensemble.tritonserver.process_group import (
    any_runs,
    listening_addresses,
    processor_time_s,
    shares_port,
    watch_ends,
)


def test_processor_time_is_that_of_the_whole_group() -> None:
    code = "sum(range(2 * 10**7)); print('done', flush=True); input()"
    # A shell that waits for its child: all the work is the child's.
    command = ["sh", "-c", '"$0" -c "$1"; exit', sys.executable, code]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, start_new_session=True, **pipes) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "done\n"
        # More than the shell and the start of an interpreter take.
        assert processor_time_s(process.pid) > 0.05
        process.communicate("\n")
    assert processor_time_s(process.pid) == 0


def test_a_zombie_does_not_run() -> None:
    with subprocess.Popen(["sh", "-c", "read line"], start_new_session=True, stdin=subprocess.PIPE) as process:
        assert any_runs(process.pid)
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        os.killpg(process.pid, 0)  # a signal still finds it
        assert not any_runs(process.pid)


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_a_port_belongs_to_the_process_that_listens(host: str) -> None:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.create_server((host, 0), family=family) as server, socket.socket(family) as client:
        port = server.getsockname()[1]
        assert listening_addresses(os.getpid(), port) == [(family, host)]
        client.connect(server.getsockname())
        assert listening_addresses(os.getpid(), client.getsockname()[1]) == [], "a connection is not a server"
        with subprocess.Popen(["sleep", "600"]) as other:
            assert listening_addresses(other.pid, port) == []
            assert not shares_port(os.getpid(), port)
            other.kill()
    assert listening_addresses(os.getpid(), port) == []


@pytest.mark.parametrize("pidfd", [True, False], ids=["pidfd", "none"])
async def test_the_end_of_a_grandchild_calls_back_once_where_the_kernel_can_tell(
    pidfd: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def forbidden(pid: int) -> int:
        raise PermissionError(pid)

    if not pidfd:
        monkeypatch.setattr(os, "pidfd_open", forbidden)
    script = "sleep 600 > /dev/null & sleep 600 > /dev/null & echo $!; wait"
    leader = await asyncio.create_subprocess_exec("sh", "-c", script, start_new_session=True, stdout=subprocess.PIPE)
    assert leader.stdout is not None
    last = int(await leader.stdout.readline())
    ends: asyncio.Queue[None] = asyncio.Queue()
    watch = watch_ends(leader.pid, lambda: ends.put_nowait(None))
    os.kill(last, signal.SIGKILL)
    if pidfd:
        await asyncio.wait_for(ends.get(), timeout=60)
    leader.kill()  # which is watched by its parent
    await leader.wait()
    await asyncio.sleep(0.05)
    watch.close()
    os.killpg(leader.pid, signal.SIGKILL)
    await leader.communicate()
    assert ends.empty()
