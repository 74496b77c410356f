"""The search for ``tritonserver``, its start, and the removal of leftovers of dead servers before that."""

import contextlib
import ctypes
import importlib.metadata
import os
import platform
import re
import shutil
import signal
import site
import subprocess
import sys
import sysconfig
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from preprocess_ensemble.errors import ReportedError
from preprocess_ensemble.tritonserver import installation, launcher
from preprocess_ensemble.tritonserver.cleanup import LINKS_SUFFIX, TEMPORARY, region_prefix, remove_leftovers
from preprocess_ensemble.tritonserver.installation import Triton, find_triton
from tests.fixtures.packaging.unpacked_triton import STUB, lay_out_triton
from tests.paths import ROOT

PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"


@pytest.fixture
def wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Triton:
    """A wheel with the layout of nvidia-pytriton and nothing in its files, the only server of this machine."""
    server = tmp_path / "site-packages" / "pytriton" / "tritonserver"
    wheel = Triton(
        version="2.51.0",
        origin="from nvidia-pytriton 0.7.0",
        server=server,
        libraries=tmp_path / "site-packages" / "nvidia_pytriton.libs",
        stub=server / "python_backend_stubs" / PYTHON / "triton_python_backend_stub",
    )
    utils = server / "backends" / "python" / "triton_python_backend_utils.py"
    for file in (wheel.binary, wheel.stub, utils.with_name("libtriton_python.so"), utils):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(file.name, encoding="utf-8")
    package = SimpleNamespace(submodule_search_locations=[str(server.parent)])
    monkeypatch.setattr("importlib.util.find_spec", lambda _: package)
    monkeypatch.setattr(importlib.metadata, "version", lambda _: "0.7.0")
    monkeypatch.setattr(installation, "CONTAINER", Path("/nowhere"))
    return wheel


@pytest.fixture
def nvidia(tmp_path: Path) -> Path:
    return lay_out_triton(tmp_path / "opt", "2.75.0")


@pytest.fixture
def prefix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    prefix = tmp_path / "prefix"
    monkeypatch.setattr(sys, "prefix", str(prefix))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return prefix


def command_for(
    arguments: Sequence[str] = (), environment: Mapping[str, str] | None = None
) -> tuple[tuple[str, ...], dict[str, str]]:
    return launcher.server_command(arguments, environment or {}, pid=os.getpid())


def test_backend_directory_is_complete_and_reused(wheel: Triton, prefix: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = launcher.backend_directory(wheel)
    assert directory.parent == prefix / "lib" / "clip-triton"
    assert (directory / "python" / "libtriton_python.so").read_text(encoding="utf-8") == "libtriton_python.so"
    assert (directory / "python" / "triton_python_backend_utils.py").is_file()
    assert os.access(directory / "python" / "triton_python_backend_stub", os.X_OK)
    assert "preprocess_ensemble.backends.onnxruntime" in (directory / "onnxruntime" / "model.py").read_text("utf-8")

    made = directory.stat().st_mtime_ns
    assert launcher.backend_directory(wheel) == directory
    assert directory.stat().st_mtime_ns == made
    assert [path.name for path in directory.parent.iterdir()] == [directory.name], "no work folder is left"
    assert launcher.backend_directory(replace(wheel, version="2.52.0")) != directory
    # A cache that cannot be looked for, such as that of another user, which HOME still names, does not matter. Here the
    # system takes its name for no file's.
    monkeypatch.setenv("XDG_CACHE_HOME", str(prefix / ("x" * 300)))
    assert launcher.backend_directory(replace(wheel, version="2.53.0")).parent == directory.parent


def test_of_two_starts_that_build_it_the_slower_takes_what_the_faster_built(
    wheel: Triton, prefix: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build = launcher._build
    monkeypatch.setattr(launcher, "_build", lambda triton, directory: build(triton, build(triton, directory)))
    assert (launcher.backend_directory(wheel) / "python" / "libtriton_python.so").is_file()


def test_a_read_only_environment_uses_the_cache_and_without_one_a_sentence_says_so(wheel: Triton, prefix: Path) -> None:
    prefix.write_text("a file, where a folder would be needed", encoding="utf-8")
    directory = launcher.backend_directory(wheel)
    cache = prefix.parent / "cache"
    assert directory.parent == cache / "clip-triton"
    cache.rename(cache.with_name("lost"))
    cache.touch()
    with pytest.raises(ReportedError, match="could not be written"):
        launcher.backend_directory(wheel)


def test_command_adds_what_the_user_left_out(wheel: Triton, prefix: Path) -> None:
    environment = {"PATH": "/bin", "LD_LIBRARY_PATH": "/lib/x", "OTHER": "1"}
    command, changed = command_for(["--model-repository", "m"], environment)
    assert command[0] == str(wheel.binary)
    assert command[-2:] == ("--model-repository", "m")
    assert f"--backend-directory={launcher.backend_directory(wheel)}" in command
    assert f"--backend-config=python,shm-region-prefix-name={region_prefix(os.getpid())}" in command
    assert changed["PATH"] == f"{Path(sys.executable).parent}:/bin"
    folders = changed["LD_LIBRARY_PATH"].split(":")
    assert (folders[0], folders[-1]) == (str(wheel.libraries), "/lib/x")
    assert changed["OTHER"] == "1"
    mine = ["--backend-directory", "/b", "--cache-directory=/c", "--backend-config=python,shm-region-prefix-name=mine"]
    assert command_for(mine)[0] == (str(wheel.binary), *mine)


def test_a_package_in_a_clone_reaches_the_stub(wheel: Triton, prefix: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(site, "getsitepackages", list)
    _, changed = command_for(environment={"PYTHONPATH": "/mine"})
    assert changed["PYTHONPATH"] == f"{ROOT}:/mine"
    assert "/bin" in changed["PATH"].split(":"), "Triton needs a bash, whatever the environment is"


def test_a_missing_bash_is_named(wheel: Triton, prefix: Path) -> None:
    """Triton would wait without limit for stubs that nothing starts."""
    with pytest.raises(ReportedError, match=r"needs bash, which is in no folder of PATH \(/nowhere\)"):
        command_for(environment={"PATH": "/nowhere"})


def test_an_environment_whose_path_a_shell_would_break_is_reached_through_links(
    wheel: Triton, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    prefix = tmp_path / "My Projects é"
    monkeypatch.setattr(sys, "prefix", str(prefix))
    monkeypatch.setattr(sys, "executable", str(prefix / "bin" / "python"))
    links = TEMPORARY / f"{region_prefix(os.getpid())}{LINKS_SUFFIX}"
    request.addfinalizer(lambda: shutil.rmtree(links))  # this process never becomes the server that removes them
    command, changed = command_for()
    (backends,) = (one.partition("=")[2] for one in command if one.startswith("--backend-directory="))
    programs = changed["PATH"].partition(":")[0]
    assert (Path(backends).resolve(), Path(programs).resolve()) == (launcher.backend_directory(wheel), prefix / "bin")
    assert " " not in backends + programs
    assert (backends + programs).isascii()


def test_the_server_of_nvidias_container_is_preferred_and_left_alone(
    wheel: Triton, nvidia: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(installation, "CONTAINER", nvidia)
    command, changed = command_for()
    assert command[0] == f"{nvidia}/bin/tritonserver"
    assert not any(argument.startswith(("--backend-directory", "--cache-directory")) for argument in command)
    assert "LD_LIBRARY_PATH" not in changed
    assert find_triton({}).version == "2.75.0"


def test_an_unpacked_server_runs_with_its_own_parts(wheel: Triton, nvidia: Path, prefix: Path) -> None:
    environment = {"CLIP_TRITON": str(nvidia), "LD_LIBRARY_PATH": "/lib/x", "PATH": "/bin:/usr/bin"}
    command, changed = command_for(environment=environment)
    assert command[0] == f"{nvidia}/bin/tritonserver"
    assert {f"--backend-directory={nvidia}/backends", f"--cache-directory={nvidia}/caches"} < set(command)
    folders = changed["LD_LIBRARY_PATH"].split(":")
    assert (folders[0], folders[-1]) == (f"{nvidia}/lib", "/lib/x")
    assert find_triton(environment).cpp_backend == nvidia / "backends" / "onnxruntime"

    (nvidia / "backends" / "onnxruntime" / "libtriton_onnxruntime.so").unlink()
    without = find_triton(environment)
    assert without.cpp_backend is None
    assert f"--backend-directory={launcher.backend_directory(without)}" in command_for(environment=environment)[0]


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("bin/tritonserver", None, "is not an unpacked /opt/tritonserver: it has no bin/tritonserver"),
        (STUB, None, f"it has no {STUB}"),
        (STUB, "libpython3.9.so.1.0", f"was built for Python 3.9, and this is Python {PYTHON}: install clip-triton in"),
    ],
)
def test_an_unpacked_server_that_cannot_run_is_refused(
    name: str, content: str | None, sentence: str, nvidia: Path
) -> None:
    (nvidia / name).unlink()
    if content is not None:
        (nvidia / name).write_text(content)
    with pytest.raises(ReportedError, match=re.escape(sentence)):
        find_triton({"CLIP_TRITON": str(nvidia)})


def test_the_libraries_that_this_system_lacks_are_named(nvidia: Path, tmp_path: Path) -> None:
    """The words are those of ldd on Debian 12, about a program of Ubuntu 24.04."""
    (ldd := tmp_path / "ldd").write_text(
        "#!/bin/sh\n"
        """echo "$1: /lib/libc.so.6: version \\`GLIBC_2.38' not found (required by $1)" >&2\n"""
        """echo '\tlibdcgm.so.4 => not found'\necho '\tlibm.so.6 => /lib/libm.so.6 (0x7f)'\n"""
    )
    ldd.chmod(0o755)
    with pytest.raises(ReportedError, match=r"has no GLIBC_2\.38, libdcgm\.so\.4: use the distribution"):
        find_triton({"CLIP_TRITON": str(nvidia), "PATH": f"{tmp_path}:/bin:/usr/bin"})


@pytest.mark.parametrize(
    ("version", "numpy", "is_refused"),
    [
        ("2.51.0", "2.0.0", True),
        ("2.51.0", "1.26.4", False),
        ("2.52.0", "2.4.6", False),
        ("a build of mine", "2.4.6", False),
    ],
)
def test_a_server_that_cannot_read_the_arrays_of_this_numpy_is_refused(
    version: str, numpy: str, is_refused: bool, nvidia: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (nvidia / "TRITON_VERSION").write_text(f"{version}\n", encoding="utf-8")
    monkeypatch.setattr(importlib.metadata, "version", {"numpy": numpy}.__getitem__)
    refusal = rf"2\.51\.0 returns nothing but empty tensors with NumPy {numpy}: run `pip install 'numpy<2'`, or name "
    with pytest.raises(ReportedError, match=refusal) if is_refused else contextlib.nullcontext():
        find_triton({"CLIP_TRITON": str(nvidia)})


def test_an_incomplete_wheel_is_refused(wheel: Triton) -> None:
    assert find_triton() == wheel
    for file in (wheel.stub, wheel.binary):
        file.rename(file.with_name("lost"))
        with pytest.raises(ReportedError, match="no Python backend stub for Python 3"):
            find_triton()
        file.with_name("lost").rename(file)


@pytest.mark.parametrize(
    ("command", "name"),
    [("clip_client.serving.command", "clip-serve"), ("preprocess_ensemble.tritonserver.launcher", "tritonserver")],
)
def test_where_there_is_no_server_a_sentence_says_for_what_pip_has_one(command: str, name: str) -> None:
    code = (
        "import signal, sys; del signal.SIGBUS, signal.SIGHUP, signal.SIGKILL, signal.SIGUSR1; "  # as on Windows
        "sys.modules['pytriton'] = None; "
        f"from {command} import main; sys.exit(main([]))"
    )
    ended = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr.count("\n")) == (1, 1)
    assert ended.stderr.startswith(f"{name}: No tritonserver is installed: pip install '.[server]' in a clone")
    assert f"this is Python {platform.python_version()} on {platform.system()}" in ended.stderr


def test_the_folder_of_the_shared_python_is_found_or_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton would wait without limit for a stub that cannot start because this folder is missing."""
    name = f"libpython{PYTHON}.so.1.0"
    monkeypatch.setattr(sysconfig, "get_config_var", {"LIBDIR": str(tmp_path)}.get)
    monkeypatch.setattr(ctypes, "CDLL", lambda library: None)
    assert installation._libpython_folder("") is None, "the linker finds it"
    monkeypatch.setattr(ctypes, "CDLL", Mock(side_effect=OSError))
    with pytest.raises(ReportedError, match=rf"needs {re.escape(name)}.*apt-get install libpython3"):
        installation._libpython_folder("/nowhere")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / name).touch()
    assert installation._libpython_folder(f"/nowhere:{tmp_path / 'other'}") is None
    (tmp_path / name).touch()
    assert installation._libpython_folder("") == tmp_path


@pytest.mark.parametrize(
    ("version", "count"), [("2.51.0", 4), ("2.59.0", 4), ("2.59.1", 1), ("2.73.0dev", 1), ("3.0.0", 1), ("", 0)]
)
def test_a_release_closes_vulnerabilities(version: str, count: int) -> None:
    assert len(installation.open_vulnerabilities(version)) == count


def test_a_server_whose_supervisor_is_gone_does_not_start() -> None:
    # This process's own parent is never the parent of its child, even if this is the first process of a container.
    environment = {**os.environ, launcher.PARENT_VARIABLE: str(os.getppid()), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "preprocess_ensemble.tritonserver.launcher", "--help"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert "supervisor ended" in done.stderr


def test_only_regions_of_dead_servers_are_removed(tmp_path: Path) -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    dead = region_prefix(child.pid) + "region"
    child.communicate()
    mine = region_prefix(os.getpid())
    namespace, pid, started = mine.removeprefix("clip_triton_").split("_")[:3]
    recycled = f"clip_triton_{namespace}_{pid}_{int(started) - 1}_region"
    kept = {
        mine + "region",
        f"clip_triton_{int(namespace) + 1}_{child.pid}_1_region",  # of another PID namespace
        f"clip_triton_{namespace}_notes",
        "triton_python_backend_shm_region_1",
    }
    for name in (dead, recycled, *kept):
        (tmp_path / name).touch()
    remove_leftovers(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == kept


def test_only_stubs_of_dead_servers_are_ended() -> None:
    server = subprocess.Popen(["sleep", "60"])
    dead = region_prefix(server.pid) + "region"
    server.kill()
    server.wait()
    mine = region_prefix(os.getpid()) + "region"
    stub = "/backends/python/triton_python_backend_stub"
    orphan, kept, unnamed, other = processes = [
        subprocess.Popen([program, "-c", "input()", *arguments], executable=sys.executable, stdin=subprocess.PIPE)
        for program, *arguments in ((stub, dead), (stub, mine), (stub, "region"), ("python", dead))
    ]
    try:
        remove_leftovers()
        assert orphan.wait() == -signal.SIGKILL
        assert [process.poll() for process in (kept, unnamed, other)] == [None, None, None]
    finally:
        for process in processes:
            process.kill()
            process.communicate()
