"""Which way of serving the model is fastest for its callers?

Compares PyTorch in process, PyTorch behind HTTP, the ensemble in each precision, infinity, and ONNX Runtime behind
HTTP, as Immich's service works; with a card that PyTorch and ONNX Runtime can both use, all run there. All embed the
same 256-pixel JPEG files with the same weights, one image per request. Their vectors are compared before anything is
timed. The loop is closed; ``--offered`` adds an open loop, in which independent callers send a share of each system's
best rate. With ``--text`` the same is asked of the other tower: the library in front of Triton, open_clip in process
and infinity embed the same short captions, one in a request; ``odd`` is the least cosine among longer texts and those
with characters that open_clip cleans.
"""

from __future__ import annotations

import random
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

from benchmarks.experiments.serving import comparison
from benchmarks.experiments.serving.comparison import Found, System, address
from benchmarks.fixtures.repositories import device
from benchmarks.fixtures.server import QUIET, Server, serving
from benchmarks.harness.experiment import MODEL, REPOSITORY, Run, experiment, option, rounds, seconds
from benchmarks.harness.meters import memory_mb
from benchmarks.harness.results import cosine_to_first, median_of, ratios, show, spread
from benchmarks.load import adapters
from benchmarks.load.adapters import clip_client, form, in_process, transport
from benchmarks.load.loops import OPEN_TIMES
from benchmarks.peers.services import infinity, onnx_service, plain_service
from preprocess_ensemble.export.parity import REQUIRED_COSINE

_fp32: Final = partial(in_process, load=partial(adapters.pytorch, precision="fp32"))
_bf16: Final = partial(in_process, load=partial(adapters.pytorch, precision="bf16"))
SYSTEMS: Final[Mapping[str, System]] = {
    "pytorch": System("open_clip in process, fp32", _fp32),
    "pytorch-bf16": System("open_clip in process, bf16", _bf16),
    "plain": System("plain service, no batching", form, "plain"),
    "plain-batched": System("plain service, batching", form, "plain-batched"),
    "ensemble": System("ensemble, JPEG over gRPC", transport, "triton"),
    "client": System("ensemble, through ClipClient", clip_client, "triton"),
    "auto": System("ensemble, the default precision", transport, "auto"),
    "int8": System("ensemble, ONNX Runtime int8", transport, "int8", REQUIRED_COSINE["int8"]),
    "infinity": System("infinity, fp32", adapters.infinity_images, "infinity"),
    "onnx-service": System("ONNX Runtime behind FastAPI, as Immich's service works", form, "onnx-service"),
}
TEXT_SYSTEMS: Final[Mapping[str, System]] = {
    "pytorch-text": System("open_clip in process, fp32", partial(in_process, load=adapters.pytorch_texts)),
    "client-text": System("clip_text, through ClipClient", partial(clip_client, text=True), "triton"),
    "auto-text": System("clip_text, the default precision", partial(clip_client, text=True), "auto"),
    "infinity-text": System("infinity, fp32", adapters.infinity_texts, "infinity"),
}
OTHER_SERVICES: Final = frozenset({"plain", "plain-batched", "infinity", "onnx-service", "infinity-text"})
"""Systems that a caller reaches over a network, and that are not ours."""
RATIOS: Final = (
    ("ensemble", "plain-batched", 1.05),
    ("ensemble", "plain", 1.5),
    ("auto", "infinity", 1.5),
    ("auto", "onnx-service", 1.0),
    ("auto", "ensemble", 0.97),
    ("plain-batched", "pytorch", 0.9),
)
"""(one, other, the least ratio of their images per second at the highest concurrency). The last says whether the
baseline is an honest one."""
_PLACES: Final = ("on the beach", "in the snow", "at night", "in front of a red house", "seen from above", "")
_THINGS: Final = (
    "a dog", "two children", "an old bicycle", "my grandmother", "a plate of spaghetti", "the Eiffel tower",
)  # fmt: skip
_STYLES: Final = ("a photo of {}", "{}", "a blurred picture of {}", "{}!")
ODD: Final = (
    "Fish &amp; chips",
    "caf\u00c3\u00a9 in \ufb01lm",
    "\u0130stanbul'da bir k\u00f6pek",
    "\u72ac\u306e\u5199\u771f",
    "I \u2764\ufe0f my \U0001f415",
    "a blurred black-and-white picture of a dog at night, taken with an old camera",
    "long " * 200,
)


def services(run: Run) -> dict[str, Callable[[], AbstractContextManager[Any]]]:
    """Return what starts each service. Without another precision, an ensemble runs in fp32, as the plain service."""
    weights = (run.options.model or run.passport.model, run.passport.pretrained)
    serve = partial(serving, run.options.repository, *QUIET)
    return {
        "plain": partial(plain_service, *weights, max_batch=1),
        "plain-batched": partial(plain_service, *weights),
        "triton": partial(serve, "--precision=fp32"),
        "auto": partial(serve, "--precision=auto"),
        "int8": partial(int8, *weights),
        "infinity": partial(infinity, *weights),
        "onnx-service": partial(onnx_service, run.options.repository),
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
    option("--text", action="store_true", help="embed texts; the result is called text, or text_long"),
    option("--systems", nargs="+", choices=[*SYSTEMS, *TEXT_SYSTEMS], help="default: all; of texts those in -text"),
    option("--device", choices=("cpu", "cuda"), help="end if this device is not used (default: a card, if any)"),
    option("--captions", type=int, default=256, help="different texts"),
    option("--long-every", type=int, default=0, metavar="N", help="each N-th has 30 to 77 tokens (default: none)"),
    option("--concurrency", type=int, nargs="+", default=[1, 8, 32], help="callers, or images in a batch"),
    option("--offered", type=float, nargs="*", default=[], help="shares of each best rate, for an open loop"),
    rounds(3),
    seconds(5.0, "per system, concurrency and round"),
)
def measure(run: Run) -> dict[str, Any]:
    options = run.options
    if options.device not in (None, device()):
        raise SystemExit(f"--device {options.device}: PyTorch and ONNX Runtime can both use only {device()} here")
    known = TEXT_SYSTEMS if options.text else SYSTEMS
    systems = {name: system for name, system in known.items() if name in (options.systems or known)}
    if options.text:
        run.name = "text_long" if options.long_every else "text"
        options.photos = run.scratch / "texts"
        options.photos.mkdir()
        for number, text in enumerate(texts(options.captions, options.long_every)):
            (options.photos / f"{number:03}.txt").write_text(text, encoding="utf-8")
    wanted = {system.service for system in systems.values()}
    running = {name: run.stack.enter_context(begin()) for name, begin in services(run).items() if name in wanted}
    workers = comparison.start(run, systems, running)
    compared = slice(options.captions) if options.text else slice(None)
    cosines = cosine_to_first({name: worker.ready[compared] for name, worker in workers.items()})
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
    summary = summarise(systems, sizes, found, cosines, offered)
    for name, system in systems.items():
        process = address(running[system.service]).process_id if system.service else workers[name].process_id
        summary["systems"][name]["memory_mb"] = memory_mb(process)
    if options.text:
        odd = {name: one.ready[options.captions :] for name, one in workers.items()}
        for name, least in cosine_to_first(odd).items():
            summary["systems"][name]["odd"] = least
        show("Medians of the rounds", comparison.rows_of(systems, summary["systems"], "texts"))
    return {"model": run.passport.id, "summary": summary}


def summarise(
    systems: Mapping[str, System], sizes: Sequence[int], found: Found, cosines: Mapping[str, float], offered: Found
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


def texts(captions: int = 256, long_every: int = 0) -> list[str]:
    """Return captions of 4 to 19 tokens, of which each ``long_every``-th is six of them, and then the odd ones."""
    choose = random.Random(0).choice
    made = [choose(_STYLES).format(f"{choose(_THINGS)} {choose(_PLACES)}".strip()) for _ in range(captions)]
    if long_every:
        made[::long_every] = [" and ".join(choose(made) for _ in range(6)) for _ in made[::long_every]]
    return [*made, *ODD]
