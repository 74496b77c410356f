"""Fixtures for every test. The marker of a test is the name of its folder."""

import gc
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from filelock import FileLock

from benchmarks.fixtures.sample_photos import write_originals
from benchmarks.fixtures.server import TINY_CLIP
from tests.fixtures.commands import run
from tests.skipped import pytest_terminal_summary

__all__ = ("pytest_terminal_summary", "run")

TESTS = Path(__file__).parent

FORKING_FILES = (
    "unit/dedup/actions/test_crashes.py",
    "unit/dedup/actions/test_merging.py",
    "unit/dedup/actions/test_chosen.py",
)
"""They fork hundreds of times, which takes the longer the larger the process is, and others make it large."""

LONG_FILES = ("live/distributed/test_groups.py", "live/serving/test_end.py", "live/serving/test_serve.py")
"""Files of tests/live whose tests take half a minute or more."""


SLOW_FOLDERS = {"browser": 120, "live": 300}
"""Folder -> limit of a test in seconds, if the test has no ``pytest.mark.timeout`` of its own. Any of them may be the
first that needs the browser, a server or a cluster, which start ten times as slowly on a busy machine."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark each test with its folder and its limit, and put them into order.

    The files that fork come first. The last folder begins with its long files: no process is left alone with one.
    """
    for item in items:
        folder = item.path.relative_to(TESTS).parts[0]
        item.add_marker(getattr(pytest.mark, folder))
        if item.get_closest_marker("long") and "CLIP_TEST_LONG" not in os.environ:
            item.add_marker(pytest.mark.skip(reason="takes minutes; set CLIP_TEST_LONG=1, as `make long` does"))
        if folder in SLOW_FOLDERS and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(SLOW_FOLDERS[folder]))
    forking, long = ({TESTS / name for name in names} for names in (FORKING_FILES, LONG_FILES))
    items.sort(
        key=lambda item: (item.path not in forking, bool(item.get_closest_marker("live")), item.path not in long)
    )


def pytest_collection_finish() -> None:
    """Refuse PyTorch and Ray: they cost seconds, and each fork would take ten times as long; a fixture imports them.

    Leave what the imports made out of each garbage collection, and out of the pages that a fork copies.
    """
    heavy = {"langchain_openai", "ray", "torch", "transformers"}.intersection(sys.modules)
    assert not heavy, f"a module of the tests imports {heavy} while it is imported"
    if sys.version_info < (3, 14):  # from there on, Hypothesis looks for referrers, and would find none that are frozen
        gc.collect()
        gc.freeze()


# Threads of PyTorch and OpenCV would spin while they wait, on cores that other tests need.
os.environ["OMP_WAIT_POLICY"] = "PASSIVE"
os.environ["CLIP_PRECISION"] = "fp32"
"""Precision for every test, and for the servers and commands of tests: many compare vectors bit by bit, but a processor
with bf16 uses bf16 by default. Tests of the default itself set another value."""

os.environ["RAY_worker_niceness"] = "0"
"""Ray's workers give way to the tests beside them by default, and then need minutes to start."""


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide the developer's own settings."""
    for name in ("URL", "REPOSITORY", "MODEL", "PRETRAINED", "STORE", "TOKEN", "TRITON"):
        monkeypatch.delenv(f"CLIP_{name}", raising=False)


@pytest.fixture(autouse=True, scope="session")
def default_signals() -> None:
    """Stop ignoring signals that a shell ignores in background jobs; processes that tests start would inherit that."""
    for number in (signal.SIGINT, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_IGN:
            # A handler, not the default action: a suite under nohup must continue. Children get the default action,
            # because exec removes handlers.
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else lambda *_: None)


@pytest.fixture(scope="session")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of 20 real photos of mixed sizes, formats and modes."""
    directory = tmp_path_factory.mktemp("photos")
    write_originals(directory)
    return directory


@pytest.fixture(scope="session")
def shared_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that all processes of pytest-xdist share; who fills it locks a file in it."""
    folder = tmp_path_factory.getbasetemp()
    return folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder


@pytest.fixture(scope="session")
def tiny_repository(shared_folder: Path) -> Path:
    """A model repository with the image tower of the small CLIP, which no test changes."""
    return _exported(shared_folder / "tiny") / "image"


@pytest.fixture(scope="session")
def tiny_pair_repository(shared_folder: Path) -> Path:
    """A model repository with both towers of the small CLIP, which no test changes."""
    return _exported(shared_folder / "tiny") / "pair"


_EXPORTS = """
import shutil, sys
from preprocess_ensemble.export.command import main

model, image, pair = sys.argv[1:]
assert main(["--model", model, "--pretrained", "random:0", "--towers", "image", "--repository", image]) == 0
shutil.copytree(image, pair)
assert main(["--model", model, "--pretrained", "random:0", "--repository", pair]) == 0
"""


def _exported(folder: Path) -> Path:
    """Export once for all processes, in another process: one that has loaded PyTorch forks slowly, and some tests fork
    thousands of times."""
    with FileLock(folder.with_suffix(".lock")):
        if not folder.exists():
            making = folder.with_suffix(".making")
            repositories = [str(making / name) for name in ("image", "pair")]
            subprocess.run(
                [sys.executable, "-c", _EXPORTS, str(TINY_CLIP), *repositories], check=True, capture_output=True
            )
            making.rename(folder)
    return folder
