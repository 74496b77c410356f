"""What the README shows is what happens."""

from __future__ import annotations

import re
import subprocess
import sys
from typing import TYPE_CHECKING

from tests.paths import ROOT

if TYPE_CHECKING:
    from pathlib import Path

    from preprocess_ensemble.testing.server import Server

README = (ROOT / "README.md").read_text()


def test_the_python_example_runs_as_it_stands(server: Server, photos: Path, tmp_path: Path) -> None:
    (example,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    original, other = sorted(photos.glob("*.jpg"))[:2]
    (tmp_path / "a.jpg").write_bytes(original.read_bytes())
    (tmp_path / "b.jpg").write_bytes(other.read_bytes())
    (tmp_path / "not a photo.txt").write_text("no photo")
    assert '"localhost:8001"' in example
    script = example.replace("localhost:8001", server.grpc_url)
    ran = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60
    )
    assert ran.returncode == 0, ran.stderr
    shape, failed = ran.stdout.splitlines()
    assert shape.startswith("(3, 512) ")
    assert failed.startswith("2 not a photo.txt: NOT_AN_IMAGE: ")


def test_every_command_of_the_readme_exists() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for targets in re.findall(r"^make ([a-z-]+)|`make ([a-z-]+)`", README, re.MULTILINE):
        target = "".join(targets)
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), f"make {target}"
    for module in re.findall(r"python -m (benchmarks\.\w+)", README):
        assert (ROOT / (module.replace(".", "/") + ".py")).exists(), module
    for command in re.findall(r"\b(clip-client [a-z]+|clip-export|clip-serve)\b", README):
        program, *subcommand = command.split()
        module = {
            "clip-client": "clip_client.cli.main",
            "clip-export": "preprocess_ensemble.export.command",
            "clip-serve": "preprocess_ensemble.serving.command",
        }[program]
        asked = subprocess.run([sys.executable, "-m", module, *subcommand, "--help"], capture_output=True, check=False)
        assert asked.returncode == 0, command


def test_every_file_that_the_readme_links_to_exists() -> None:
    for target in re.findall(r"\]\(([^)#:]+)\)", README):
        assert (ROOT / target).exists(), target
