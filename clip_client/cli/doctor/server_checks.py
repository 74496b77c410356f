"""Checks of a server, for ``clip-client doctor``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from clip_client import ClientConfig, ClipError, ModelInfo
from clip_client._endpoint import Endpoint, EndpointKind
from clip_client._health import run_health_checks
from clip_client._transports.factory import resolve_auto, transport_factory
from clip_client.cli.doctor.check import SERVER, Check, Level, known_holes

if TYPE_CHECKING:
    from clip_client._transports.base import ModelSettings, ServerDescription, Transport
    from preprocess_ensemble.contract import ModelNames

_KINDS: Final = {"KIND_CPU": "CPU", "KIND_GPU": "GPU", "KIND_AUTO": "a GPU if the server has one, else the CPU"}


_LOAD_S: Final = 120.0
"""Least time for the model in this process: its first load times the runtimes, for 3 to 10 s with ViT-B-32."""


async def check_server(config: ClientConfig, *, origin: str, timeout_s: float) -> tuple[list[Check], bool]:
    """Check every server of ``config``, whose URLs come from ``origin``; also return whether any of them answered.

    An ``auto:`` address without a server stands for the model in this process.
    """
    try:
        connect = transport_factory(config)
    except ImportError as error:
        remedy = "install what this client needs with: pip install clip-triton"
        return [
            Check(SERVER, "address", f"not asked, since gRPC does not import ({error})", Level.PROBLEM, remedy)
        ], False
    checks: list[Check] = []
    answered = False
    for endpoint in config.endpoints:
        if endpoint.kind is EndpointKind.AUTO:
            endpoint = await resolve_auto(endpoint, connect)
        checks.append(Check(SERVER, "address", f"{endpoint} ({origin})"))
        transport = connect(endpoint, None)
        try:
            is_local = endpoint.kind is EndpointKind.LOCAL
            found, answers = await _check_all(transport, endpoint, max(timeout_s, _LOAD_S) if is_local else timeout_s)
        finally:
            await transport.close()
        checks += found
        answered = answered or (answers and endpoint.kind is not EndpointKind.LOCAL)
    return checks, answered


async def _check_all(transport: Transport, endpoint: Endpoint, timeout_s: float) -> tuple[list[Check], bool]:
    report = await run_health_checks(transport, name=str(endpoint), timeout_s=timeout_s)
    answers = bool(report.steps[0].ok)
    checks: list[Check] = []
    if answers:
        try:
            description = await transport.describe(timeout_s=timeout_s)
            checks += () if description is None else _description(description, endpoint.names)
        except ClipError as error:
            if report.ok:
                checks.append(Check(SERVER, "description", "incomplete", Level.PROBLEM, str(error)))
    if report.model is not None:
        checks += _model(report.model)
    failed = report.failed
    problem = (f"{failed.name}: failed", Level.PROBLEM, failed.message) if failed else (report.steps[-1].message,)
    return [*checks, Check(SERVER, "health", *problem)], answers


def _description(server: ServerDescription, names: ModelNames) -> Iterator[Check]:
    encoder, preprocessor = server.models[names.encoder], server.models[names.preprocess]
    yield Check(SERVER, "Triton", f"{server.version} ({server.name})")
    yield from known_holes(SERVER, server.version)
    kinds = ", ".join(_KINDS.get(kind, kind) for kind in encoder.kinds) or "not said"
    accelerated = f" with {', '.join(encoder.accelerators)}" if encoder.accelerators else ""
    yield Check(SERVER, "provider", f"{encoder.backend or 'not said'}{accelerated}, on {kinds}")
    if encoder.backend == "onnxruntime" and not encoder.accelerators:
        asked = encoder.parameters.get("precision", "auto")
        yield Check(SERVER, "precision", f'{asked}, by its configuration; its log says what the model "runs on"')
    yield Check(SERVER, "encoder threads", _threads(encoder, "intra_op_thread_count", "ONNX Runtime's default"))
    yield Check(SERVER, "decoder threads", _threads(preprocessor, "decode_threads", "one for each core of the server"))


def _model(model: ModelInfo) -> Iterator[Check]:
    remedy = (
        "its weights are random and can only tell copies from other photos; export a trained model with: clip-export"
    )
    yield Check(SERVER, "model", model.id, *((Level.HINT, remedy) if model.is_random else ()))
    vectors = f"{model.dimension} numbers, {model.precision}, up to {model.max_batch_size} photos a request"
    yield Check(SERVER, "vectors", vectors)
    if model.runtime:
        yield Check(SERVER, "runs on", model.runtime)
    yield Check(SERVER, "preprocessing", model.preprocess_id)
    text = "none, so it embeds no texts" if model.text is None else f"up to {model.text.context_length} tokens"
    yield Check(SERVER, "text tower", text)
    yield Check(SERVER, "fingerprint", "{} {}".format(*model.fingerprint))


def _threads(settings: ModelSettings, parameter: str, otherwise: str) -> str:
    threads = settings.parameters.get(parameter, "0")
    return otherwise if threads in ("", "0") else threads
