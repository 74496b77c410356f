"""The command line itself: help, version and completion, a server that is not there, and interruptions."""

import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from clip_client.cli.main import main
from tests.fixtures.albums import write
from tests.fixtures.commands import Run

PROGRAM = "import sys; from clip_client.cli.main import main; sys.exit(main(sys.argv[1:]))"
GOES_ON = "; the work that is done is kept, and the same command continues it"


def test_every_command_that_reports_has_json(run: Run) -> None:
    commands = re.findall(r"^    (\w+) ", run(main, "--help").out, re.MULTILINE)
    assert [one for one in commands if "--json" not in run(main, one, "--help").out] == ["review"]


def test_a_reader_that_has_closed_the_output_is_no_crash() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "clip_client", "dedup", "--help"]
    buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, env=buffered, text=True, check=False)
    os.close(writer)
    assert (done.returncode, done.stderr) in [(0, ""), (1, "")]


@pytest.mark.parametrize(
    ("words", "expected"),
    [("ded", "dedup"), ("dedup --thr", "--threshold"), ("dedup pho", "photos"), ("embed --o", "--output")],
)
def test_bash_completes_commands_options_and_paths(words: str, expected: str, tmp_path: Path, run: Run) -> None:
    pytest.importorskip("shtab")
    (tmp_path / "photos").mkdir()
    (tmp_path / "script").write_text(run(main, "--completion", "bash").out)
    asked = (
        f"source ./script; COMP_WORDS=(clip-client {words}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); "
        "$(complete -p clip-client | sed 's/.*-F \\([^ ]*\\).*/\\1/'); printf '%s\\n' \"${COMPREPLY[@]}\""
    )
    done = subprocess.run(["bash", "-c", asked], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert expected in done.stdout.split()


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("dedup", "clip-client: "),
        ("health", "failed  connect: "),
        ("health --quiet", "clip-client: not healthy: connect: "),
    ],
)
def test_no_server_is_one_sentence(command: str, said: str, tmp_path: Path, run: Run) -> None:
    photo = write(tmp_path / "1.jpg", b"x")  # without a photo the command does not look for a server
    options = [photo, "--store", tmp_path / "store"] if command == "dedup" else []
    with socket.socket() as holder:  # its port is taken, and nothing listens there
        holder.bind(("127.0.0.1", 0))
        url = f"127.0.0.1:{holder.getsockname()[1]}"
        output = run(main, *command.split(), *options, "--url", url, code=1)
    assert (output.out + output.err).startswith(said)
    assert url in output.out + output.err
    assert output.err.count("\n") == (command != "health"), "health prints its steps"


@pytest.mark.parametrize("asked", [None, "INFO"])
def test_the_lines_of_grpc_are_shown_only_if_they_are_asked_for(asked: str | None) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "GRPC_VERBOSITY"}
    environment |= {"GRPC_VERBOSITY": asked} if asked else {}
    with socket.create_server(("127.0.0.1", 0)) as without_tls:
        url = f"grpcs://127.0.0.1:{without_tls.getsockname()[1]}"
        command = [sys.executable, "-m", "clip_client", "health", "--quiet", "--url", url]
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment) as process:
            without_tls.settimeout(60)
            connection, _ = without_tls.accept()
            with connection:
                connection.sendall(b"no TLS " * 8)
                _, said = process.communicate(timeout=30)
    *of_grpc, sentence = said.splitlines()
    assert sentence.startswith(f"clip-client: not healthy: connect: The server at {url} does not speak TLS")
    assert bool(of_grpc) == bool(asked)


@pytest.mark.parametrize(
    ("words", "number", "in_background", "code", "goes_on"),
    [
        (["health"], signal.SIGTERM, False, 143, ""),
        (["health"], signal.SIGTERM, True, 143, ""),
        (["embed", "a.jpg", "--output", "vectors.npz"], signal.SIGINT, False, 130, GOES_ON),
    ],
    ids=["sigterm", "sigterm in the background", "ctrl-c"],
)
def test_interruption_ends_with_the_number_of_the_signal_and_leaves_nothing(
    words: list[str], number: signal.Signals, in_background: bool, code: int, goes_on: str, tmp_path: Path
) -> None:
    """A script lets a command in its background ignore Ctrl-C, but not SIGTERM."""
    photo = write(tmp_path / "a.jpg", b"x")
    ignore = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN); " if in_background else ""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        command = [sys.executable, "-c", ignore + PROGRAM, *words, "--url", f"127.0.0.1:{silent.getsockname()[1]}"]
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=tmp_path) as process:
            silent.settimeout(60)
            connection, _ = silent.accept()
            with connection:  # the command waits for an answer
                process.send_signal(number)
                try:
                    _, said = process.communicate(timeout=30)
                finally:
                    process.kill()  # one that does not end would be waited for
    assert (process.returncode, said) == (code, f"clip-client: interrupted{goes_on}\n")
    assert list(tmp_path.iterdir()) == [photo]
