"""How fast is the model in this process, and are its vectors right?

The session is opened and run as the backend ``onnxruntime`` of Triton does it. Its vectors are compared with those of
the fp32 export on the CPU. ``local:`` is the client's transport, which also decodes the files. ``--device cuda``
demands a card, and measures its power, too.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
from google.protobuf import json_format

from benchmarks.experiments.serving.ensemble import CARD
from benchmarks.fixtures.repositories import exact_pixels, exported_passport, preprocessing
from benchmarks.fixtures.server_setting import ServerSetting
from benchmarks.harness.experiment import PHOTOS, REPOSITORY, Run, experiment, option, seconds
from benchmarks.harness.results import LEAST_COSINE, cosine_to_first, show
from benchmarks.load.adapters import EmbedHere, Target, clip_client, in_process
from benchmarks.load.worker import measured, start_load
from clip_client import SyncClipClient
from preprocess_ensemble.backends.onnxruntime.batch import runner_for
from preprocess_ensemble.backends.onnxruntime.session import open_planned_session
from preprocess_ensemble.backends.onnxruntime.session_plan import plan_session
from preprocess_ensemble.backends.onnxruntime.signature import read_signature
from preprocess_ensemble.contract import DEFAULT_NAMES, EMBEDDING, PIXELS, STATUS
from preprocess_ensemble.model_repository.config import MODEL_FILE, read_config, version_directory
from preprocess_ensemble.model_repository.tensorrt import VERSIONS, Tensorrt, default_cache
from preprocess_ensemble.runtimes.agreement import checked_vectors, samples

BATCHES: Final = (1, 2, 31, 32)
"""Rows of the batches that are compared: both ends of the default ``max_batch_size``, and one that graphs pad."""
ENCODERS: Final = {"image": DEFAULT_NAMES.encoder, "text": DEFAULT_NAMES.text_encoder}


class Encoder:
    """A tower of an export, opened by its config.pbtxt with a setting; a ``Session``."""

    def __init__(self, repository: Path, tower: str, setting: ServerSetting, tensorrt: Tensorrt | None = None) -> None:
        config = read_config(repository / ENCODERS[tower] / "config.pbtxt")
        setting.change_encoder(config)
        if tensorrt:
            tensorrt.write_into(config, exported_passport(repository))
        kind = "GPU" if setting.device == "cuda" else "CPU"
        as_triton = json_format.MessageToDict(config, preserving_proto_field_name=True)
        plan = plan_session(as_triton, kind=kind, device_id=0)
        session = open_planned_session(version_directory(repository, ENCODERS[tower]) / MODEL_FILE, plan)
        self.provider = session.get_providers()[0]
        self._runner = runner_for(session, read_signature(session), plan)

    def run(self, outputs: Sequence[str], inputs: Mapping[str, Any], options: Any = None, /) -> list[Any]:
        """See ``Session``."""
        found = self._runner.run([inputs], outputs)
        return [found[name] for name in outputs]


def ready_session(target: Target, setting: ServerSetting, tensorrt: Tensorrt | None) -> EmbedHere:
    """The image tower on pixels that were decoded beforehand."""
    pixels = exact_pixels(target.files, preprocessing(target.repository))  # (N, H, W, 3)
    status = np.zeros((len(pixels), 1), np.int32)
    encoder = Encoder(target.repository, "image", setting, tensorrt)
    return lambda rows: encoder.run([EMBEDDING], {PIXELS: pixels[rows], STATUS: status[rows]})[0]


@experiment(
    REPOSITORY,
    PHOTOS,
    *CARD,
    option("--max-batch-size", type=int, default=32, help="of the encoders"),
    option("--towers", nargs="+", choices=ENCODERS, default=["image"], help="whose vectors are compared"),
    option("--rows", type=int, nargs="*", default=[1, 8, 32], help="pictures in a batch of the session"),
    option("--callers", type=int, nargs="*", default=[1, 8, 32], help="of `local:`, who embed one file at a time"),
    seconds(2.0, "per number of rows or callers"),
    option("--reference", type=Path, metavar="REPOSITORY", help="fp32 export to compare vectors with (default: this)"),
    option("--tensorrt", type=int, choices=VERSIONS, help="run the session with this version of TensorRT"),
    option("--tensorrt-cache", type=Path, metavar="DIR", help="where TensorRT keeps engines"),
    option("--name", default="in_process", help="of the result file"),
)
def measure(run: Run) -> dict[str, Any]:
    options = run.options
    run.name = options.name
    repository, saved = options.repository, run.saved
    names = ("device", "tf32", "graphs", "max_batch_size")
    setting = ServerSetting(**{name: getattr(options, name) for name in names})
    tensorrt = None
    if options.tensorrt:
        tensorrt = Tensorrt(version=options.tensorrt, cache=options.tensorrt_cache or default_cache())
        tensorrt.cache.mkdir(parents=True, exist_ok=True)
    for tower in options.towers:
        saved.cell(f"vectors, {tower}", partial(compare, run, tower, setting, tensorrt))
    if options.rows:
        start = time.perf_counter()
        session = start_load(run, partial(in_process, load=partial(ready_session, setting=setting, tensorrt=tensorrt)))
        assert session.ready is not None
        saved.cell("session, start", lambda: {"seconds": time.perf_counter() - start})
        for rows in options.rows:
            order = {"seconds": options.seconds, "rows": rows}
            saved.cell(f"session, batch {rows}", partial(measured, [session], "", order))
    if options.callers:
        url = f"local:{repository}"
        saved.cell("local, health", partial(health, url))
        local = start_load(run, clip_client, url)
        for callers in options.callers:
            order = {"seconds": options.seconds, "concurrency": callers}
            saved.cell(f"local, callers {callers}", partial(measured, [local], "", order))
    summary = {"precision": run.passport.weights_dtype, "setting": setting.name, **verdict(saved.cells)}
    run.exit_code = int(not summary["valid"])
    rates = {name: cell for name, cell in saved.cells.items() if "rate" in cell}
    rows = {name: {"images/s": cell["rate"], **cell["latency_ms"]} for name, cell in rates.items()}
    word = "" if summary["valid"] else ", INVALID"
    show(f"{setting.name}, least cosine {summary['cosine']:.6f}{word}", rows)
    return {"model": run.passport.id, "summary": summary}


def compare(run: Run, tower: str, setting: ServerSetting, tensorrt: Tensorrt | None) -> dict[str, Any]:
    """The provider, the seconds until it was open, and the least cosine of each batch to fp32 on the CPU.

    Raises Disagreement for a failed row that is not NaN, and for a wrong fingerprint.
    """
    repository, fp32 = run.options.repository, run.options.reference or run.options.repository
    tokenizer = version_directory(repository, DEFAULT_NAMES.tokenize) if tower == "text" else None
    fingerprint, *rows = samples(exported_passport(repository), tokenizer)
    if tokenizer is None:
        rows.append(exact_pixels(run.files, preprocessing(repository)))
    joined: Any = np.concatenate(rows)
    batch = joined[np.arange(BATCHES[-1]) % len(joined)]
    reference = Encoder(fp32, tower, ServerSetting(device="cpu"))
    expected = checked_vectors(reference, batch, samples(exported_passport(fp32), tokenizer)[0])
    start = time.perf_counter()
    encoder = Encoder(repository, tower, setting, tensorrt)
    opened_s = time.perf_counter() - start
    failed = np.arange(len(batch)) % 3 == 1
    pairs = {str(count): (expected[:count], checked_vectors(encoder, batch[:count], fingerprint)) for count in BATCHES}
    pairs["beside failed rows"] = expected[~failed], checked_vectors(encoder, batch, fingerprint, failed)
    cosines = {name: cosine_to_first({"fp32": right, "here": found})["here"] for name, (right, found) in pairs.items()}
    return {"provider": encoder.provider, "seconds": opened_s, "cosine": cosines}


def verdict(cells: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """The least cosine of all comparisons, NaN if a vector is NaN, and whether the rates count."""
    cosine = float(np.min([one for cell in cells.values() for one in cell.get("cosine", {}).values()]))
    return {"cosine": cosine, "valid": cosine >= LEAST_COSINE and all(cell.get("ok", True) for cell in cells.values())}


def health(url: str) -> dict[str, Any]:
    """Return the runtime of ``local:``, and whether it embeds the canaries right."""
    with SyncClipClient(url) as clip:
        report = clip.health()
    steps = {step.name: step.message for step in report.steps}
    return {"ok": report.ok, "runtime": report.model and report.model.runtime, "steps": steps}
