"""What does HTTP cost beside gRPC?

Compares each dialect of clip-gateway with gRPC to the same Triton, with one connection of the library and with
ClipClient, and with infinity on request. All embed the same JPEG files. Their vectors are compared before anything is
timed. Beside images per second is the processor time per image: of the callers, of the gateway, and of the server. A
small model shows the difference best.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Final

from benchmarks.experiments.serving import comparison
from benchmarks.experiments.serving.comparison import System
from benchmarks.harness.experiment import MODEL, PHOTOS, REPOSITORY, Run, experiment, option, rounds, seconds
from benchmarks.harness.results import cosine_to_first, show
from benchmarks.load.adapters import clip_client, embeddings, form, infinity_images, transport
from benchmarks.peers.services import gateway, infinity

_base64: Final = partial(embeddings, path="/v1/embeddings", encoding_format="base64")
SYSTEMS: Final = {
    "grpc": System("gRPC, one connection", transport, "triton"),
    "client": System("ClipClient", clip_client, "triton"),
    "openai": System("gateway, OpenAI, vectors as numbers", partial(embeddings, path="/v1/embeddings"), "gateway"),
    "openai-base64": System("gateway, OpenAI, vectors in base64", _base64, "gateway"),
    "infinity-dialect": System("gateway, infinity's dialect", infinity_images, "gateway"),
    "form": System("gateway, plain form", form, "gateway"),
    "infinity": System("infinity itself, fp32", infinity_images, "infinity"),
}
DEFAULT: Final = [name for name in SYSTEMS if name != "infinity"]


@experiment(
    REPOSITORY,
    MODEL,
    PHOTOS,
    option("--systems", nargs="+", choices=SYSTEMS, default=DEFAULT, help="what to measure"),
    option("--concurrency", type=int, default=8, help="callers"),
    option("--rows", type=int, nargs="+", default=[1, 8], help="images in a request"),
    option("--workers", type=int, default=1, help="processes of the gateway"),
    rounds(3),
    seconds(4.0, "per system, size of a request and round"),
)
def measure(run: Run) -> dict[str, Any]:
    options = run.options
    systems = {name: SYSTEMS[name] for name in options.systems}
    triton = comparison.address(run.serve(None, "--precision", "fp32"))
    services = {"triton": triton, "gateway": run.stack.enter_context(gateway(triton.url, workers=options.workers))}
    if "infinity" in systems:
        weights = (options.model or run.passport.model, run.passport.pretrained)
        services["infinity"] = run.stack.enter_context(infinity(*weights))
    workers = comparison.start(run, systems, services)
    cosines = cosine_to_first({name: worker.ready for name, worker in workers.items()})
    found: dict[str, Any] = {}
    for rows in options.rows:
        order = {"concurrency": options.concurrency, "rows": rows}
        found |= comparison.measure(run, systems, workers, {rows: order}, services)
    summary = comparison.summarise(systems, options.rows, found, cosines)
    show("Medians of the rounds, by images in a request", comparison.rows_of(systems, summary, "images"))
    return {"model": run.passport.id, "summary": summary}
