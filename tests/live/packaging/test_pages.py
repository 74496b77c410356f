"""What the README and the pages of docs show works: in a shell, in an empty folder, from the wheel.

The blocks of a page that no comment excepts run in their order.
"""

import os
import re
import shlex
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import pytest

from benchmarks.fixtures.sample_photos import write_with_copies
from benchmarks.fixtures.server import TINY_CLIP, free_port
from tests.fixtures.packaging.installed_wheel import user_environment
from tests.fixtures.packaging.pages import blocks
from tests.paths import ROOT

README: Final = ROOT / "README.md"
PACKAGE_PAGE: Final = ROOT / "docs" / "package.md"
PAGES: Final = [
    page
    for page in (README, *sorted((ROOT / "docs").glob("*.md")))
    if any(block.runs for block in blocks(page.read_text(encoding="utf-8")))
]

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


def script(page: str, address: str) -> str:
    """Return the shell script that runs what a page shows, with a server at ``address``."""
    parts = [_PRELUDE]
    for block in blocks(page):
        if block.runs:
            command = block.code if block.language == "sh" else f"python -c {shlex.quote(block.code)}\n"
            command = command.replace("localhost:8001", address)
            parts += [f"printf '%s\\n' {shlex.quote(f'--- {block.code}')}\n", command]
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
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_what_a_page_shows_runs_as_it_stands(
    page: Path, installed: Path, tiny_pair_repository: Path, tmp_path: Path
) -> None:
    home, folder = tmp_path / "home", tmp_path / "folder"
    folder.mkdir(parents=True)
    original, *_, copy = write_with_copies(home / "Pictures")["astronaut"]
    for name in ("a.jpg", "photo.jpg", "A", "photos/a.jpg"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(original.read_bytes())
    for name in ("b.jpg", "cat.jpg", "B", "photos/b.jpg"):
        (folder / name).write_bytes(copy.read_bytes())
    for name in "CDE":
        (folder / name).write_bytes(b"any bytes")
    (folder / "not a photo.txt").write_text("no photo", encoding="utf-8")
    for name in ("Pictures/Best", ".zfunc", ".config/fish/completions", ".local/share/bash-completion/completions"):
        (home / name).mkdir(parents=True)
    # A checkout after "make install".
    (folder / "benchmarks").symlink_to(ROOT / "benchmarks")
    (folder / ".venv").symlink_to(installed.parent)
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
    said = run("-c", script(page.read_text(encoding="utf-8"), f"127.0.0.1:{grpc}"), folder, environment)
    assert page != README or "\nexact\t" in said


@pytest.mark.skipif("CLIP_TEST_INSTALL" not in os.environ, reason="CLIP_TEST_INSTALL=1 downloads a gigabyte")
@pytest.mark.timeout(1200)
def test_the_install_lines_work_on_a_fresh_machine(tmp_path: Path) -> None:
    """Debian's Python refuses to install packages into itself."""
    write_with_copies(tmp_path / "Pictures")
    shown = "".join(block.code for block in blocks(README.read_text(encoding="utf-8")) if block.language == "sh")
    lines = re.findall(r"^(?:git clone|python3 -m venv|pip install) [^#\n]*", shown, re.MULTILINE)
    assert len(lines) == 6
    use = "clip-client dedup ~/Pictures --without-model\nclip-export --list\nclip-serve --help\n"
    code = "\n".join([*lines, use]).replace(" URL ", f" {shlex.quote(str(ROOT))} ")
    said = run("-euxc", code, tmp_path, {**os.environ, "HOME": str(tmp_path), "PATH": os.defpath})
    assert "\nexact\t" in said


def test_the_readme_installs_what_is_in_the_clone() -> None:
    """No package index has clip-triton, and a stranger could upload something under that name."""
    shown = "".join(block.code for block in blocks(README.read_text(encoding="utf-8")))
    extras = ["cli,local", "cli", "cli,local,server", "laptop"]
    assert re.findall(r"pip install (\S+)", shown) == [f"'.[{extra}]'" for extra in extras]


def test_the_package_page_shows_commands_of_the_readme() -> None:
    def commands(page: Path) -> set[str]:
        shown = (block.code for block in blocks(page.read_text(encoding="utf-8")) if block.language == "sh")
        return {line.partition(" #")[0].rstrip() for code in shown for line in code.splitlines()}

    assert commands(PACKAGE_PAGE) <= commands(README)


def test_a_command_that_fails_is_noticed(tmp_path: Path) -> None:
    page = "```sh\ntrue\n```\n<!-- not run: an example -->\n```sh\nexit 3\n```\n```python\nraise SystemExit(4)\n```\n"
    done = subprocess.run(["bash", "-c", script(page, "")], cwd=tmp_path, capture_output=True, check=False)
    assert done.returncode == 4


def test_what_a_page_shows_writes_only_into_its_folder() -> None:
    shown = (block.code for page in PAGES for block in blocks(page.read_text(encoding="utf-8")) if block.runs)
    assert not [line for code in shown for line in code.splitlines() if re.search(r"[\s=]/\w", line)]


def test_every_make_command_of_the_readme_exists() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    text = README.read_text(encoding="utf-8")
    shown = [block.code for block in blocks(text)] + re.findall(r"`([^`\n]+)`", text)
    for target in re.findall(r"\bmake ([a-z-]+)", "\n".join(shown)):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), f"make {target}"
