"""A server's process from its start to its end, with a shell script in the place of tritonserver."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import anyio
import pytest

from preprocess_ensemble.serving import triton_process
from preprocess_ensemble.serving.logs import append_output_to
from preprocess_ensemble.serving.process_group import any_runs
from preprocess_ensemble.serving.triton_process import TritonProcess
from tests.fixtures.waiting import until

if TYPE_CHECKING:
    from pathlib import Path

SERVE = "echo up > up; while :; do sleep 0.05; done"
"""Say that the traps are set, and go on."""


async def start(script: str, folder: Path) -> TritonProcess:
    """Run the script as :meth:`TritonProcess.start` runs tritonserver."""
    command = ("sh", "-c", f'cd "$1"; {script}', "sh", str(folder))
    return await TritonProcess.run(command, os.environ, secret="s3cret")


async def test_its_end_is_noticed_while_a_stub_holds_its_output(tmp_path: Path) -> None:
    """Stubs end seconds after their server, or never."""
    process = await start("echo 'error: why'; sleep 600 & exit 3", tmp_path)
    with anyio.fail_after(30):
        assert await process.ended() == 3
        assert any_runs(process.pid)
        await process.stop(drain_s=0)
        assert await process.reason() == "why"


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("echo 'error: creating server: the first'; echo 'error: a later one'; exit 1", "creating server: the first"),
        ("echo 'all is well'; exit 3", "exit code 3"),
        ("echo 'all is well'; kill -9 $$", "signal 9"),
        ("head -c 3000000 /dev/zero | tr '\\0' x; echo; echo 'error: after a long line'; exit 1", "after a long line"),
    ],
    ids=["the first error", "exit code", "signal", "a line of megabytes"],
)
async def test_the_reason_of_its_end_is_one_sentence(script: str, reason: str, tmp_path: Path) -> None:
    process = await start(script, tmp_path)
    assert await process.reason() == reason
    assert not process.running
    await process.stop(drain_s=0)


async def test_all_its_output_is_in_the_log_file(tmp_path: Path) -> None:
    with append_output_to(tmp_path / "log"):
        process = await start("echo one; echo 'error: two' >&2; exit 1", tmp_path)
        await process.ended()
        await process.stop(drain_s=0)
    assert (tmp_path / "log").read_text() == "one\nerror: two\n"


@pytest.mark.parametrize("says", ["Waiting for requests", "All models are stopped"], ids=["drains", "unloads"])
async def test_a_server_that_is_drained_ends_by_itself(says: str, tmp_path: Path) -> None:
    process = await start(f"trap 'echo {says}; sleep 0.2; echo > drained; exit 0' TERM; {SERVE}", tmp_path)
    await until((tmp_path / "up").exists)
    await process.stop(drain_s=30)
    assert (tmp_path / "drained").exists()
    assert await process.ended() == 0


async def test_a_server_that_is_not_drained_is_killed_with_its_children(tmp_path: Path) -> None:
    process = await start(f"trap 'echo > drained; exit 0' TERM; sleep 600 & {SERVE}", tmp_path)
    await until((tmp_path / "up").exists)
    await process.stop(drain_s=0)
    assert not (tmp_path / "drained").exists()
    assert await process.ended() == -9
    assert not any_runs(process.pid)


async def test_what_outlives_the_server_is_killed(tmp_path: Path) -> None:
    """As a stub does that is busy."""
    process = await start("sleep 600 >/dev/null 2>&1 & exit 0", tmp_path)
    await process.ended()
    assert any_runs(process.pid)
    await process.stop(drain_s=30)
    assert not any_runs(process.pid)


async def test_a_server_that_does_not_end_in_its_time_is_killed(tmp_path: Path) -> None:
    process = await start(f"trap '' TERM; {SERVE}", tmp_path)
    await until((tmp_path / "up").exists)
    await process.stop(drain_s=0.1)
    assert await process.ended() == -9


async def test_a_server_that_has_answered_everything_and_does_not_end_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Triton never unloads an instance whose stub was killed."""
    monkeypatch.setattr(triton_process, "_UNLOAD_S", 0.1)
    process = await start(f"trap 'echo All models are stopped' TERM; {SERVE}", tmp_path)
    await until((tmp_path / "up").exists)
    with anyio.fail_after(30):
        await process.stop(drain_s=600)
    assert await process.ended() == -9


@pytest.mark.parametrize("before", ["", "I1123 17:32:04.137100 12600 model_lifecycle.cc:473] loading: clip_encoder:1"])
async def test_a_stub_that_cannot_start_ends_the_server_with_the_reason(before: str, tmp_path: Path) -> None:
    """Triton (24.10) would wait for it without limit. The server may write to the same line."""
    line = (
        f"{before}I1123 17:32:04.137233 12613 pb_stub.cc:2105]  Failed to preinitialize Python stub: no file model.py"
    )
    process = await start(f"echo '{line}'; sleep 600", tmp_path)
    with anyio.fail_after(30):
        assert await process.ended() == -9
    await process.stop(drain_s=0)
    assert await process.reason() == "no file model.py"
    assert not process.opened


async def test_what_a_client_has_logged_does_not_end_the_server(tmp_path: Path) -> None:
    line = "I1123 17:32:04.137233 12613 pb_stub.cc:2105]  Failed to preinitialize Python stub: no file model.py"
    opened = 'I1123 17:36:47.728355 15107 grpc_server.cc:2558] "Started GRPCInferenceService at 127.0.0.1:18001"'
    process = await start(f"echo '{opened}'; echo '{line}'; echo > up; sleep 0.2; exit 3", tmp_path)
    assert await process.ended() == 3
    await process.stop(drain_s=0)
    assert process.opened


async def test_an_error_while_it_served_is_not_why_it_ended(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    process = await start("echo 'error: of a request'; until test -e ready; do sleep 0.05; done; exit 3", tmp_path)
    await until(lambda: "of a request" in caplog.text)
    process.watch_stubs(lambda: None)
    (tmp_path / "ready").touch()
    await process.ended()
    await process.stop(drain_s=0)
    assert await process.reason() == "exit code 3"
