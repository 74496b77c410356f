"""Which way of serving the model is fastest for its callers?

Compares PyTorch in process, PyTorch behind HTTP, the ensemble in each precision, and infinity. All embed the same
256-pixel JPEG files with the same weights, one image per request. Their vectors are compared before anything is timed.
The loop is closed; ``--offered`` adds an open loop, in which independent callers send a share of each system's best
rate.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

from benchmarks.experiments.serving import comparison
from benchmarks.experiments.serving.comparison import Found, System
from benchmarks.fixtures.server import QUIET, Server, serving
from benchmarks.harness.experiment import MODEL, REPOSITORY, Run, experiment, option, rounds, seconds
from benchmarks.harness.results import cosine_to_first, median_of, ratios, spread
from benchmarks.load.adapters import clip_client, in_process, infinity_images, pytorch, transport
from benchmarks.load.loops import OPEN_TIMES
from benchmarks.peers.services import infinity, plain_service
from preprocess_ensemble.export.parity import REQUIRED_COSINE
from preprocess_ensemble.runtimes.processor import has_bf16

_fp32: Final = partial(in_process, load=partial(pytorch, precision="fp32"))
_bf16: Final = partial(in_process, load=partial(pytorch, precision="bf16"))
SYSTEMS: Final[Mapping[str, System]] = {
    "pytorch": System("open_clip in process, fp32", _fp32),
    "pytorch-bf16": System("open_clip in process, bf16", _bf16),
    "plain": System("plain service, no batching", transport, "plain"),
    "plain-batched": System("plain service, batching", transport, "plain-batched"),
    "ensemble": System("ensemble, JPEG over gRPC", transport, "triton"),
    "client": System("ensemble, through ClipClient", clip_client, "triton"),
    "auto": System("ensemble, the default precision", transport, "auto"),
    "openvino-bf16": System("ensemble, OpenVINO bf16", transport, "bf16"),
    "int8": System("ensemble, ONNX Runtime int8", transport, "int8", REQUIRED_COSINE["int8"]),
    "infinity": System("infinity, fp32", infinity_images, "infinity"),
}
RATIOS: Final = (
    ("ensemble", "plain-batched", 1.05),
    ("ensemble", "plain", 1.5),
    ("auto", "infinity", 1.5),
    ("auto", "ensemble", 0.97),
    ("plain-batched", "pytorch", 0.9),
)
"""(one, other, the least ratio of their images per second at the highest concurrency). The last says whether the
baseline is an honest one."""


def services(run: Run) -> dict[str, Callable[[], AbstractContextManager[Any]]]:
    """What starts each service. An ensemble that names no other precision runs in fp32, as the plain service does."""
    weights = (run.options.model or run.passport.model, run.passport.pretrained)
    serve = partial(serving, run.options.repository, *QUIET)
    # The default chooses now, and not what an earlier run has left in the user's cache.
    auto = partial(serve, "--precision=auto", environment={"XDG_CACHE_HOME": str(run.scratch / "cache")})
    return {
        "plain": partial(plain_service, *weights, max_batch=1),
        "plain-batched": partial(plain_service, *weights),
        "triton": partial(serve, "--precision=fp32"),
        "auto": auto,
        "bf16": partial(serve, "--precision=bf16"),
        "int8": partial(int8, *weights),
        "infinity": partial(infinity, *weights),
    }


@contextmanager
def int8(model: str, pretrained: str) -> Iterator[Server]:
    with tempfile.TemporaryDirectory() as exported:
        options = ("--model", model, "--pretrained", pretrained, "--precision", "int8", "--repository", exported)
        command = (sys.executable, "-m", "preprocess_ensemble.export.command", *options)
        subprocess.run(command, check=True, stdout=sys.stderr)
        with serving(Path(exported), *QUIET) as server:
            yield server


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
    options = run.options
    if not has_bf16() and "openvino-bf16" in options.systems:
        print("openvino-bf16 is left out: this processor has neither avx512_bf16 nor amx_bf16", file=sys.stderr)
        options.systems.remove("openvino-bf16")
    systems = {name: SYSTEMS[name] for name in options.systems}
    wanted = {system.service for system in systems.values()}
    running = {name: run.stack.enter_context(begin()) for name, begin in services(run).items() if name in wanted}
    workers = comparison.start(run, systems, running)
    cosines = cosine_to_first({name: worker.ready for name, worker in workers.items()})
    sizes = options.concurrency
    found = comparison.measure(run, systems, workers, {size: {"concurrency": size} for size in sizes})
    offered: Found = {}
    if options.offered:
        order = {"seconds": OPEN_TIMES * options.seconds}
        best = {name: max(median_of(found[f"{name} x{size}"], "rate") for size in sizes) for name in systems}
        offered = run.in_rounds(
            {
                f"{name} offered {share:g}": partial(workers[name].ask, {**order, "rate": share * best[name]})
                for share in options.offered
                for name, system in systems.items()
                if system.service
            }
        )
    return {"summary": summarise(systems, sizes, found, cosines, offered)}


def summarise(
    systems: Mapping[str, System],
    sizes: Sequence[int],
    found: Found,
    cosines: Mapping[str, float],
    offered: Found,
) -> dict[str, Any]:
    """Medians with spread per system and load, and the ratios that the documents state."""
    rows = comparison.summarise(systems, sizes, found, cosines)
    for name, results in offered.items():
        system, _, share = name.partition(" offered ")
        rows[system].setdefault("offered", {})[share] = {
            key: median_of((one["latency_ms"] for one in results), key) for key in ("p50", "p99")
        }
    most = max(sizes)
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
