"""Names that are misspelt, short usages, the version and shell completion."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from clip_client.cli.main import main

if TYPE_CHECKING:
    from pathlib import Path


def refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    return capsys.readouterr().err


def test_every_command_that_reports_has_json(capsys: pytest.CaptureFixture[str]) -> None:
    commands = re.findall(r"^    (\w+) ", refused([], capsys), re.MULTILINE)
    lacking = []
    for command in commands:
        with pytest.raises(SystemExit) as ended:
            main([command, "--help"])
        assert ended.value.code == 0
        if "--json" not in capsys.readouterr().out:
            lacking.append(command)
    assert lacking == ["review"]


def test_the_package_runs_as_a_module_and_tells_its_version() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "clip_client", "--version"], capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("clip-client ")


def test_a_command_of_one_machine_does_not_load_the_code_for_clusters() -> None:
    loaded = "import sys, clip_client.cli.main; print([name for name in sys.modules if 'distributed' in name])"
    done = subprocess.run([sys.executable, "-c", loaded], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


@pytest.mark.parametrize("arguments", [["--help"], ["dedup", "--help"], ["--version"]])
def test_a_reader_that_has_closed_the_output_is_no_crash(arguments: list[str]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "clip_client", *arguments]
    buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, env=buffered, text=True, check=False)
    os.close(writer)
    assert (done.returncode, done.stderr) in [(0, ""), (1, "")]


@pytest.mark.parametrize("shell", ["zsh", "fish", "tcsh"])
def test_each_other_shell_gets_a_script(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("shtab")
    with pytest.raises(SystemExit) as ended:
        main(["--completion", shell])
    assert ended.value.code == 0
    said = capsys.readouterr().out
    assert "dedup" in said
    assert "similar" in said


@pytest.mark.parametrize(
    ("words", "expected"),
    [("ded", "dedup"), ("dedup --thr", "--threshold"), ("dedup pho", "photos"), ("embed --o", "--output")],
)
def test_bash_completes_commands_options_and_paths(
    words: str, expected: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("shtab")
    with pytest.raises(SystemExit):
        main(["--completion", "bash"])
    (tmp_path / "photos").mkdir()
    (tmp_path / "script").write_text(capsys.readouterr().out)
    asked = (
        f"source ./script; COMP_WORDS=(clip-client {words}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); "
        "$(complete -p clip-client | sed 's/.*-F \\([^ ]*\\).*/\\1/'); printf '%s\\n' \"${COMPREPLY[@]}\""
    )
    done = subprocess.run(["bash", "-c", asked], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert expected in done.stdout.split()
