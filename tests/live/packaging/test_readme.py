"""The README's examples work: in a shell, in an empty folder, from the wheel. The package page shows less.

Blocks in ``sh`` and ``python`` run in their order. A block runs if there is no comment above it such as
``<!-- not run: needs Docker -->``; output is shown in ``text``.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from typing import TYPE_CHECKING, Final

import pytest

from benchmarks.fixtures.sample_photos import write_with_copies
from benchmarks.fixtures.server import TINY_CLIP, free_port
from tests.fixtures.packaging.installed_wheel import user_environment
from tests.paths import ROOT

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

README: Final = ROOT / "README.md"
PACKAGE_PAGE: Final = ROOT / "docs" / "package.md"
_BLOCK: Final = re.compile(
    r"(?P<excuse><!-- not run: [^\n]+ -->\n+)?^```(?P<language>\w*)\n(?P<code>.*?)^```$", re.DOTALL | re.MULTILINE
)

# Servers run in the background, one at a time, on ports that are free here. The small model replaces the default one,
# whose weights are not here. The packages are installed.
_PRELUDE: Final = """\
set -euo pipefail
stop() { kill $(jobs -p) 2> /dev/null || true; wait; }
trap stop EXIT
pip() { echo "pip $*"; }
serve() {
    stop
    command "$@" > server.log 2>&1 &
    until (exec 3<> "/dev/tcp/127.0.0.1/$GRPC_PORT") 2> /dev/null; do
        kill -0 $! 2> /dev/null || { cat server.log; return 1; }
        sleep 0.1
    done
    export CLIP_URL="127.0.0.1:$GRPC_PORT"
}
clip-serve() { serve clip-serve --grpc-port "$GRPC_PORT" --metrics-port "$METRICS_PORT" "$@"; }
clip-export() { command clip-export "$@" --model "$TINY_CLIP" --pretrained random:0; }
"""


def blocks(page: str) -> list[tuple[str, str, bool]]:
    """Return language, code and whether it runs, for each fenced block of a page."""
    return [(match["language"], match["code"], match["excuse"] is None) for match in _BLOCK.finditer(page)]


def script(page: str, address: str) -> str:
    """Return the shell script that runs what a page shows, with a server at ``address``."""
    parts = [_PRELUDE]
    for language, code, runs in blocks(page):
        if language in ("sh", "python") and runs:
            command = code if language == "sh" else f"python -c {shlex.quote(code)}\n"
            parts += [f"printf '%s\\n' {shlex.quote(f'--- {code}')}\n", command.replace("localhost:8001", address)]
    # The prelude puts servers into the background, and waits for them, which "&" would not do.
    return re.sub(r"^(clip-serve\b[^\n&]*?) *&$", r"\1", "".join(parts), flags=re.MULTILINE)


def run(option: str, code: str, folder: Path, environment: Mapping[str, str]) -> str:
    """Run a script in Bash, which must succeed; return what it says."""
    done = subprocess.run(
        ["bash", option, code],
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-8000:]
    return done.stdout


@pytest.mark.long
def test_what_the_readme_shows_runs_as_it_stands(installed: Path, tiny_pair_repository: Path, tmp_path: Path) -> None:
    home, folder = tmp_path / "home", tmp_path / "folder"
    folder.mkdir(parents=True)
    original, *_, copy = write_with_copies(home / "Pictures")["astronaut"]
    for name, source in (("a.jpg", original), ("b.jpg", copy), ("photo.jpg", original), ("cat.jpg", copy)):
        (folder / name).write_bytes(source.read_bytes())
    (folder / "not a photo.txt").write_text("no photo", encoding="utf-8")
    grpc = free_port()
    environment = user_environment(
        installed,
        home,
        CLIP_REPOSITORY=str(tiny_pair_repository),
        CLIP_URL="local:",
        GRPC_PORT=str(grpc),
        METRICS_PORT=str(free_port()),
        TINY_CLIP=str(TINY_CLIP),
    )
    said = run("-c", script(README.read_text(encoding="utf-8"), f"127.0.0.1:{grpc}"), folder, environment)
    assert "\nexact\t" in said


@pytest.mark.skipif("CLIP_TEST_INSTALL" not in os.environ, reason="CLIP_TEST_INSTALL=1 downloads a gigabyte")
@pytest.mark.timeout(1200)
def test_the_install_lines_work_on_a_fresh_machine(tmp_path: Path) -> None:
    """Debian's Python refuses to install packages into itself."""
    write_with_copies(tmp_path / "Pictures")
    shown = "".join(code for language, code, _ in blocks(README.read_text(encoding="utf-8")) if language == "sh")
    lines = re.findall(r"^(?:git clone|python3 -m venv|pip install) [^#\n]*", shown, re.MULTILINE)
    assert len(lines) == 6
    use = "clip-client dedup ~/Pictures --without-model\nclip-export --list\nclip-serve --help\n"
    code = "\n".join([*lines, use]).replace(" URL ", f" {shlex.quote(str(ROOT))} ")
    said = run("-euxc", code, tmp_path, {**os.environ, "HOME": str(tmp_path), "PATH": os.defpath})
    assert "\nexact\t" in said


def test_the_readme_installs_what_is_in_the_clone() -> None:
    """No package index has clip-triton, and a stranger could upload something under that name."""
    shown = "".join(code for _, code, _ in blocks(README.read_text(encoding="utf-8")))
    assert re.findall(r"pip install (\S+)", shown) == ["'.[local]'", "'.[cli]'", "'.[cli,local,server]'", "'.[laptop]'"]


def test_the_package_page_shows_commands_of_the_readme() -> None:
    def commands(page: Path) -> set[str]:
        shown = (code for language, code, _ in blocks(page.read_text(encoding="utf-8")) if language == "sh")
        return {line.partition(" #")[0].rstrip() for code in shown for line in code.splitlines()}

    assert commands(PACKAGE_PAGE) <= commands(README)


@pytest.mark.parametrize("page", [README, PACKAGE_PAGE], ids=lambda page: page.name)
def test_every_block_of_a_page_has_a_language(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert {language for language, _, _ in blocks(text)} <= {"sh", "python", "text"}
    assert len(blocks(text)) == len(re.findall(r"^```\w", text, re.MULTILINE))


def test_a_command_that_fails_is_noticed(tmp_path: Path) -> None:
    page = "```sh\ntrue\n```\n<!-- not run: an example -->\n```sh\nexit 3\n```\n```python\nraise SystemExit(4)\n```\n"
    done = subprocess.run(["bash", "-c", script(page, "")], cwd=tmp_path, capture_output=True, check=False)
    assert done.returncode == 4


def test_every_make_command_of_the_readme_exists() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    text = README.read_text(encoding="utf-8")
    shown = [code for _, code, _ in blocks(text)] + re.findall(r"`([^`\n]+)`", text)
    for target in re.findall(r"\bmake ([a-z-]+)", "\n".join(shown)):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), f"make {target}"
