"""The packages that an installation brings, without installing: the extras in setup.cfg, and what make would run."""

import contextlib
import importlib.metadata
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
import venv
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

import pytest
from packaging.requirements import Requirement

from preprocess_ensemble.errors import pip_install
from preprocess_ensemble.imaging import turbojpeg_decoder
from tests.fixtures.packaging.extras import client_packages, extras
from tests.paths import ROOT

LARGE: Final = {"torch", "open_clip_torch", "scipy", "scikit-image"}
"""Gigabytes with what they bring, or 150 MB for one function."""
COPYLEFT: Final = {"pillow-heif", "pillow-jxl-plugin"}
"""Their wheels hold code under the GPL."""
NOT_IN_DEV: Final = {"gpu", "tensorrt-parser"}
"""One excludes another extra, and one is large."""
FOR_DEVELOPERS: Final = {"baseline", "bench", "dev", "tensorrt-parser"}


def test_extras_bring_what_they_say() -> None:
    packages = extras()
    parts = ("cli", "dedup", "local", "phone", "raw", "review")
    assert [extra for extra in (*parts, "laptop", "photos", "server") if packages[extra] & LARGE] == []
    assert [extra for extra in parts if not packages[extra] <= packages["laptop"]] == []
    assert "nvidia-pytriton" not in packages["laptop"], "a laptop needs no server"
    assert [name for name in packages if name not in NOT_IN_DEV and not packages[name] <= packages["dev"]] == []
    assert {name for name in packages if packages[name] & COPYLEFT} - FOR_DEVELOPERS == {"phone", "laptop"}


def test_the_package_page_lists_every_extra_for_users() -> None:
    listed = re.findall(r"^\| `(\w+)` \|", (ROOT / "docs" / "package.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert set(listed) == extras().keys() - FOR_DEVELOPERS


@pytest.mark.parametrize(
    ("target", "after", "installs"),
    [
        ("demo", "", "'.[cli,dedup,server]'"),
        ("test", "", "'.[dev]'"),
        ("install", "", "'.[dev]'"),
        ("demo", "demo", ""),
        ("test", "demo", "'.[dev]'"),
    ],
)
def test_make_installs_what_is_missing(target: str, after: str, installs: str, tmp_path: Path) -> None:
    environment = tmp_path / "venv"
    if after:
        (environment / "bin").mkdir(parents=True)
        (environment / "bin" / "python").touch()
        (environment / f".{after}-installed").touch()
    command = ["make", "--dry-run", target, f"VENV={environment}"]
    shown = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert ("-m venv" in shown) == (not after)
    assert re.findall(r"--editable ('\S+')", shown) == ([installs] if installs else [])


def test_the_checks_of_the_source_need_neither_pytorch_nor_ray(tmp_path: Path) -> None:
    groups = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["dependency-groups"]
    packages = {Requirement(line).name for line in groups["lint"]}
    assert packages & (LARGE | {"ray", "pyarrow", "openvino", "onnxruntime", "nvidia-pytriton"}) == set()
    command = ["make", "--dry-run", "lint", f"LINT={tmp_path / 'venv'}", f"VENV={tmp_path / 'none'}"]
    shown = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert "--group lint" in shown
    assert str(tmp_path / "none") not in shown


CLIENT: Final = "clip_client.cli.main"
COMMANDS: Final = {
    CLIENT: (
        "embed . --output vectors.parquet",
        "embed . --output vectors.npz --engine ray",
        "dedup . --report page.html",
        "dedup . --without-model",
        "dedup . --without-model --engine ray",
        "review /no/such/folder",
        "search dog --in .",
        "similar photo.jpg --in .",
        "undo",
        "purge",
        "decide list",
        "rules list",
        "--completion bash",
    ),
    "preprocess_ensemble.export.command": ("--pretrained /no/such/file.safetensors",),
    "clip_client.gateway.command": ("--ssl-keyfile key.pem",),
    "clip_client.serving.command": ("--repository /no/such/folder",),
}
"""Module with ``main`` -> command lines that end at once, because the photo, the server or the file is missing."""

_RUN: Final = """\
import contextlib, importlib, io, json, sys
module, absent, commands = json.load(sys.stdin)
sys.modules.update(dict.fromkeys(absent))
said = []
for words in commands:
    with contextlib.redirect_stderr(io.StringIO()) as output, contextlib.redirect_stdout(io.StringIO()):
        try:
            importlib.import_module(module).main(words.split())
        except SystemExit as ended:
            print(ended.code, file=sys.stderr)
    said.append(output.getvalue())
print(json.dumps(said))
"""


@pytest.mark.long
@pytest.mark.timeout(180)  # a dozen processes, one of which imports Ray
def test_a_command_without_its_extras_prints_the_line_that_installs_all_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who follows the line need not read a second one."""
    (tmp_path / "photo.jpg").touch()
    monkeypatch.setenv("CLIP_STORE", str(tmp_path / "store"))
    monkeypatch.setenv("CLIP_URL", "localhost:1")  # no model of this machine is asked for
    packages = extras()
    known = {_normal(name) for extra in packages.keys() - FOR_DEVELOPERS for name in packages[extra]}

    def said(module: str, commands: Sequence[str], installed: str = "") -> list[str]:
        """Return the messages of the commands if only these extras are installed."""
        present = client_packages().union(*(packages[name] for name in installed.split(",") if name))
        given = json.dumps([module, _modules(known - _with_dependencies(present)), commands])
        done = subprocess.run(
            [sys.executable, "-c", _RUN], input=given, capture_output=True, text=True, check=False, cwd=tmp_path
        )
        assert done.returncode == 0, done.stderr
        sentences: list[str] = json.loads(done.stdout)
        return sentences

    for module, commands in COMMANDS.items():
        by_extras: dict[str, list[str]] = {}
        for words, sentence in zip(commands, said(module, commands), strict=True):
            found = re.findall(r"pip install '\.\[([a-z,]+)\]' in a clone", sentence)
            assert len(found) == 1, f"{words}: {sentence}"
            by_extras.setdefault(found[0], []).append(words)
        for named, satisfied in by_extras.items():
            for words, sentence in zip(satisfied, said(module, satisfied, named), strict=True):
                assert "pip install" not in sentence, f"{words} with {named}: {sentence}"


@pytest.mark.parametrize(
    ("extras_named", "has_server", "installs"),
    [
        ("dedup", True, "'.[dedup,server]'"),
        ("dedup", False, "'.[dedup]'"),
        ("cli,dedup", True, "'.[cli,dedup,server]'"),
        ("cli", True, "'.[cli]'"),
        ("", True, "."),
    ],
)
def test_opencv_is_installed_together_with_the_server_that_needs_numpy_1(
    extras_named: str, has_server: bool, installs: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def version(name: str) -> str:
        if has_server and name == "nvidia-pytriton":
            return "0.7.0"
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", version)
    assert pip_install(extras_named) == f"pip install {installs} in a clone of clip-triton"


def test_nothing_is_installed_from_an_index_that_does_not_have_it() -> None:
    """Anybody could register the name there."""
    folders = ("clip_client", "preprocess_ensemble", "examples", "containers", "docs")
    paths = (path for folder in folders for path in (ROOT / folder).rglob("*"))
    texts = [path for path in paths if path.suffix in (".py", ".md", ".yaml", ".ipynb")]
    assert len(texts) > 100
    named = re.compile(r"pip install (?:-\S+ )*['\"\\]*clip-triton")
    assert [path.name for path in texts if named.search(path.read_text("utf-8"))] == []


def _modules(packages: set[str]) -> list[str]:
    modules = importlib.metadata.packages_distributions().items()
    return [module for module, owners in modules if packages.issuperset(map(_normal, owners))]


def _with_dependencies(packages: Iterable[str]) -> set[str]:
    found: set[str] = set()
    waiting = [_normal(name) for name in packages]
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            with contextlib.suppress(importlib.metadata.PackageNotFoundError):
                needed = map(Requirement, importlib.metadata.requires(name) or ())
                waiting += [_normal(one.name) for one in needed if one.marker is None or one.marker.evaluate()]
    return found


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def test_no_file_names_an_address_of_packages() -> None:
    """The source of packages is set up on each machine."""
    host = re.compile(rb"https?://[\w.-]*(?:debian|ubuntu|pypi|pythonhosted|mirror)[\w.-]*[./:]\w", re.IGNORECASE)
    files = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=False).stdout.split(b"\0")
    named = {name.decode(): host.search((ROOT / name.decode()).read_bytes()) for name in files if name}
    assert {name: found[0] for name, found in named.items() if found} == {}


def test_a_type_checker_follows_an_editable_installation(tmp_path: Path) -> None:
    tree, wheels, elsewhere = (tmp_path / name for name in ("tree", "wheels", "elsewhere"))
    for path in (tree, wheels, elsewhere):
        path.mkdir()
    for name in ("clip_client", "preprocess_ensemble"):
        shutil.copytree(ROOT / name, tree / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("LICENSE", "README.md", "pyproject.toml", "setup.cfg"):
        shutil.copyfile(ROOT / name, tree / name)
    build = f"from setuptools import build_meta; build_meta.build_editable({str(wheels)!r})"
    subprocess.run([sys.executable, "-c", build], cwd=tree, check=True, capture_output=True)
    (wheel,) = wheels.iterdir()
    environment = tmp_path / "environment"
    venv.create(environment)
    shutil.unpack_archive(wheel, next(environment.glob("lib/python*/site-packages")), "zip")

    (elsewhere / "script.py").write_text("from clip_client import SyncClipClient\nclip = SyncClipClient().open()\n")
    python = environment / "bin" / "python"
    # Whether the package is found and is typed shows without reading it, which takes seconds.
    options = ["--config-file=", "--follow-imports=skip", "--cache-dir", str(tmp_path / "cache"), "script.py"]
    command = [sys.executable, "-m", "mypy", "--python-executable", str(python), *options]
    checked = subprocess.run(command, cwd=elsewhere, check=False, capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_ci_has_libturbojpeg() -> None:
    # Without it, dozens of tests of the decoder that servers use would be skipped.
    assert os.environ.get("CI") != "true" or turbojpeg_decoder.installed()
