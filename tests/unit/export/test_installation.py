"""Models that the parity check rejects, and files that a rejected, interrupted or killed export leaves."""

import json
import os
import resource
import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.fixtures.server import TINY_CLIP
from preprocess_ensemble.contract import PIXELS, STATUS
from preprocess_ensemble.errors import ReportedError
from preprocess_ensemble.export import atomic_install, parity
from preprocess_ensemble.export.command import main
from preprocess_ensemble.export.model_source import ExportError
from preprocess_ensemble.imaging.transform import PreprocessConfig
from preprocess_ensemble.model_repository.config import version_directory
from preprocess_ensemble.runtimes.agreement import checked_vectors
from preprocess_ensemble.runtimes.model import Session
from preprocess_ensemble.runtimes.onnx_session import open_session
from tests.fixtures.commands import Run
from tests.fixtures.models.exports import contents, export, installed, python


class Defective:
    """A session that computes something else; each part gets the inputs and the outputs (vectors, fingerprints)."""

    def __init__(self, session: Session, defect: str) -> None:
        self.session, self.defect = session, defect

    def run(self, names: Sequence[str], feed: Mapping[str, Any], options: Any = None, /) -> list[Any]:
        if self.defect == "swapped channels":
            feed = {**feed, PIXELS: np.ascontiguousarray(feed[PIXELS][..., ::-1])}
        vectors, fingerprints = self.session.run(names, feed)
        return {
            "swapped channels": [vectors, fingerprints],
            "a leak": [vectors + np.float32(1e-4) * feed[STATUS].sum(), fingerprints],
            "another fingerprint": [vectors, fingerprints + 1],
        }[self.defect]


@pytest.mark.parametrize(("defect", "says"), [("swapped channels", "cosine of 0"), ("a leak", "neighbours")])
def test_a_graph_with_a_defect_fails_the_check(defect: str, says: str, tiny_repository: Path) -> None:
    passport = installed(tiny_repository)
    good = open_session(version_directory(tiny_repository) / "model.onnx")
    pixels = parity.check_pixels(PreprocessConfig.from_mapping(passport.preprocess))
    expected = checked_vectors(good, pixels, passport.fingerprint)
    parity.check(good, pixels, expected, passport.fingerprint, "fp32")
    with pytest.raises(ExportError, match=says):
        parity.check(Defective(good, defect), pixels, expected, passport.fingerprint, "fp32")


def a_defect(_: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parity, "open_session", lambda *given: Defective(open_session(*given), "another fingerprint"))


def a_broken_configuration(repository: Path, _: pytest.MonkeyPatch) -> None:
    (repository / "clip_image" / "config.pbtxt").write_text("no configuration")


def control_c(_: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parity, "check", lambda *_: signal.raise_signal(signal.SIGINT))


def unhandled(*_: object) -> None:
    """Does nothing."""


def sigterm(_: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    signal.signal(signal.SIGTERM, unhandled)  # an export that does not handle it would otherwise end the tests
    monkeypatch.setattr(parity, "check", lambda *_: signal.raise_signal(signal.SIGTERM))


def a_full_disk(_: Path, __: pytest.MonkeyPatch) -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))


@pytest.mark.parametrize(
    ("fails", "says"),
    [
        (a_defect, "The exported model does not compute what PyTorch does: its fingerprint"),
        (a_broken_configuration, "is not a model configuration"),
        (control_c, "Interrupted; the repository is unchanged."),
        (sigterm, "Interrupted; the repository is unchanged."),
        (a_full_disk, "The export needs 11 MB in .* and a limit stops it (File too large)"),
    ],
)
def test_an_export_that_fails_leaves_the_old_model_and_is_one_sentence(
    fails: Any, says: str, pair: Path, monkeypatch: pytest.MonkeyPatch, run: Run
) -> None:
    arguments = ["--model", str(TINY_CLIP), "--pretrained", "random:1", "--towers", "image", "--repository", str(pair)]
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    fails(pair, monkeypatch)
    before = contents(pair)
    try:
        last = run(main, *arguments, code=1).err.splitlines()[-1]
        assert signal.getsignal(signal.SIGTERM) in (unhandled, signal.SIG_DFL)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
    assert all(part in last for part in says.split(".*"))
    assert contents(pair) == before


STAGED = """
import sys
from pathlib import Path
from preprocess_ensemble.export.atomic_install import staging_directory

with staging_directory(Path(sys.argv[1]), 0) as stage:
    (stage / "model.onnx").touch()
    print("staged", flush=True)
    sys.stdin.read()
"""


def test_a_killed_export_leaves_the_old_model_and_the_next_one_cleans_up(image_only: Path) -> None:
    before = contents(image_only)
    with python("-c", STAGED, str(image_only / "clip_encoder")) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "staged\n"
        with pytest.raises(ReportedError, match="Another export"):
            export(image_only, text=False, force=True)
        process.kill()
    assert len(list(image_only.glob("clip_encoder/.staging-*"))) == 1, "a killed process cannot clean up"
    export(image_only, text=False, force=True)
    assert contents(image_only) == before


def test_space_is_asked_for_before_work_begins(tmp_path: Path) -> None:
    refused = pytest.raises(ReportedError, match=r"needs 1000000000 MB in .* and \d+ MB are free")
    with refused, atomic_install.staging_directory(tmp_path, 10**15):
        raise AssertionError("there is no such disk")
    with atomic_install.staging_directory(tmp_path, 1) as stage:
        assert stage.is_dir()


class Killed(BaseException):
    """Ends an export as a kill would: no handler of ours catches it."""


@contextmanager
def killed_after(moves: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    def move(source: Path, target: Path) -> None:
        nonlocal moves
        if not moves:
            raise Killed
        moves -= 1
        os.rename(source, target)

    with monkeypatch.context() as patch, suppress(Killed):
        patch.setattr(os, "replace", move)
        yield


@pytest.mark.parametrize("adds", [True, False])
def test_an_installation_that_is_killed_anywhere_has_no_marker_that_lies(
    adds: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The marker lists the files and what is in them."""

    for moves in range(6):
        folder = tmp_path / str(moves)
        old, new = {"image": "old"}, {"image": "old" if adds else "new", "text": "new", "tokens": "new"}
        for name, content in ((old, folder / "installed"), (new, folder / "staged")):
            content.mkdir(parents=True)
            for file, text in {**name, "marker": json.dumps(name)}.items():
                (content / file).write_text(text)
        files = {folder / "staged" / name: folder / "installed" / name for name in new if name not in old or not adds}
        marker = (folder / "staged" / "marker", folder / "installed" / "marker")
        with killed_after(moves, monkeypatch):
            atomic_install.install(files, {}, [], marker, adds=adds)
        assert marker[1].exists() == (adds or moves > len(files))
        named = json.loads(marker[1].read_text()) if marker[1].exists() else {}
        assert all((marker[1].parent / name).read_text() == text for name, text in named.items())
        if moves > len(files):
            assert named == new
            break


@pytest.mark.parametrize("moves", [1, 7])
def test_a_killed_export_of_a_text_tower_leaves_the_image_tower(
    moves: int, image_only: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, files = installed(image_only), contents(image_only)
    with killed_after(moves, monkeypatch):
        export(image_only)
    assert installed(image_only) == before
    assert {name: data for name, data in contents(image_only).items() if name in files} == files
    assert export(image_only, text=False) == before
    assert contents(image_only) == files, "what was left is gone"
