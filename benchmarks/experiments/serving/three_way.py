"""Which way of serving the model is fastest for its callers?

Compares PyTorch in process, PyTorch behind HTTP, tensors to Triton, JPEG files to Triton in each precision, and
infinity. All embed the same 256-pixel JPEG files with the same weights, one image per request. Their vectors are
compared before anything is timed. The loop is closed; ``--offered`` adds an open loop, in which independent callers
send a share of each system's best rate.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from benchmarks.fixtures.float_models import write_float_model
from benchmarks.fixtures.repositories import variant
from benchmarks.fixtures.server import QUIET, Server, serving
from benchmarks.harness.experiment import MODEL, REPOSITORY, Run, experiment, option, rounds, seconds
from benchmarks.harness.rounds import LEAST_COSINE, cosine_to_first, median_of, ratios, spread
from benchmarks.load.loops import OPEN_TIMES
from benchmarks.peers.services import infinity, plain_service
from preprocess_ensemble.contract import ENCODER
from preprocess_ensemble.export.parity import REQUIRED_COSINE
from preprocess_ensemble.runtimes.processor import has_bf16

if TYPE_CHECKING:
    from benchmarks.harness.worker import Worker

SYSTEMS: Final[Mapping[str, str]] = {
    "pytorch": "open_clip in process, fp32",
    "pytorch-bf16": "open_clip in process, bf16",
    "plain": "plain service, no batching",
    "plain-batched": "plain service, batching",
    "triton-json": "Triton, FP32 tensors as JSON",
    "triton-http": "Triton, FP32 tensors, HTTP",
    "triton-grpc": "Triton, FP32 tensors, gRPC",
    "ensemble": "ensemble, JPEG over gRPC",
    "client": "ensemble, through ClipClient",
    "auto": "ensemble, the default precision",
    "openvino-fp32": "ensemble, OpenVINO fp32",
    "openvino-bf16": "ensemble, OpenVINO bf16",
    "int8": "ensemble, ONNX Runtime int8",
    "infinity": "infinity, fp32",
}
BY_PRECISION: Final = ("auto", "openvino-fp32", "openvino-bf16", "int8")
"""Ensembles in another precision than fp32 on ONNX Runtime."""
OWN_SERVICE: Final = frozenset({"plain", "plain-batched", "infinity", *BY_PRECISION})
"""The other systems that need a server share one Triton."""
BY_TRANSPORT: Final = frozenset({"ensemble", "plain", "plain-batched", *BY_PRECISION})
"""Systems with the adapter ``transport``; the others have an adapter of their own name."""
IN_PROCESS: Final = frozenset({"pytorch", "pytorch-bf16"})
"""They get batches in place of callers."""
RATIOS: Final = (
    ("ensemble", "plain-batched", 1.05),
    ("ensemble", "plain", 1.5),
    ("auto", "infinity", 1.5),
    ("auto", "ensemble", 0.97),
    ("plain-batched", "pytorch", 0.9),
)
"""(one, other, the least ratio of their images per second at the highest concurrency). The last says whether the
baseline is an honest one."""
_RUNS_ON: Final = re.compile(rb'runs on (.+ \(.+\))"?$', re.MULTILINE)


def services(run: Run) -> dict[str, AbstractContextManager[Any]]:
    """The services that the systems need, not yet started: infinity, the plain service twice, Triton by precision."""
    repository = run.options.repository
    weights = (run.options.model or run.passport.model, run.passport.pretrained)
    known: dict[str, Callable[[], AbstractContextManager[Any]]] = {
        "plain": partial(plain_service, *weights, max_batch=1),
        "plain-batched": partial(plain_service, *weights, max_batch=32),
        "triton": partial(triton, repository),
        "auto": partial(auto, run),
        "openvino-fp32": partial(openvino, repository, "FP32"),
        "openvino-bf16": partial(openvino, repository, "BF16"),
        "int8": partial(int8, *weights),
        "infinity": partial(infinity, *weights),
    }
    wanted = {service_of(system) for system in run.options.systems if system not in IN_PROCESS}
    return {name: start() for name, start in known.items() if name in wanted}


def service_of(system: str) -> str:
    """The service that ``system`` talks to."""
    return system if system in OWN_SERVICE else "triton"


@contextmanager
def triton(repository: Path) -> Iterator[Server]:
    """The ensemble in fp32, as every system that names no precision, and a model that takes FP32 tensors."""
    with tempfile.TemporaryDirectory() as overlay:
        write_float_model(repository, Path(overlay))
        with serving(
            repository, *QUIET, "--precision=fp32", "--", f"--model-repository={overlay}", http=True
        ) as server:
            yield server


def auto(run: Run) -> AbstractContextManager[Server]:
    """The default, which chooses now, and not what an earlier run has left in the user's cache."""
    options = (*QUIET, "--precision", "auto", "--log-file", str(run.scratch / "auto.log"))
    return serving(run.options.repository, *options, environment={"XDG_CACHE_HOME": str(run.scratch / "cache")})


@contextmanager
def openvino(repository: Path, precision: str) -> Iterator[Server]:
    """The encoder on OpenVINO."""

    def change(config: Any) -> None:
        accelerator = config.optimization.execution_accelerators.cpu_execution_accelerator.add(name="openvino")
        accelerator.parameters["precision"] = precision

    with variant(repository, {ENCODER: change}) as changed, serving(changed, *QUIET, "--precision", "auto") as server:
        yield server


@contextmanager
def int8(model: str, pretrained: str) -> Iterator[Server]:
    """A server of these weights, exported in int8."""
    with tempfile.TemporaryDirectory() as exported:
        options = ("--model", model, "--pretrained", pretrained, "--precision", "int8", "--repository", exported)
        command = (sys.executable, "-m", "preprocess_ensemble.export.command", *options)
        subprocess.run(command, check=True, stdout=sys.stderr)
        with serving(Path(exported), *QUIET) as server:
            yield server


def worker(run: Run, system: str, running: Mapping[str, Any]) -> Worker:
    """The load on ``system``, or the system itself if it runs in process."""
    service = None if system in IN_PROCESS else running[service_of(system)]
    if isinstance(service, Server):
        url = service.http_url if system in ("triton-json", "triton-http") else service.grpc_url
    else:
        url = service.url if service else ""
    return run.load("transport" if system in BY_TRANSPORT else system, url, name=system)


@experiment(
    REPOSITORY,
    MODEL,
    option("--systems", nargs="+", choices=SYSTEMS, default=list(SYSTEMS), help="default: all"),
    option("--concurrency", type=int, nargs="+", default=[1, 8, 32], help="callers, or images in a batch"),
    option("--offered", type=float, nargs="*", default=[], help="shares of each best rate, for an open loop"),
    rounds(3),
    seconds(5.0, "per system, concurrency and round"),
)
def measure(run: Run) -> dict[str, Any]:
    """Measure every system at every concurrency, all in turn."""
    options = run.options
    if not has_bf16() and "openvino-bf16" in options.systems:
        print("openvino-bf16 is left out: this processor has neither avx512_bf16 nor amx_bf16", file=sys.stderr)
        options.systems.remove("openvino-bf16")
    systems, concurrencies = options.systems, options.concurrency
    served = [system for system in systems if system not in IN_PROCESS]
    per_round = len(systems) * len(concurrencies) + len(served) * len(options.offered)
    run.checkpoint(total=per_round * options.rounds)
    running = {name: run.stack.enter_context(service) for name, service in services(run).items()}
    workers = {system: worker(run, system, running) for system in systems}
    cosines = cosine_to_first({system: one.ready["vectors"] for system, one in workers.items()})
    found: dict[str, list[dict[str, Any]]] = {}
    for size in concurrencies:
        orders = {system: "rows" if system in IN_PROCESS else "concurrency" for system in systems}
        found |= run.in_rounds(
            {
                f"{system} x{size}": partial(one.ask, {"seconds": options.seconds, orders[system]: size})
                for system, one in workers.items()
            }
        )
    best = {system: max(median_of(found[f"{system} x{size}"], "rate") for size in concurrencies) for system in served}
    for share in options.offered:
        orders_s = {"seconds": OPEN_TIMES * options.seconds}
        found |= run.in_rounds(
            {
                f"{system} offered {share:g}": partial(workers[system].ask, {**orders_s, "rate": share * best[system]})
                for system in served
            }
        )
    summary = summarise(found, cosines, systems, concurrencies, options.offered)
    if "auto" in systems:
        said: list[bytes] = _RUNS_ON.findall((run.scratch / "auto.log").read_bytes())
        summary["systems"]["auto"]["runtime"] = said[-1].decode() if said else ""
    return {"summary": summary}


def summarise(
    found: Mapping[str, Sequence[Mapping[str, Any]]],
    cosines: Mapping[str, float],
    systems: Sequence[str],
    concurrencies: Sequence[int],
    offered: Sequence[float] = (),
) -> dict[str, Any]:
    """Medians with spread per system and load, and the ratios that the documents state."""
    rows = {}
    for system in systems:
        # bf16 rounds, but has the same limit as fp32; a system below it does not do the same work.
        required = REQUIRED_COSINE["int8"] if system == "int8" else LEAST_COSINE
        rows[system] = {
            "cosine": cosines[system],
            "valid": cosines[system] >= required,
            "at": {
                str(size): {
                    "images_per_second": spread([one["rate"] for one in found[f"{system} x{size}"]]),
                    "p50_ms": median_of((one["latency_ms"] for one in found[f"{system} x{size}"]), "p50"),
                }
                for size in concurrencies
            },
            "offered": {
                f"{share:g}": {
                    key: median_of((one["latency_ms"] for one in found[f"{system} offered {share:g}"]), key)
                    for key in ("p50", "p99")
                }
                for share in offered
                if system not in IN_PROCESS
            },
        }
    most = max(concurrencies)
    compared: list[dict[str, Any]] = [
        {
            "of": one,
            "to": other,
            "at_concurrency": most,
            "required": required,
            **spread(ratios(found[f"{one} x{most}"], found[f"{other} x{most}"])),
        }
        for one, other, required in RATIOS
        if one in systems and other in systems
    ]
    honest = all(ratio["median"] >= ratio["required"] for ratio in compared if ratio["of"] == "plain-batched")
    return {"systems": rows, "ratios": compared, "valid": honest and all(row["valid"] for row in rows.values())}
