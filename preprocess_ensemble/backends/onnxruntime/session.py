"""Open the ONNX Runtime session of a plan, and select the runtime that runs the model."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Final

import onnxruntime

from preprocess_ensemble.backends.onnxruntime.session_plan import ModelConfig, ModelLoadError, SessionPlan
from preprocess_ensemble.contract import DEFAULT_NAMES, ModelNames
from preprocess_ensemble.model_repository.passport import Passport
from preprocess_ensemble.runtimes import onnx_session
from preprocess_ensemble.runtimes.model import RuntimeUnusable
from preprocess_ensemble.runtimes.openvino_model import open_openvino
from preprocess_ensemble.runtimes.selection import Selection, select

_TEXT_ENCODER: Final = DEFAULT_NAMES.text_encoder.removeprefix(DEFAULT_NAMES.name)


def model_file(config: ModelConfig, *, model_directory: Path, version: str) -> Path:
    """Return the path of the ONNX file. As in the C++ backend, a folder of that name holds the file ``model.onnx``."""
    file = model_directory / version / (config.get("default_model_filename") or "model.onnx")
    return file / "model.onnx" if file.is_dir() else file


def open_planned_session(file: Path, plan: SessionPlan) -> onnxruntime.InferenceSession:
    """Load the ONNX file as planned.

    If the configuration does not name a provider, the GPU may be missing: KIND_AUTO means the GPU *if* it can be used.
    A provider that the configuration names must be present. Raises ``ModelLoadError``.
    """
    # The file is DIR/MODEL/VERSION/FILE.
    repository = file.parents[min(2, len(file.parents) - 1)]
    name = file.parent.parent.name.partition("_")[0]  # no exported name has an underscore
    remedy = f"run `clip-export --repository {repository} --name {name}` with the model's own --model and --pretrained"
    if not file.is_file():
        raise ModelLoadError(f"There is no model file {file}: {remedy}.")
    available = onnxruntime.get_available_providers()
    for provider in plan.providers:
        if provider.required and provider.name not in available:
            raise ModelLoadError(
                f"The configuration asks for {provider.name}, but the installed ONNX Runtime has only "
                f"{', '.join(available)}: install the build that has it, or remove the accelerator from config.pbtxt."
            )
    providers = [(provider.name, dict(provider.options)) for provider in plan.providers if provider.name in available]
    onnx_session.load_gpu_libraries({name for name, _ in providers})
    if plan.buckets:
        remedy = "remove enable_cuda_graph from config.pbtxt if CUDA graphs are the reason"
    try:
        session = onnx_session.open_session(file, plan.options, providers)
    except RuntimeUnusable as error:
        raise ModelLoadError(f"{error}: {remedy}.") from error
    for provider in plan.providers:
        # ONNX Runtime drops a provider that fails to start, and only logs a line about it.
        if provider.required and provider.name not in session.get_providers():
            raise ModelLoadError(f"{provider.name}, which the configuration asks for, did not start: see the log.")
    return session


def select_model(session: onnxruntime.InferenceSession, file: Path, plan: SessionPlan) -> Selection:
    openvino = partial(open_openvino, file, threads=plan.options.intra_op_num_threads)
    passport, tokenizer = _exported_model(file)
    reference = onnx_session.open_model(session, passport)
    return select(reference, passport, plan.compute_precision, openvino, tokenizer=tokenizer)


def _exported_model(file: Path) -> tuple[Passport | None, Path | None]:
    model, tokenizer = file.parent.parent, None
    passport = file.with_name("model.json")
    try:
        if model.name.endswith(_TEXT_ENCODER):
            names = ModelNames(model.name.removesuffix(_TEXT_ENCODER))
            passport = model.parent / names.encoder / "1" / "model.json"
            tokenizer = model.parent / names.tokenize / "1"
        found = Passport.from_json(passport.read_bytes())
    except (OSError, ValueError):
        return None, None
    return (None, None) if tokenizer and found.text is None else (found, tokenizer)
