"""What the parity check rejects, and what a rejected, interrupted or killed export leaves."""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import onnx
import pytest
from onnx.helper import make_node

from benchmarks.fixtures.server import TINY_CLIP
from preprocess_ensemble.errors import ReportedError
from preprocess_ensemble.export import atomic_install, parity
from preprocess_ensemble.export import command as export_command
from preprocess_ensemble.export.model_source import ExportError
from preprocess_ensemble.imaging.transform import PreprocessConfig
from preprocess_ensemble.model_repository.config import version_directory
from preprocess_ensemble.runtimes.agreement import checked_vectors
from preprocess_ensemble.runtimes.onnx_session import open_session
from tests.fixtures.models.exports import contents, export, installed, python

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


@pytest.fixture(scope="module")
def repository(tiny_pair_repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository with both towers of the small model, seed 0; tests here only add to it what they take away again."""
    directory: Path = shutil.copytree(tiny_pair_repository, tmp_path_factory.mktemp("export") / "models")
    return directory


def change_output(model: onnx.ModelProto, name: str, *nodes: onnx.NodeProto, **constants: Any) -> None:
    """Let ``nodes`` compute output ``name`` from what the graph computes today, under the name "good"."""
    for node in model.graph.node:
        node.output[:] = ["good" if output == name else output for output in node.output]
        node.input[:] = ["good" if given == name else given for given in node.input]
    model.graph.node.extend(nodes)
    for constant, value in constants.items():
        model.graph.initializer.append(onnx.numpy_helper.from_array(np.array(value), constant))


def swap_channels(model: onnx.ModelProto) -> None:
    for node in model.graph.node:
        node.input[:] = ["swapped" if given == "pixels" else given for given in node.input]
    model.graph.node.insert(0, make_node("Gather", ["pixels", "bgr"], ["swapped"], axis=3))
    change_output(model, "no output", bgr=[2, 1, 0])


def forget_the_norm(model: onnx.ModelProto) -> None:
    change_output(model, "embedding", make_node("Mul", ["good", "by"], ["embedding"]), by=np.float32(1.01))


def zero_instead_of_nan(model: onnx.ModelProto) -> None:
    nodes = (
        make_node("IsNaN", ["good"], ["failed"]),
        make_node("Where", ["failed", "none", "good"], ["embedding"]),
    )
    change_output(model, "embedding", *nodes, none=np.float32(0))


def leak_into_neighbours(model: onnx.ModelProto) -> None:
    nodes = (
        make_node("Cast", ["status"], ["numbers"], to=onnx.TensorProto.FLOAT),
        make_node("ReduceSum", ["numbers"], ["total"], keepdims=1),
        make_node("Mul", ["total", "little"], ["leak"]),
        make_node("Add", ["good", "leak"], ["embedding"]),
    )
    change_output(model, "embedding", *nodes, little=np.float32(1e-4))


def another_fingerprint(model: onnx.ModelProto) -> None:
    change_output(model, "fingerprint", make_node("Add", ["good", "one"], ["fingerprint"]), one=np.int32(1))


DEFECTS: Final[dict[Callable[[onnx.ModelProto], None], str]] = {
    swap_channels: "cosine of 0",
    forget_the_norm: "cosine of nan",
    zero_instead_of_nan: "not all NaN",
    leak_into_neighbours: "neighbours",
    another_fingerprint: "fingerprint",
}


def test_a_graph_with_a_defect_fails_the_check(repository: Path) -> None:
    passport = installed(repository)
    good = (version_directory(repository) / "model.onnx").read_bytes()
    pixels = parity.check_pixels(PreprocessConfig.from_mapping(passport.preprocess))
    expected = checked_vectors(open_session(good), pixels, passport.fingerprint)
    parity.check(open_session(good), pixels, expected, passport.fingerprint, "fp32")
    for defect, message in DEFECTS.items():
        model = onnx.load_from_string(good)
        defect(model)
        onnx.checker.check_model(model)
        session = open_session(model.SerializeToString())
        with pytest.raises(ExportError, match=message):
            parity.check(session, pixels, expected, passport.fingerprint, "fp32")


@contextmanager
def a_defect(_: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    def open_defective(file: Path, options: Any) -> Any:
        model = onnx.load(str(file))
        another_fingerprint(model)
        return open_session(model.SerializeToString(), options)

    with monkeypatch.context() as patch:
        patch.setattr(parity, "open_session", open_defective)
        yield


@contextmanager
def a_broken_configuration(repository: Path, _: pytest.MonkeyPatch) -> Iterator[None]:
    config = repository / "clip_image" / "config.pbtxt"
    text = config.read_text()
    config.write_text("no configuration")
    yield
    assert config.read_text() == "no configuration"
    config.write_text(text)


@contextmanager
def control_c(_: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with monkeypatch.context() as patch:
        patch.setattr(parity, "check", lambda *_: signal.raise_signal(signal.SIGINT))
        yield


@contextmanager
def a_full_disk(_: Path, __: pytest.MonkeyPatch) -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, hard))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize(
    ("fails", "says"),
    [
        (a_defect, "The exported model is not what PyTorch computes: its fingerprint"),
        (a_broken_configuration, "is not a model configuration"),
        (control_c, "Interrupted; the repository is unchanged."),
        (a_full_disk, "The export needs 66 MB in .* and a limit stops it (File too large)"),
    ],
)
def test_an_export_that_fails_leaves_the_old_model_and_is_one_sentence(
    fails: Any, says: str, repository: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    before = contents(repository)
    with fails(repository, monkeypatch):
        arguments = ["--model", str(TINY_CLIP), "--pretrained", "random:1", "--repository", str(repository)]
        assert export_command.main(arguments) == 1
    last = capsys.readouterr().err.splitlines()[-1]
    assert all(part in last for part in says.split(".*"))
    assert contents(repository) == before


KILLED = """
import sys
from pathlib import Path
from preprocess_ensemble.export import exporter, parity

def stop(*arguments):
    print("at the check", flush=True)
    sys.stdin.read()

parity.check = stop
exporter.export_model(model=sys.argv[1], pretrained="random:1", repository=Path(sys.argv[2]))
"""


@pytest.mark.timeout(180)
def test_a_killed_export_leaves_the_old_model_and_the_next_one_cleans_up(repository: Path) -> None:
    before = contents(repository)
    with python("-c", KILLED, str(TINY_CLIP), str(repository)) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "at the check\n"
        with pytest.raises(ReportedError, match="Another export"):
            export(repository, force=True)
        process.kill()
    left = [path.name for path in (repository / "clip_encoder").glob(".staging-*")]
    assert len(left) == 1, "a killed process cannot clean up"
    assert {name: data for name, data in contents(repository).items() if ".staging-" not in name} == before
    export(repository, force=True)
    assert contents(repository) == before


def test_space_is_asked_for_before_work_begins(tmp_path: Path) -> None:
    with pytest.raises(ReportedError, match=r"needs 1000000000 MB in .* and \d+ MB are free"):
        atomic_install.require_space(tmp_path, 10**15)
    atomic_install.require_space(tmp_path, 1)


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

    def holds(marker: Path) -> bool:
        named = json.loads(marker.read_text())
        return all((marker.parent / name).read_text() == text for name, text in named.items())

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
        assert not marker[1].exists() or holds(marker[1])
        if moves > len(files):
            assert json.loads(marker[1].read_text()) == new
            break


@pytest.mark.timeout(180)
@pytest.mark.parametrize("moves", [1, 7])
def test_a_killed_export_of_a_text_tower_leaves_the_image_tower(
    moves: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = export(tmp_path, text=False)
    files = contents(tmp_path)
    with killed_after(moves, monkeypatch):
        export(tmp_path)
    assert installed(tmp_path) == before
    assert {name: data for name, data in contents(tmp_path).items() if name in files} == files
    assert export(tmp_path, text=False) == before
    assert contents(tmp_path) == files, "what was left is gone"
