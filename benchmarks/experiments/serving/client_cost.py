"""What does the client cost beside bare grpc.aio?

Both send the same images, in turn and from one process, to a Triton whose model does no work; the figure is the
processor time of that process for an image, in all its threads. Bare means ``ModelInferRequest`` messages filled by
hand and answers read as arrays, without what a client is for: batches, retries, deadlines, limits, checked vectors. One
caller sends single images; four callers send lists of 32, to which one stream of a generator is compared as well. In
one process, bare grpc.aio also profits from the client's care for malloc (``_warm_up_malloc``): alone it takes longer.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Final

import grpc
import numpy as np
from tritonclient.grpc import service_pb2, service_pb2_grpc

from benchmarks.fixtures.null_repository import ANSWER, MAX_BATCH_SIZE, write_null_repository
from benchmarks.harness.experiment import Run, experiment, option, rounds
from benchmarks.harness.results import median_of, ratios, show, spread
from clip_client import ClipClient
from preprocess_ensemble.contract import DEFAULT_NAMES, IMAGE

Embed = Callable[[Sequence[bytes]], Awaitable[object]]
Work = Callable[[], Awaitable[int]]

CALLERS: Final = 4
SINGLE: Final = 16
"""Single images are sent so many times more seldom than images in lists, because each takes so much longer."""
COMPARED: Final = {"single": "single, bare", "lists": "lists, bare", "stream": "lists, bare"}
"""Way through the client -> the bare way that does the same work."""


@asynccontextmanager
async def bare(url: str) -> AsyncIterator[Embed]:
    async with grpc.aio.insecure_channel(url) as channel:
        infer = service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelInfer

        async def embed(images: Sequence[bytes]) -> object:
            request = service_pb2.ModelInferRequest(model_name=DEFAULT_NAMES.image)
            request.inputs.add(name=IMAGE, datatype="BYTES", shape=[len(images), 1])
            for name in ANSWER:
                request.outputs.add(name=name)
            parts = ((len(image).to_bytes(4, "little"), image) for image in images)
            request.raw_input_contents.append(b"".join(itertools.chain.from_iterable(parts)))
            response = await infer(request, timeout=60.0)
            raw = {one.name: data for one, data in zip(response.outputs, response.raw_output_contents, strict=True)}
            if any(raw["status"]):
                raise RuntimeError(f"an image failed: {raw['error']!r}")
            return np.frombuffer(raw["embedding"], "<f4").reshape(len(images), -1)

        yield embed


@asynccontextmanager
async def connected(files: list[bytes], count: int, url: str) -> AsyncIterator[dict[str, Work]]:
    """Give name -> a function that embeds images in this way and returns their number."""

    async def singly(embed: Embed) -> int:
        for number in range(count // SINGLE):
            await embed([files[number % len(files)]])
        return count // SINGLE

    async def in_lists(embed: Embed) -> int:
        lists = count // len(files) // CALLERS

        async def caller() -> None:
            for _ in range(lists):
                await embed(files)

        await asyncio.gather(*(caller() for _ in range(CALLERS)))
        return lists * CALLERS * len(files)

    async with ClipClient(url, transfer="original") as clip, bare(url) as embed:

        async def streamed() -> int:
            images = (files[number % len(files)] for number in range(count))
            return sum([1 async for item in clip.embed_stream(images) if item.error is None])

        yield {
            "single, bare": partial(singly, embed),
            "single": partial(singly, clip.embed),
            "lists, bare": partial(in_lists, embed),
            "lists": partial(in_lists, clip.embed),
            "stream": streamed,
        }


@experiment(
    option("--bytes", type=int, default=13_000, help="size of an image"),
    option("--images", type=int, default=4_096, help="images for each way and round; a sixteenth of them singly"),
    rounds(15),
)
def measure(run: Run) -> dict[str, Any]:
    files = [os.urandom(run.options.bytes) for _ in range(MAX_BATCH_SIZE)]
    url = run.serve(write_null_repository(run.scratch / "null")).grpc_url
    runner = run.stack.enter_context(asyncio.Runner())
    connections = connected(files, run.options.images, url)
    cells = runner.run(connections.__aenter__())

    def processor_us(work: Work) -> dict[str, Any]:
        async def worked() -> dict[str, Any]:
            started = time.process_time()
            images = await work()
            return {"us": 1e6 * (time.process_time() - started) / images}

        return runner.run(worked())

    for work in cells.values():  # connect, and let the limit of images in flight grow
        processor_us(work)
    found = run.in_rounds({name: partial(processor_us, work) for name, work in cells.items()})
    runner.run(connections.__aexit__(None, None, None))
    summary = {name: {"processor_us_an_image": median_of(of, "us")} for name, of in found.items()}
    for name, base in COMPARED.items():
        shares = spread(ratios(found[name], found[base], "us"))
        summary[name] |= {f"{key} over bare": value for key, value in shares.items()}
    show("Processor time of the client with a null model, medians of the rounds", summary)
    return {"summary": summary}
