"""What belongs to a tritonserver: links to its repositories, its processes, and the guardian that ends what is left."""

import asyncio
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from preprocess_ensemble.tritonserver.cleanup import LINKS_SUFFIX, TEMPORARY, region_prefix, remove_leftovers
from preprocess_ensemble.tritonserver.launcher import PARENT_VARIABLE
from preprocess_ensemble.tritonserver.links import Links
from preprocess_ensemble.tritonserver.process_group import (
    any_runs,
    listening_addresses,
    processor_time_s,
    shares_port,
    watch_ends,
)
from tests.fixtures.waiting import wait_until
from tests.paths import ROOT

NAMES = ["My Models", "it's", 'a "b"', "a&b;c|d", "a$b", "{a,b}", "(a)", "a\\b", "Modèle", "模型", "a:b", "a*?[b]"]
"""Names that a shell, a list of paths or an encoding would misread."""


def _model(folder: Path) -> None:
    folder.mkdir(parents=True)
    (folder / "config.pbtxt").touch()


@pytest.fixture
def links() -> Iterator[Links]:
    yield Links(os.getpid())
    shutil.rmtree(TEMPORARY / f"{region_prefix(os.getpid())}{LINKS_SUFFIX}", ignore_errors=True)


def test_only_the_models_of_a_repository_are_shown(links: Links, tmp_path: Path) -> None:
    repository = tmp_path / "My Models"
    models = {name: repository / name for name in ("clip_image", "clip_encoder")}
    for folder in models.values():
        _model(folder)
    for name in (".weights", "lost+found", "..data", "@eaDir", ".git"):
        (repository / name).mkdir()
    (repository / "README").touch()
    given = ["--id=x", f"--model-repository={repository}", "--model-repository", str(repository), "--strict"]
    for changed in (links.repositories(given, only_models=True)[index] for index in (1, 3)):
        shown = Path(changed.removeprefix("--model-repository="))
        assert {path.name: path.resolve() for path in shown.iterdir()} == models
        assert str(shown).isascii()
        assert " " not in str(shown)


@pytest.mark.parametrize("name", NAMES)
def test_a_path_that_a_shell_would_break_is_reached_by_a_link(name: str, links: Links, tmp_path: Path) -> None:
    (tmp_path / name).mkdir()
    given = ["--model-control-mode=poll", f"--model-repository={tmp_path / name}"]
    kept, changed = links.repositories(given, only_models=False)
    link = Path(changed.removeprefix("--model-repository="))
    assert (kept, link.resolve()) == (given[0], tmp_path / name)
    assert set(str(link)) <= set("abcdefghijklmnopqrstuvwxyz0123456789_/")


def test_a_plain_path_and_a_repository_elsewhere_stay_as_they_are(links: Links, tmp_path: Path) -> None:
    given = [f"--model-repository={tmp_path}", "--model-repository=s3://bucket/models", "--model-repository"]
    assert links.repositories(given, only_models=False) == given
    assert links.plain(Path("triton_models")) == Path("triton_models")


TRITONSERVER = """#!/bin/sh
for argument; do case "$argument" in --model-repository=*) echo "${argument#*=}"; esac; done
sleep 600 &  # as a stub that waits for its server
exec sleep 600
"""


def test_a_guardian_ends_what_outlives_a_killed_server(tmp_path: Path) -> None:
    """The guardian is in a session of its own, and needs no supervisor."""
    for name in ("tritonserver", "python/triton_python_backend_stub", "onnxruntime/libtriton_onnxruntime.so"):
        file = tmp_path / ("backends" if "/" in name else "bin") / name
        file.parent.mkdir(parents=True)
        file.write_text(TRITONSERVER)
        file.chmod(0o755)
    _model((models := tmp_path / "models") / "model")
    (models / "lost+found").mkdir()
    command = [sys.executable, "-m", "preprocess_ensemble.tritonserver.launcher", f"--model-repository={models}"]
    environment = {**os.environ, "CLIP_TRITON": str(tmp_path), PARENT_VARIABLE: str(os.getpid())}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, cwd=ROOT, env=environment, start_new_session=True, text=True
    ) as server:
        assert server.stdout is not None
        shown = Path(server.stdout.readline().strip())
        assert [path.name for path in shown.iterdir()] == ["model"]
        wait_until(lambda: Path(f"/proc/{server.pid}/comm").read_text() == "sleep\n", "it serves")
        remove_leftovers()  # as another start does
        assert shown.is_dir()
        server.kill()
        server.wait()
        assert server.stdout.read() == "", "the guardian closes the output when it has finished"
    assert not any_runs(server.pid)
    assert not shown.exists()
    assert (models / "model" / "config.pbtxt").exists()


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
    if not pidfd:
        monkeypatch.setattr(os, "pidfd_open", Mock(side_effect=PermissionError))
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
