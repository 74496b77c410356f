"""The runtime that is chosen on each kind of processor, and OpenVINO, which may take the place of ONNX Runtime."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from preprocess_ensemble.contract import DEFAULT_NAMES, EMBEDDING, FINGERPRINT, PIXELS, STATUS, TOKENS, Precision
from preprocess_ensemble.export.parity import canary_image
from preprocess_ensemble.export.tokenizer_files import write_tokenizer
from preprocess_ensemble.imaging.transform import PreprocessConfig
from preprocess_ensemble.model_repository.config import version_directory
from preprocess_ensemble.model_repository.passport import Canary, Passport
from preprocess_ensemble.runtimes.agreement import lowest_cosine, sample_pixels
from preprocess_ensemble.runtimes.model import OpenModel, RuntimeUnusable, parse_precision
from preprocess_ensemble.runtimes.onnx_session import open_session
from preprocess_ensemble.runtimes.openvino_model import open_openvino
from preprocess_ensemble.runtimes.processor import Processor, row_of
from preprocess_ensemble.runtimes.selection import Selection, select
from tests.fixtures.models.exports import installed
from tests.fixtures.models.passports import PASSPORT, WITH_TEXT
from tests.paths import ROOT

PREPROCESS = PreprocessConfig(size=(8, 8), mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5)).to_mapping()
CLIP = replace(PASSPORT, preprocess=PREPROCESS, canary=Canary(image=canary_image(), vector=(0.6, -0.8)))

Vectors = Callable[[np.ndarray[Any, Any]], np.ndarray[Any, Any]]
ZEN_3 = "AuthenticAMD", "avx2"
ZEN_4 = "AuthenticAMD", "avx2 avx512f avx512_bf16"
SAPPHIRE_RAPIDS = "GenuineIntel", "avx2 avx512f avx512_bf16 amx_bf16"
COOPER_LAKE = "GenuineIntel", "avx2 avx512f avx512_bf16"
SKYLAKE = "GenuineIntel", "avx2 avx512f"


def processor(kind: tuple[str, str]) -> Processor:
    return Processor(vendor=kind[0], flags=frozenset(kind[1].split()))


@dataclass
class Scripted:
    """A session whose vectors (N, 2) depend on the mean of each row; ``change`` makes others of them."""

    change: Vectors = lambda vectors: vectors
    fingerprint: tuple[int, int] = CLIP.fingerprint
    nan: bool = True

    def run(
        self, output_names: Sequence[str], input_feed: Mapping[str, Any], run_options: Any = None, /
    ) -> list[np.ndarray[Any, Any]]:
        rows, status = input_feed[PIXELS if PIXELS in input_feed else TOKENS], input_feed[STATUS]
        angles = rows.reshape(len(rows), -1).mean(axis=1) / 100
        vectors = self.change(np.stack([np.cos(angles), np.sin(angles)], axis=1)).astype(np.float32)
        vectors[(status[:, 0] != 0) & self.nan] = np.nan
        outputs = {EMBEDDING: vectors, FINGERPRINT: np.tile(np.array(self.fingerprint, np.int32), (len(rows), 1))}
        return [outputs[name] for name in output_names]


def turned(angle: float) -> Vectors:
    """Rows turned by this many radians, so that their cosine to the originals is ``cos(angle)``."""
    return lambda vectors: (
        vectors @ np.array([[np.cos(angle), np.sin(angle)], [-np.sin(angle), np.cos(angle)]], np.float32)
    )


class Machine:
    """A processor on which OpenVINO runs ``session``, or raises it; it keeps in which precisions it was opened."""

    def __init__(self, kind: tuple[str, str] = ZEN_4, session: Scripted | Exception | None = None) -> None:
        self.processor = processor(kind)
        self.session = session or Scripted(turned(0.005))
        self.reference = OpenModel(session=Scripted(), runtime="ONNX Runtime 1", compute_precision="fp32")
        self.opened: list[str] = []

    def open_openvino(self, precision: str) -> OpenModel:
        self.opened.append(precision)
        if isinstance(self.session, Exception):
            raise self.session
        return OpenModel(session=self.session, runtime="OpenVINO 2", compute_precision=precision)

    def select(self, precision: Precision = "auto", **changes: Any) -> Selection:
        reference, passport = changes.pop("reference", self.reference), changes.pop("passport", CLIP)
        return select(reference, passport, precision, self.open_openvino, processor=self.processor, **changes)


def alone_right(vectors: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return vectors if len(vectors) == 1 else turned(0.1)(vectors)


@pytest.mark.parametrize(
    ("kind", "runs", "says"),
    [
        (ZEN_4, "OpenVINO 2, bf16", "the fastest on AMD with avx512_bf16"),
        (SAPPHIRE_RAPIDS, "OpenVINO 2, bf16", "the fastest on Intel with amx_bf16"),
        (COOPER_LAKE, "OpenVINO 2, fp32", "the fastest on Intel with avx512_bf16"),
        (ZEN_3, "ONNX Runtime 1, fp32", "the fastest on AMD with avx2"),
        (SKYLAKE, "ONNX Runtime 1, fp32", "no other runtime was measured"),
        (("", ""), "ONNX Runtime 1, fp32", "no other runtime was measured"),
        (("HygonGenuine", "avx512_bf16"), "ONNX Runtime 1, fp32", "no other runtime was measured"),
    ],
)
def test_the_table_says_what_runs_a_model(kind: tuple[str, str], runs: str, says: str) -> None:
    machine = Machine(kind)
    selection = machine.select()
    assert (str(selection.model), selection.disagrees) == (runs, False)
    assert says in selection.reason
    assert len(str(selection)) < 120, "the rates are in clip-client doctor"
    assert ("cosine to fp32 on this processor at least 0.99998" in selection.reason) == runs.startswith("OpenVINO")
    assert machine.opened == ([runs[-4:]] if runs.startswith("OpenVINO") else []), "nothing else is opened"


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("processor\t: 0\nvendor_id\t: AuthenticAMD\nflags\t\t: avx2 avx512_bf16\n\nprocessor\t: 1\n", ZEN_4),
        ("vendor_id\t: GenuineIntel\nflags\t\t: avx2\nbugs\t: amx_bf16\n", None),
        ("Features\t: bf16\n", None),
        (None, None),
    ],
    ids=["AMD", "Intel", "ARM", "not Linux"],
)
def test_the_processor_is_read_from_linux(text: str | None, kind: tuple[str, str] | None, tmp_path: Path) -> None:
    file = tmp_path / "cpuinfo"
    if text is not None:
        file.write_text(text)
    found = Processor.here(file)
    assert row_of(found) == (None if kind is None else row_of(processor(kind)))
    assert found.has_bf16 == (kind is ZEN_4)


def test_the_text_tower_is_checked_with_texts(tmp_path: Path) -> None:
    config, digests = write_tokenizer(tmp_path, {"context_length": 16})
    assert WITH_TEXT.text is not None
    text = replace(WITH_TEXT.text, tokenizer=asdict(config), tokenizer_sha256=digests)
    reference = OpenModel(
        session=Scripted(fingerprint=text.fingerprint), runtime="ONNX Runtime 1", compute_precision="fp32"
    )
    tower: dict[str, Any] = {"passport": replace(CLIP, text=text), "tokenizer": tmp_path, "reference": reference}
    right = Machine(session=Scripted(turned(0.005), text.fingerprint))
    assert right.select(**tower).model.compute_precision == "bf16"
    for wrong in ({"change": turned(0.1)}, {"change": alone_right}, {"nan": False}, {"fingerprint": CLIP.fingerprint}):
        settings: dict[str, Any] = {"fingerprint": text.fingerprint, **wrong}
        assert Machine(session=Scripted(**settings)).select(**tower).disagrees
    (tmp_path / "tokenizer.json").write_text("{}")
    assert "not the file that was exported" in right.select(**tower).reason


def test_fp32_that_was_asked_for_opens_nothing_else() -> None:
    machine = Machine(ZEN_4)
    assert str(machine.select("fp32")) == "ONNX Runtime 1, fp32 (fp32 was asked for)"
    assert machine.opened == []


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"change": turned(0.02)}, "cosine of 0.9998"),
        ({"change": alone_right}, "cosine of 0.995"),
        ({"change": lambda vectors: vectors * np.float32(1.01)}, "cosine of nan"),
        ({"change": lambda vectors: vectors * np.float32(np.nan)}, "cosine of nan"),
        ({"nan": False}, "not all NaN"),
        ({"fingerprint": (7, 7)}, "fingerprint"),
        ({"change": lambda vectors: vectors[99]}, "it cannot run the model (index 99 is out of bounds"),
    ],
)
def test_a_runtime_that_disagrees_is_not_used(settings: dict[str, Any], says: str) -> None:
    machine = Machine(session=Scripted(**settings))
    selection = machine.select()
    assert selection.model is machine.reference
    assert selection.disagrees, "which is a warning in the log"
    assert says in selection.reason


def test_a_runtime_that_is_not_there_is_not_missed() -> None:
    machine = Machine(session=RuntimeUnusable("it is not installed"))
    selection = machine.select()
    assert (selection.model, selection.disagrees) == (machine.reference, False)
    assert selection.reason == "not on OpenVINO bf16: it is not installed"


@pytest.mark.parametrize(
    ("reference", "passport"),
    [
        ("int8", replace(CLIP, weights_dtype="int8")),
        ("fp16", replace(CLIP, weights_dtype="fp16")),
        ("", CLIP),
        ("", None),
    ],
    ids=["int8", "fp16", "GPU", "not CLIP"],
)
def test_other_precisions_need_an_fp32_export_on_a_cpu(reference: str, passport: Passport | None) -> None:
    machine = Machine()
    changed = replace(machine.reference, compute_precision=reference)
    for precision in ("auto", "fp32"):
        selection = machine.select(parse_precision(precision), reference=changed, passport=passport)
        assert (selection.model, machine.opened) == (changed, [])
        assert "need an fp32 export" in selection.reason


@pytest.fixture(scope="module")
def model(tiny_repository: Path) -> Path:
    return version_directory(tiny_repository) / "model.onnx"


@pytest.fixture
def passport(tiny_repository: Path) -> Passport:
    return installed(tiny_repository)


def test_fp32_has_the_vectors_of_onnx_runtime(model: Path, passport: Passport) -> None:
    opened = open_openvino(model, compute_precision="fp32", threads=1)
    assert opened.runtime.startswith("OpenVINO 20")
    assert lowest_cosine(opened.session, open_session(model), passport) > 0.999999


def test_batches_of_all_sizes_have_nan_for_failed_rows_and_keep_their_results(model: Path, passport: Passport) -> None:
    session = open_openvino(model, compute_precision="fp32").session
    pictures = sample_pixels(*passport.preprocess["size"])
    kept = []
    for rows in (1, 3, 8, 3):
        status = np.zeros((rows, 1), np.int32)
        status[-1] = 5
        fingerprints, vectors = session.run([FINGERPRINT, EMBEDDING], {PIXELS: pictures[:rows], STATUS: status})
        assert (vectors.shape, vectors.dtype.name) == ((rows, passport.dimension), "float32")
        assert np.isnan(vectors).all(axis=1).tolist() == [False] * (rows - 1) + [True]
        np.testing.assert_array_equal(fingerprints, [passport.fingerprint] * rows)
        kept.append((vectors, vectors.copy()))
    for vectors, copied in kept:
        np.testing.assert_array_equal(vectors, copied, "a later run overwrites nothing")


def test_bf16_is_refused_or_agrees(model: Path, passport: Passport) -> None:
    if not Processor.here().has_bf16:
        with pytest.raises(RuntimeUnusable, match="computes in f32 on this processor, not in bf16"):
            open_openvino(model, compute_precision="bf16")
        return
    opened = open_openvino(model, compute_precision="bf16")
    assert 0.9999 <= lowest_cosine(opened.session, open_session(model), passport) < 0.9999999


@pytest.mark.parametrize("compute_precision", ["fp32", "bf16"])
def test_texts_have_the_vectors_of_onnx_runtime(tiny_pair_repository: Path, compute_precision: str) -> None:
    if compute_precision == "bf16" and not Processor.here().has_bf16:
        pytest.skip("this processor has no bf16")
    file = version_directory(tiny_pair_repository, DEFAULT_NAMES.text_encoder) / "model.onnx"
    tokenizer = version_directory(tiny_pair_repository, DEFAULT_NAMES.tokenize)
    opened = open_openvino(file, compute_precision=compute_precision)
    assert lowest_cosine(opened.session, open_session(file), installed(tiny_pair_repository), tokenizer) >= 0.9999


def test_what_cannot_be_loaded_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RuntimeUnusable, match="OpenVINO cannot load the model \\("):
        open_openvino(tmp_path / "missing.onnx", compute_precision="fp32")
    monkeypatch.setitem(sys.modules, "openvino", None)
    with pytest.raises(RuntimeUnusable, match="the package openvino cannot be imported"):
        open_openvino(tmp_path / "missing.onnx", compute_precision="fp32")


def test_openvino_sends_nothing(model: Path, tmp_path: Path) -> None:
    """The adapter's guard stops ``import openvino`` from reporting itself to Google Analytics from a thread."""
    script = f"""
import sys, threading
from pathlib import Path
from typing import TYPE_CHECKING
def refuse(event, arguments):
    if event.startswith("socket.") or event == "subprocess.Popen":
        print(event, arguments)
        raise RuntimeError(event)
sys.addaudithook(refuse)
from preprocess_ensemble.runtimes.openvino_model import open_openvino
open_openvino(Path({str(model)!r}), compute_precision="fp32")
assert "openvino" in sys.modules
print(sys.modules["openvino_telemetry"], threading.active_count())
"""
    home = {"HOME": str(tmp_path), "PATH": "/usr/bin:/bin"}
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True, env=home
    )
    assert done.stdout.splitlines() == ["None 1"]
    assert list(tmp_path.iterdir()) == [], "its file of a client's id"


@pytest.mark.parametrize(("given", "expected"), [({}, "1"), ({"ORT_DISABLE_TELEMETRY": "0"}, "0")])
def test_onnx_runtime_reports_nothing_unless_a_person_asks_for_it(given: dict[str, str], expected: str) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "ORT_DISABLE_TELEMETRY"}
    command = [sys.executable, "-c", "import clip_client, os; print(os.environ['ORT_DISABLE_TELEMETRY'])"]
    assert subprocess.check_output(command, env={**environment, **given}, text=True).strip() == expected
