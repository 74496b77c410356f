"""Which runtime is the fastest on this processor, for images and for texts?

ONNX Runtime in fp32, and OpenVINO in fp32 and, where the processor has it, bf16 take turns in one process, with both
towers of the repository. The printed row belongs into the table of ``preprocess_ensemble/runtimes/processor.py``, with
the flag of the processor that decides.
"""

from __future__ import annotations

import statistics
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from benchmarks.experiments.serving.three_way import texts
from benchmarks.harness.experiment import REPOSITORY, Run, experiment, rounds, seconds
from benchmarks.harness.results import median_of, show
from preprocess_ensemble.contract import DEFAULT_NAMES, EMBEDDING, PIXELS, STATUS, TOKENS
from preprocess_ensemble.model_repository.config import version_directory
from preprocess_ensemble.runtimes.agreement import Disagreement, lowest_cosine, samples
from preprocess_ensemble.runtimes.onnx_session import open_session, session_options
from preprocess_ensemble.runtimes.openvino_model import open_openvino
from preprocess_ensemble.runtimes.processor import ONNX_RUNTIME, OPENVINO, OPENVINO_BF16, Processor, Row, row_of

if TYPE_CHECKING:
    from preprocess_ensemble.runtimes.agreement import Rows
    from preprocess_ensemble.runtimes.model import Session

_BATCHES: Final = (1, 8, 32)
"""One caller, some, and a full batch."""
_PAUSE_S: Final = 0.1
"""Rest before a turn: threads of ONNX Runtime spin for 45 ms after a run, on cores that the next session needs."""
_TIE: Final = 1.03
"""Ratio of two rates below which the more exact runtime is named."""


@experiment(REPOSITORY, rounds(5), seconds(1.0, "per cell"))
def measure(run: Run) -> dict[str, Any]:
    processor = Processor.here()
    row = row_of(processor)
    tokenizer = version_directory(run.options.repository, DEFAULT_NAMES.tokenize)
    towers = {
        "images": _tower(run, processor, "images", DEFAULT_NAMES.encoder, None),
        "texts": _tower(run, processor, "texts", DEFAULT_NAMES.text_encoder, tokenizer),
    }
    for tower, found in towers.items():
        show(f"{tower} a second, by rows of a batch", found["rates"])
        named = ONNX_RUNTIME if row is None else getattr(row, tower)
        found["table"] = named if named in found["means"] else ONNX_RUNTIME
        found["share"] = found["means"][found["table"]] / max(found["means"].values())
        print(f"{tower}: {found['table']}, which the table names, reaches {found['share']:.3f} of the fastest")
    fastest = {tower: found["fastest"] for tower, found in towers.items()}
    measured = "; ".join(f"{tower}/s: {_figures(found['rates'])}" for tower, found in towers.items())
    print(repr(Row(vendor=processor.vendor, flag="", measured=measured, **fastest)))
    return {"towers": towers}


def _tower(run: Run, processor: Processor, tower: str, model: str, tokenizer: Path | None) -> dict[str, Any]:
    """Measure the tower in each runtime, the most exact first."""
    file = version_directory(run.options.repository, model) / "model.onnx"
    reference = open_session(file)
    sessions: dict[str, Session] = {ONNX_RUNTIME: reference}
    cosines = {}
    threads = session_options().intra_op_num_threads
    for name in (OPENVINO, OPENVINO_BF16) if processor.has_bf16 else (OPENVINO,):
        session = open_openvino(file, name.rpartition(" ")[2], threads=threads).session
        try:
            cosines[name] = lowest_cosine(session, reference, run.passport, tokenizer)
        except Disagreement as error:
            print(f"{tower}: {name} is left out: {error}")
        else:
            sessions[name] = session
    _, _, sample = samples(run.passport, tokenizer, texts())
    cells = {
        f"{tower} {name} x{rows}": partial(_rate, session, sample, rows, run.options.seconds)
        for rows in _BATCHES
        for name, session in sessions.items()
    }
    found = run.in_rounds(cells)
    rates = {
        name: {rows: median_of(found[f"{tower} {name} x{rows}"], "rate") for rows in _BATCHES} for name in sessions
    }
    means = {name: statistics.geometric_mean(each.values()) for name, each in rates.items()}
    return {
        "rates": rates,
        "means": means,
        "cosines": cosines,
        "fastest": next(name for name, mean in means.items() if mean * _TIE >= max(means.values())),
    }


def _rate(session: Session, sample: Rows, rows: int, seconds: float) -> dict[str, Any]:
    inputs = np.resize(sample, (rows, *sample.shape[1:]))
    feed = {PIXELS if sample.ndim == 4 else TOKENS: inputs, STATUS: np.zeros((rows, 1), np.int32)}
    time.sleep(_PAUSE_S)
    session.run([EMBEDDING], feed)  # prepares memory and kernels for this number of rows
    start, runs = time.perf_counter(), 0
    while (elapsed := time.perf_counter() - start) < seconds:
        session.run([EMBEDDING], feed)
        runs += 1
    return {"rate": rows * runs / elapsed}


def _figures(rates: dict[str, dict[int, float]]) -> str:
    return ", ".join(f"{name} {' / '.join(f'{rate:.1f}' for rate in each.values())}" for name, each in rates.items())
