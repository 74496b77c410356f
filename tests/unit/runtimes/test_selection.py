"""Which runtime is chosen, with runtimes that return what a test needs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from preprocess_ensemble.contract import EMBEDDING, FINGERPRINT, PIXELS, STATUS
from preprocess_ensemble.export.canary import canary_image
from preprocess_ensemble.imaging.transform import PreprocessConfig
from preprocess_ensemble.model_repository.passport import Canary, Passport
from preprocess_ensemble.runtimes.agreement import REQUIRED_COSINE, Disagreement, check_agreement
from preprocess_ensemble.runtimes.coreml import PROVIDER, coreml
from preprocess_ensemble.runtimes.model import OpenModel, RuntimeUnusable
from preprocess_ensemble.runtimes.precision import PrecisionUnknown, parse_precision, precision_of_environment
from preprocess_ensemble.runtimes.selection import Candidate, openvino_bf16, select
from tests.fixtures.models.passports import PASSPORT

PREPROCESS = PreprocessConfig(size=(8, 8), mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5)).to_mapping()
CLIP: Passport = replace(PASSPORT, preprocess=PREPROCESS, canary=Canary(image=canary_image(), vector=(0.6, -0.8)))

Vectors = Callable[[np.ndarray[Any, Any]], np.ndarray[Any, Any]]


class Scripted:
    """A session whose vectors (N, 2) depend on the mean of each picture; ``change`` makes others of them."""

    def __init__(
        self,
        change: Vectors = lambda vectors: vectors,
        fingerprint: tuple[int, int] = CLIP.fingerprint,
        nan: bool = True,
    ) -> None:
        self.change, self.fingerprint, self.nan = change, fingerprint, nan
        self.rows: list[int] = []

    def run(self, output_names: Sequence[str], input_feed: Mapping[str, Any], /) -> list[np.ndarray[Any, Any]]:
        pixels, status = input_feed[PIXELS], input_feed[STATUS]
        self.rows.append(len(pixels))
        angles = pixels.mean(axis=(1, 2, 3)) / 100
        vectors = self.change(np.stack([np.cos(angles), np.sin(angles)], axis=1)).astype(np.float32)
        vectors[(status[:, 0] != 0) & self.nan] = np.nan
        outputs = {EMBEDDING: vectors, FINGERPRINT: np.tile(np.array(self.fingerprint, np.int32), (len(pixels), 1))}
        return [outputs[name] for name in output_names]


def turned(angle: float) -> Vectors:
    """Rows turned by this many radians, so that their cosine to the originals is ``cos(angle)``."""
    return lambda vectors: (
        vectors @ np.array([[np.cos(angle), np.sin(angle)], [-np.sin(angle), np.cos(angle)]], np.float32)
    )


def alone_right(vectors: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return vectors if len(vectors) == 1 else turned(0.1)(vectors)


REFERENCE = OpenModel(session=Scripted(), runtime="ONNX Runtime 1", precision="fp32")


def candidate(session: Scripted | None = None, *, error: Exception | None = None) -> Candidate:
    def open_model() -> OpenModel:
        if error is not None:
            raise error
        return OpenModel(session=session or Scripted(turned(0.005)), runtime="OpenVINO 2", precision="bf16")

    return Candidate(precision="bf16", open=open_model)


def never() -> Candidate:
    return candidate(error=AssertionError("opened"))


def test_a_runtime_that_agrees_takes_the_place_of_fp32() -> None:
    for precision in ("auto", "bf16"):
        selection = select(REFERENCE, CLIP, parse_precision(precision), [candidate()])
        assert str(selection.model) == "OpenVINO 2, bf16"
        assert str(selection) == "OpenVINO 2, bf16 (cosine to fp32 on this processor at least 0.999987)"
        assert not selection.disagrees


def test_fp32_opens_nothing_else() -> None:
    selection = select(REFERENCE, CLIP, "fp32", [never()])
    assert (selection.model, str(selection)) == (REFERENCE, "ONNX Runtime 1, fp32 (fp32 was asked for)")


@pytest.mark.parametrize(
    ("session", "says"),
    [
        (Scripted(turned(0.02)), "cosine of 0.9998"),
        (Scripted(alone_right), "cosine of 0.995"),
        (Scripted(lambda vectors: vectors * np.float32(1.01)), "cosine of nan"),
        (Scripted(lambda vectors: vectors * np.float32(np.nan)), "cosine of nan"),
        (Scripted(nan=False), "not all NaN"),
        (Scripted(fingerprint=(7, 7)), "fingerprint"),
    ],
)
def test_a_runtime_that_disagrees_is_not_used(session: Scripted, says: str) -> None:
    selection = select(REFERENCE, CLIP, "auto", [candidate(session)])
    assert selection.model is REFERENCE
    assert selection.disagrees
    assert says in selection.reason
    with pytest.raises(RuntimeUnusable, match=says):
        select(REFERENCE, CLIP, "bf16", [candidate(session)])


def test_a_runtime_that_fails_to_run_is_not_used() -> None:
    def fail(_: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        raise MemoryError("no memory")

    selection = select(REFERENCE, CLIP, "auto", [candidate(Scripted(fail))])
    assert selection.model is REFERENCE
    assert selection.disagrees
    assert "no memory" in selection.reason


def test_a_runtime_that_is_not_there_is_not_missed() -> None:
    selection = select(REFERENCE, CLIP, "auto", [candidate(error=RuntimeUnusable("it is not installed"))])
    assert (selection.model, selection.disagrees) == (REFERENCE, False)
    assert "it is not installed" in selection.reason
    with pytest.raises(RuntimeUnusable, match="not installed"):
        select(REFERENCE, CLIP, "bf16", [candidate(error=RuntimeUnusable("it is not installed"))])


def test_the_next_candidate_is_tried() -> None:
    gone = candidate(error=RuntimeUnusable("gone"))
    assert select(REFERENCE, CLIP, "auto", [gone, candidate()]).model.runtime == "OpenVINO 2"
    coreml_only = replace(never(), precision="CoreML")
    assert select(REFERENCE, CLIP, "bf16", [coreml_only, candidate()]).model.runtime == "OpenVINO 2"


@pytest.mark.parametrize(
    ("reference", "passport"),
    [
        (replace(REFERENCE, precision="int8"), replace(CLIP, precision="int8")),
        (replace(REFERENCE, precision="fp16"), replace(CLIP, precision="fp16")),
        (replace(REFERENCE, precision=""), CLIP),
        (replace(REFERENCE, precision=""), None),
    ],
    ids=["int8", "fp16", "GPU", "not CLIP"],
)
def test_only_fp32_exports_on_a_cpu_have_another_precision(reference: OpenModel, passport: Passport | None) -> None:
    for precision in ("auto", "fp32"):
        selection = select(reference, passport, parse_precision(precision), [never()])
        assert selection.model is reference
        assert "only fp32 exports" in selection.reason
    with pytest.raises(RuntimeUnusable, match="only fp32 exports"):
        select(reference, passport, "bf16", [never()])


def test_the_check_embeds_the_canary_alone_and_a_larger_batch() -> None:
    session = Scripted()
    assert check_agreement(session, Scripted(), CLIP) == pytest.approx(1.0)
    assert session.rows == [1, 10]


def test_the_cosine_that_is_required_is_the_limit() -> None:
    angle = float(np.arccos(REQUIRED_COSINE))
    assert check_agreement(Scripted(turned(0.99 * angle)), Scripted(), CLIP) >= REQUIRED_COSINE
    with pytest.raises(Disagreement):
        check_agreement(Scripted(turned(1.01 * angle)), Scripted(), CLIP)


def test_openvino_is_not_imported_for_a_processor_without_bf16(tmp_path: Path) -> None:
    slow = openvino_bf16(tmp_path / "model.onnx", threads=0, is_fast=lambda: False)
    with pytest.raises(RuntimeUnusable, match="neither avx512_bf16 nor amx_bf16"):
        slow.open()


def test_coreml_is_used_where_onnx_runtime_has_it() -> None:
    opened: list[Any] = []

    def open_session(*arguments: Any, **options: Any) -> Scripted:
        opened.append((arguments, options))
        return Scripted()

    file = Path("model.onnx")
    mac = coreml(file, available=[PROVIDER, "CPUExecutionProvider"], open_session=open_session)
    assert "CoreML" in str(select(REFERENCE, CLIP, "auto", [mac]))
    assert opened[0][1]["providers"][0][0] == PROVIDER
    for other in (
        coreml(file, available=["CPUExecutionProvider"], open_session=open_session),
        coreml(file, available=[PROVIDER], open_session=lambda *_, **__: Scripted(turned(0.1))),
    ):
        assert select(REFERENCE, CLIP, "auto", [other]).model is REFERENCE


def test_the_environment_names_a_precision() -> None:
    assert precision_of_environment({}) is None
    assert precision_of_environment({"CLIP_PRECISION": ""}) is None
    assert precision_of_environment({"CLIP_PRECISION": "bf16"}) == "bf16"
    with pytest.raises(PrecisionUnknown, match="CLIP_PRECISION must be auto, fp32 or bf16, not 'fp64'"):
        precision_of_environment({"CLIP_PRECISION": "fp64"})
