"""Export of a small seeded CLIP: what is written, what the parity check rejects, and what an interruption leaves."""

from __future__ import annotations

import io
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import onnx
import pytest
from PIL import Image

from benchmarks.fixtures.server import TINY_CLIP
from preprocess_ensemble.errors import ReportedError
from preprocess_ensemble.export import command as export_command
from preprocess_ensemble.export import exporter, parity
from preprocess_ensemble.export.atomic_install import require_space
from preprocess_ensemble.export.model_source import ExportError
from preprocess_ensemble.imaging.transform import PreprocessConfig
from preprocess_ensemble.model_repository.config import installed_passport
from preprocess_ensemble.runtimes.agreement import checked_vectors, sample_pixels
from preprocess_ensemble.runtimes.onnx_session import open_session
from tests.paths import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from preprocess_ensemble.model_repository.passport import Passport


def export_tiny(repository: Path, seed: int = 0, **options: Any) -> Passport:
    return exporter.export_model(model=str(TINY_CLIP), pretrained=f"random:{seed}", repository=repository, **options)


def contents(repository: Path) -> dict[str, bytes]:
    files = (path for path in repository.rglob("*") if path.is_file())
    return {str(path.relative_to(repository)): path.read_bytes() for path in files}


@pytest.fixture(scope="module")
def repository(tiny_pair_repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository with both towers of the small model, seed 0; tests here only add to it what they take away again."""
    directory = tmp_path_factory.mktemp("export") / "models"
    shutil.copytree(tiny_pair_repository, directory)
    return directory


@pytest.fixture
def unchanged(repository: Path) -> Callable[[], None]:
    before = contents(repository)

    def check() -> None:
        assert contents(repository) == before

    return check


def test_the_file_is_readable_for_the_oldest_server(repository: Path) -> None:
    model = onnx.load(str(repository / "clip_encoder" / "1" / "model.onnx"))
    assert model.ir_version == 8
    assert [(opset.domain, opset.version) for opset in model.opset_import] == [("", 17)]
    assert [tensor.name for tensor in model.graph.input] == ["pixels", "status"]
    assert [tensor.name for tensor in model.graph.output] == ["embedding", "fingerprint"]


def test_vectors_are_those_of_pytorch_at_any_batch_size(repository: Path) -> None:
    import torch

    network = exporter.load_model(str(TINY_CLIP), "random:0")
    passport = installed_passport(repository)
    assert passport is not None
    session = open_session(repository / "clip_encoder" / "1" / "model.onnx")
    pixels = np.random.default_rng(7).integers(0, 256, (5, 224, 224, 3), np.uint8)
    mean, std = (torch.tensor(network.visual.preprocess_cfg[key]) for key in ("mean", "std"))  # type: ignore[union-attr, index]
    with torch.inference_mode():
        images = ((torch.from_numpy(pixels) / 255 - mean) / std).permute(0, 3, 1, 2)
        expected = network.encode_image(images, normalize=True).numpy()  # type: ignore[operator]
    for count in (1, 2, 5):
        vectors = checked_vectors(session, pixels[:count], passport.fingerprint)
        assert (vectors * expected[:count]).sum(axis=1).min() > 0.999999


def test_a_failed_row_is_nan_and_touches_no_other(repository: Path) -> None:
    session = open_session(repository / "clip_encoder" / "1" / "model.onnx")
    pixels, status = sample_pixels(224, 224), np.zeros((8, 1), np.int32)
    outputs = ["embedding", "fingerprint"]
    good, fingerprints = session.run(outputs, {"pixels": pixels, "status": status})
    status[[0, 5], 0] = 4, -1
    vectors, _ = session.run(outputs, {"pixels": pixels, "status": status})
    assert np.isnan(vectors[[0, 5]]).all()
    kept = [1, 2, 3, 4, 6, 7]
    np.testing.assert_array_equal(vectors[kept], good[kept])
    passport = installed_passport(repository)
    assert passport is not None
    np.testing.assert_array_equal(fingerprints, [passport.fingerprint] * 8)


def test_the_passport_tells_what_was_exported(repository: Path) -> None:
    passport = installed_passport(repository)
    assert passport is not None
    assert (passport.model, passport.pretrained, passport.dimension) == ("tiny_clip", "random:0", 512)
    assert passport.id == f"tiny_clip/random:0@{passport.weights_sha256[:8]}"
    assert passport.preprocess_id == "shortest-bicubic-224x224"
    assert passport.parity.min_cosine >= 0.999999


def test_the_canary_is_open_clips_own_vector(repository: Path) -> None:
    import open_clip
    import torch

    passport = installed_passport(repository)
    assert passport is not None
    network = exporter.load_model(str(TINY_CLIP), "random:0")
    transform = open_clip.transform.image_transform_v2(
        open_clip.transform.PreprocessCfg(**open_clip.get_model_preprocess_cfg(network)), is_train=False
    )
    with torch.inference_mode():
        image = transform(Image.open(io.BytesIO(passport.canary.image)))[None]
        expected = network.encode_image(image, normalize=True)[0].numpy()  # type: ignore[operator]
    assert expected @ np.array(passport.canary.vector) > 0.999999


def test_a_second_export_does_nothing_unless_forced(repository: Path, unchanged: Callable[[], None]) -> None:
    model = repository / "clip_encoder" / "1" / "model.onnx"
    inode = model.stat().st_ino
    said: list[str] = []
    export_tiny(repository, report=said.append)
    assert model.stat().st_ino == inode
    assert "installed already" in said[-1]
    export_tiny(repository, force=True)
    assert model.stat().st_ino != inode
    unchanged()


def test_the_same_weights_from_a_file_are_the_same_model(repository: Path, tmp_path: Path) -> None:
    import torch

    checkpoint = tmp_path / "weights.pt"
    torch.save(exporter.load_model(str(TINY_CLIP), "random:0").state_dict(), checkpoint)
    passport = exporter.export_model(model=str(TINY_CLIP), pretrained=str(checkpoint), repository=tmp_path / "models")
    random = installed_passport(repository)
    assert random is not None
    assert passport.pretrained == "file:weights.pt"
    assert (passport.fingerprint, passport.weights_sha256) == (random.fingerprint, random.weights_sha256)
    assert export_tiny(tmp_path / "models", seed=1).fingerprint != random.fingerprint


def test_another_size_changes_the_configuration(tmp_path: Path) -> None:
    config = json.loads(TINY_CLIP.read_text())
    config["embed_dim"] = 256
    config["vision_cfg"]["image_size"] = 256
    model = tmp_path / "tiny_256.json"
    model.write_text(json.dumps(config))
    repository = tmp_path / "models"
    export_tiny(repository)
    passport = exporter.export_model(model=str(model), pretrained="random", repository=repository)
    assert passport.preprocess["size"] == [256, 256]
    encoder = (repository / "clip_encoder" / "config.pbtxt").read_text()
    assert "dims: [256, 256, 3]" in encoder
    assert "224" not in encoder
    assert "dims: [256]" in (repository / "clip_image" / "config.pbtxt").read_text()


def test_large_weights_go_to_a_file_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exporter, "_MAX_FILE_BYTES", 1_000_000)
    directory = tmp_path / "clip_encoder" / "1"
    export_tiny(tmp_path, seed=1)
    old = {path.name for path in directory.iterdir()}
    passport = export_tiny(tmp_path, seed=0)
    new = {path.name for path in directory.iterdir()}
    assert len(old) == len(new) == 3
    assert len(old & new) == 2, "the old weights are gone"
    assert len({path.stat().st_mode for path in directory.iterdir()}) == 1, "every file has the same mode"
    checked_vectors(open_session(directory / "model.onnx"), sample_pixels(224, 224), passport.fingerprint)


def change_output(model: onnx.ModelProto, name: str, *nodes: onnx.NodeProto) -> None:
    """Let ``nodes`` compute output ``name`` from what the graph computes today, under the name "good"."""
    for node in model.graph.node:
        node.output[:] = ["good" if output == name else output for output in node.output]
        node.input[:] = ["good" if given == name else given for given in node.input]
    model.graph.node.extend(nodes)


def add_constant(model: onnx.ModelProto, name: str, value: Any) -> None:
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.array(value), name))


def swap_channels(model: onnx.ModelProto) -> None:
    for node in model.graph.node:
        node.input[:] = ["swapped" if given == "pixels" else given for given in node.input]
    add_constant(model, "bgr", [2, 1, 0])
    model.graph.node.insert(0, onnx.helper.make_node("Gather", ["pixels", "bgr"], ["swapped"], axis=3))


def forget_the_norm(model: onnx.ModelProto) -> None:
    add_constant(model, "length", np.float32(1.01))
    change_output(model, "embedding", onnx.helper.make_node("Mul", ["good", "length"], ["embedding"]))


def zero_instead_of_nan(model: onnx.ModelProto) -> None:
    add_constant(model, "none", np.float32(0))
    change_output(
        model,
        "embedding",
        onnx.helper.make_node("IsNaN", ["good"], ["failed"]),
        onnx.helper.make_node("Where", ["failed", "none", "good"], ["embedding"]),
    )


def leak_into_neighbours(model: onnx.ModelProto) -> None:
    add_constant(model, "little", np.float32(1e-4))
    change_output(
        model,
        "embedding",
        onnx.helper.make_node("Cast", ["status"], ["numbers"], to=onnx.TensorProto.FLOAT),
        onnx.helper.make_node("ReduceSum", ["numbers"], ["total"], keepdims=1),
        onnx.helper.make_node("Mul", ["total", "little"], ["leak"]),
        onnx.helper.make_node("Add", ["good", "leak"], ["embedding"]),
    )


def another_fingerprint(model: onnx.ModelProto) -> None:
    add_constant(model, "one", np.int32(1))
    change_output(model, "fingerprint", onnx.helper.make_node("Add", ["good", "one"], ["fingerprint"]))


DEFECTS: Final[dict[Callable[[onnx.ModelProto], None], str]] = {
    swap_channels: "cosine of 0",
    forget_the_norm: "cosine of nan",
    zero_instead_of_nan: "not all NaN",
    leak_into_neighbours: "neighbours",
    another_fingerprint: "fingerprint",
}


def test_a_graph_with_a_defect_fails_the_check(repository: Path) -> None:
    passport = installed_passport(repository)
    assert passport is not None
    good = (repository / "clip_encoder" / "1" / "model.onnx").read_bytes()
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


def test_a_model_that_fails_the_check_is_not_installed(
    repository: Path, unchanged: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    def open_defective(file: Path, options: Any) -> Any:
        model = onnx.load(str(file))
        another_fingerprint(model)
        return open_session(model.SerializeToString(), options)

    monkeypatch.setattr(parity, "open_session", open_defective)
    with pytest.raises(ExportError, match="fingerprint"):
        export_tiny(repository, force=True)
    unchanged()


def test_a_broken_configuration_is_found_before_anything_changes(repository: Path) -> None:
    config = repository / "clip_image" / "config.pbtxt"
    text = config.read_text()
    config.write_text("no configuration")
    before = contents(repository)
    try:
        with pytest.raises(ReportedError, match="is not a model configuration"):
            export_tiny(repository, seed=1)
        assert contents(repository) == before
    finally:
        config.write_text(text)


def test_control_c_leaves_the_old_model(
    repository: Path,
    unchanged: Callable[[], None],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(parity, "check", lambda *_: signal.raise_signal(signal.SIGINT))
    arguments = ["--model", str(TINY_CLIP), "--pretrained", "random:1", "--repository", str(repository)]
    assert export_command.main(arguments) == 1
    assert "Interrupted" in capsys.readouterr().err
    unchanged()


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


def python(*arguments: str, **variables: str) -> subprocess.Popen[str]:
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen([sys.executable, *arguments], cwd=ROOT, env=os.environ | variables, text=True, **pipes)


@pytest.mark.timeout(180)
def test_a_killed_export_leaves_the_old_model_and_the_next_one_cleans_up(
    repository: Path, unchanged: Callable[[], None]
) -> None:
    with python("-c", KILLED, str(TINY_CLIP), str(repository)) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "at the check\n"
        with pytest.raises(ReportedError, match="Another export"):
            export_tiny(repository, force=True)
        process.kill()
    left = [path.name for path in (repository / "clip_encoder").glob(".staging-*")]
    assert len(left) == 1, "a killed process cannot clean up"
    passport = installed_passport(repository)
    assert passport is not None
    session = open_session(repository / "clip_encoder" / "1" / "model.onnx")
    checked_vectors(session, sample_pixels(224, 224), passport.fingerprint)
    export_tiny(repository, force=True)
    assert not list((repository / "clip_encoder").glob(".staging-*"))
    unchanged()


def test_a_full_disk_leaves_the_old_model_and_is_one_sentence(
    repository: Path, unchanged: Callable[[], None], capsys: pytest.CaptureFixture[str]
) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, hard))
    try:
        arguments = ["--model", str(TINY_CLIP), "--pretrained", "random:1", "--repository", str(repository)]
        assert export_command.main(arguments) == 1
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("The export needs 66 MB in ")
    assert "a limit stops it (File too large)" in last
    unchanged()


def test_space_is_asked_for_before_work_begins(tmp_path: Path) -> None:
    with pytest.raises(ReportedError, match=r"needs 1000000000 MB in .* and \d+ MB are free"):
        require_space(tmp_path, 10**15)
    require_space(tmp_path, 1)
