"""A server's process from its start to its end, with a shell script in the place of tritonserver."""

import os
from pathlib import Path

import anyio
import pytest

from clip_client.serving import triton_process
from clip_client.serving.logs import append_output_to
from clip_client.serving.triton_process import TritonProcess
from preprocess_ensemble.tritonserver.process_group import any_runs, ended_children
from tests.fixtures.waiting import until

OPENED = 'I1123 17:36:47.728355 15107 grpc_server.cc:2558] "Started GRPCInferenceService at 127.0.0.1:18001"'
NO_STUB = "I1123 17:32:04.137233 12613 pb_stub.cc:2105]  Failed to preinitialize Python stub: no file model.py"
SERVE = "echo up > up; while :; do sleep 0.05; done"  # say that the traps are set, and go on


async def start(script: str, folder: Path) -> TritonProcess:
    """Run the script as :meth:`TritonProcess.start` runs tritonserver."""
    command = ("sh", "-c", f'cd "$1"; {script}', "sh", str(folder))
    return await TritonProcess.run(command, os.environ, secret="s3cret")


async def test_its_end_is_noticed_while_a_stub_holds_its_output_and_the_stub_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stubs end seconds after their server, or never."""
    process = await start("echo 'error: why'; sleep 600 & exit 3", tmp_path)
    with anyio.fail_after(30):
        assert await process.ended() == 3
        assert any_runs(process.pid)
        await process.stop(drain_s=600)
        assert await process.reason() == "why"
    assert not any_runs(process.pid)
    monkeypatch.setattr(os, "killpg", lambda *_: pytest.fail("its PID may be another's by now"))
    await process.stop(drain_s=0)


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("echo 'error: creating server: the first'; echo 'error: a later one'; exit 1", "creating server: the first"),
        ("echo 'all is well'; exit 3", "exit code 3"),
        ("echo 'all is well'; kill -9 $$", "SIGKILL"),
        ("kill -35 $$", "signal 35"),
        ("head -c 3000000 /dev/zero | tr '\\0' x; echo; echo 'error: after a long line'; exit 1", "after a long line"),
    ],
    ids=["the first error", "exit code", "signal", "signal without a name", "a line of megabytes"],
)
async def test_the_reason_of_its_end_is_one_sentence(script: str, reason: str, tmp_path: Path) -> None:
    process = await start(script, tmp_path)
    assert await process.reason() == reason
    assert not process.running
    await process.stop(drain_s=0)


async def test_all_its_output_is_in_the_log_file_and_people_see_what_runs_a_model(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    line = 'I1130 10:34:42.222572 25401 model.py:45] "clip_encoder_0_0: runs on ONNX Runtime 1.32.0, fp32 (why)"'
    with append_output_to(tmp_path / "log"):
        process = await start(f"echo '{line}'; echo 'error: two' >&2; exit 1", tmp_path)
        await process.ended()
        await process.stop(drain_s=0)
    assert (tmp_path / "log").read_text() == f"{line}\nerror: two\n"
    assert "triton: clip_encoder_0_0: runs on ONNX Runtime 1.32.0, fp32 (why)\n" in caplog.text


@pytest.mark.parametrize(
    ("on_term", "drain_s", "drained", "code"),
    [
        ("echo Waiting for requests; sleep 0.2; echo > drained; exit 0", 30, True, 0),
        ("echo All models are stopped; sleep 0.2; echo > drained; exit 0", 30, True, 0),
        ("echo > drained; exit 0", 0, False, -9),
        ("", 0.1, False, -9),
        # Triton never unloads an instance whose stub was killed.
        ("echo All models are stopped", 600, False, -9),
    ],
    ids=["drains", "unloads", "not drained", "not in time", "answered everything, and does not end"],
)
async def test_a_server_ends_by_itself_if_it_drains_and_is_killed_otherwise(
    on_term: str, drain_s: float, drained: bool, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(triton_process, "_UNLOAD_S", 2.0)
    process = await start(f"trap '{on_term}' TERM; sleep 600 & {SERVE}", tmp_path)
    await until((tmp_path / "up").exists)
    with anyio.fail_after(30):
        await process.stop(drain_s=drain_s)
    assert (tmp_path / "drained").exists() == drained
    assert await process.ended() == code
    assert not any_runs(process.pid)


@pytest.mark.parametrize("before", ["", "I1123 17:32:04.137100 12600 model_lifecycle.cc:473] loading: clip_encoder:1"])
async def test_a_stub_that_cannot_start_ends_the_server_with_the_reason(before: str, tmp_path: Path) -> None:
    """Triton (24.10) would wait for it without limit. The server may write to the same line."""
    process = await start(f"echo '{before}{NO_STUB}'; sleep 600", tmp_path)
    with anyio.fail_after(30):
        assert await process.ended() == -9
    await process.stop(drain_s=0)
    assert await process.reason() == "no file model.py"
    assert not process.opened


NO_PROCESS = "bash: fork: Resource temporarily unavailable"


@pytest.mark.parametrize(
    ("script", "crashed", "reason"),
    [
        # bash ends like this at the process limit. Triton waits for the stub's answer, and does not notice its end.
        (f"sh -c 'echo {NO_PROCESS} >&2; exit 254' & exec sleep 600", False, f"has ended: {NO_PROCESS} (the limit on"),
        ("false & exec sleep 600", True, "has ended: it left no message"),
        ("sh -c 'echo no file model.py >&2; exit 1' & exec sleep 600", False, "has ended: no file model.py"),
        ("echo 'E1123 17:32:04.137233 12613 x.cc:1] \"boost::interprocess::lock_exception\"'; exit 1", True, "lock_e"),
        ("kill -ABRT $$", True, "SIGABRT"),
        ("exit 1", False, "exit code 1"),
    ],
    ids=["process limit", "stub", "stub with a reason", "lock", "abort", "exit"],
)
async def test_a_start_whose_stub_ends_is_ended_and_what_has_no_reason_has_crashed(
    script: str, crashed: bool, reason: str, tmp_path: Path
) -> None:
    process = await start(script, tmp_path)

    def ended() -> bool:
        process.end_without_stub()
        return not process.running

    await until(ended)
    await process.stop(drain_s=0)
    assert reason in await process.reason()
    assert process.crashed == crashed


async def test_a_process_of_a_served_model_that_ends_is_left_to_the_canary(tmp_path: Path) -> None:
    process = await start(f"echo '{OPENED}'; true & exec sleep 600", tmp_path)
    await until(lambda: process.opened)
    await until(lambda: bool(ended_children(process.pid)))
    for _ in range(3):
        process.end_without_stub()
    assert process.running
    await process.stop(drain_s=0)


async def test_what_a_client_has_logged_does_not_end_the_server(tmp_path: Path) -> None:
    process = await start(f"echo '{OPENED}'; echo '{NO_STUB}'; sleep 0.2; exit 3", tmp_path)
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
