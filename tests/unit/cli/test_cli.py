from __future__ import annotations

import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from clip_client._vectors.vector_file import FileVersion, npz_file, parquet_file, vector_row
from clip_client.cli import errors
from clip_client.cli.main import main
from clip_client.cli.output.output_file import replacing
from tests.fixtures.models.model_info import model_info

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def refusing() -> Iterator[str]:
    """An address where no server is, nor can be: its port is taken, and nothing listens there."""
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{holder.getsockname()[1]}"


def test_help_loads_nothing_heavy() -> None:
    script = (
        "import sys\nfrom clip_client.cli.main import main\n"
        "try: main(['dedup', '--help'])\n"
        "except SystemExit: pass\n"
        "print(sorted({'grpc', 'rich', 'pyarrow', 'jinja2', 'PIL', 'torch'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_health_is_quiet_but_names_the_step(refusing: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["health", "--quiet", "--url", refusing]) == 1
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.startswith("clip-client: not healthy: connect: No server answers")
    assert output.err.count("\n") == 1


@pytest.mark.parametrize("command", ["dedup", "health", "doctor"])
def test_no_server_is_one_sentence(
    command: str, refusing: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "1.jpg").write_bytes(b"x")  # without a photo the command does not look for a server
    paths = [str(tmp_path)] if command == "dedup" else []
    assert main([command, *paths, "--url", refusing]) == 1
    output = capsys.readouterr()
    assert refusing in output.out + output.err
    assert "Traceback" not in output.err


def test_a_missing_package_is_named_with_the_remedy() -> None:
    with pytest.raises(errors.CommandFailed, match=r"needs no_such_package.*pip install 'clip-triton\[cli\]'"):
        errors.need("json", "no_such_package")


@pytest.mark.parametrize(
    ("number", "in_background", "code"),
    [(signal.SIGINT, False, 130), (signal.SIGTERM, False, 143), (signal.SIGTERM, True, 143)],
)
def test_interruption_ends_with_the_number_of_the_signal(
    number: signal.Signals, in_background: bool, code: int
) -> None:
    """A script lets a command in its background ignore Ctrl-C, but not SIGTERM."""
    ignore = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN); " if in_background else ""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"127.0.0.1:{silent.getsockname()[1]}"
        run = "import sys; from clip_client.cli.main import main; sys.exit(main(sys.argv[1:]))"
        command = [sys.executable, "-c", ignore + run, "health", "--url", url]
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
            silent.settimeout(60)
            connection, _ = silent.accept()
            with connection:  # the command waits for an answer
                process.send_signal(number)
                _, said = process.communicate(timeout=60)
    assert (process.returncode, said) == (code, "clip-client: interrupted\n")


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path: Path) -> None:
    target = tmp_path / "out.json"
    target.write_text("old")
    with pytest.raises(ZeroDivisionError), replacing(target) as file:
        file.writelines(b"%d" % (1 // divisor) for divisor in (1, 0))
    assert target.read_text() == "old"
    with replacing(target) as file:
        file.write(b"new")
    assert target.read_text() == "new"
    assert list(tmp_path.iterdir()) == [target]


def test_a_file_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(errors.CommandFailed, match="there is no folder"), replacing(tmp_path / "no" / "out.json"):
        pass
    with pytest.raises(errors.CommandFailed, match="it is a folder"), replacing(tmp_path):
        pass
    # pathlib raises for this name, and for one below a folder that may not be entered.
    with pytest.raises(errors.CommandFailed, match="File name too long"), replacing(tmp_path / ("x" * 300)):
        pass


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
@pytest.mark.parametrize("kind", [parquet_file, npz_file])
def test_vectors_on_a_full_disk_are_one_sentence(kind: Any) -> None:
    rows = [vector_row(FileVersion(path=f"/{number}.jpg"), np.zeros(512, np.float32)) for number in range(2000)]

    def write_all() -> None:
        with replacing(Path("/dev/full")) as file, kind(file, model_info(dimension=512)) as add:
            for row in rows:
                add(row)

    with pytest.raises(errors.CommandFailed, match="No space left"):
        write_all()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_output_on_a_full_disk_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with open("/dev/full", "w", encoding="utf-8") as full:
        monkeypatch.setattr(sys, "stdout", full)
        assert main(["purge", "--store", str(tmp_path)]) == 1
    assert capsys.readouterr().err == "clip-client: the output cannot be written: a disk is full\n"
