"""How many texts a second does each system embed?

Compares the library in front of Triton, open_clip in process and infinity, with one text in a request. All embed the
same short captions with the same weights. Their vectors are compared before anything is timed; ``odd`` is the least
cosine among longer texts and those with characters that open_clip cleans, which no rate depends on.
"""

from __future__ import annotations

import random
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, Final

from benchmarks.harness.experiment import MODEL, REPOSITORY, Run, experiment, option, rounds, seconds
from benchmarks.harness.results import show
from benchmarks.harness.rounds import LEAST_COSINE, cosine_to_first, median_of, ratios, spread
from benchmarks.peers.services import infinity

SYSTEMS: Final = {
    "pytorch-text": "open_clip in process, fp32",
    "client-text": "clip_text, through ClipClient",
    "infinity-text": "infinity, fp32",
}
FIRST: Final = "pytorch-text"
"""The vectors of the others are compared with its own."""
CAPTIONS: Final = 256

_PLACES: Final = ("on the beach", "in the snow", "at night", "in front of a red house", "seen from above", "")
_THINGS: Final = (
    "a dog",
    "two children",
    "an old bicycle",
    "my grandmother",
    "a plate of spaghetti",
    "the Eiffel tower",
)
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


@experiment(
    REPOSITORY,
    MODEL,
    option("--systems", nargs="*", choices=SYSTEMS, default=list(SYSTEMS), help="what to measure"),
    option("--concurrency", type=int, nargs="+", default=[1, 8, 32], help="callers, or texts in a batch in process"),
    rounds(3),
    seconds(4.0, "per system, number of callers and round"),
)
def measure(run: Run) -> dict[str, Any]:
    """Measure every system in turn."""
    options = run.options
    options.photos = write_texts(run.scratch / "texts")
    systems = [FIRST, *(name for name in options.systems if name != FIRST)]
    run.checkpoint(total=len(systems) * len(options.concurrency) * options.rounds)
    weights = (options.model or run.passport.model, run.passport.pretrained)
    with ExitStack() as services:
        urls = {FIRST: ""}
        if "client-text" in systems:
            urls["client-text"] = run.serve(None, "--precision", "fp32").grpc_url
        if "infinity-text" in systems:
            urls["infinity-text"] = services.enter_context(infinity(*weights)).url
        workers = {name: run.load(name, urls[name], name=name) for name in systems}
        vectors = {name: worker.ready["vectors"] for name, worker in workers.items()}
        plain = cosine_to_first({name: rows[:CAPTIONS] for name, rows in vectors.items()})
        odd = cosine_to_first({name: rows[CAPTIONS:] for name, rows in vectors.items()})
        cells = {}
        for size in options.concurrency:
            for name, worker in workers.items():
                shape = {"rows": size} if name == FIRST else {"concurrency": size}
                cells[f"{name} x{size}"] = partial(worker.ask, {"seconds": options.seconds, **shape})
        found = run.in_rounds(cells)
    summary: dict[str, dict[str, Any]] = {
        name: {
            "cosine": plain[name],
            "odd": odd[name],
            "valid": plain[name] >= LEAST_COSINE,
            "at": {
                size: {
                    "rate": spread([one["rate"] for one in found[f"{name} x{size}"]]),
                    "p50_ms": median_of((one["latency_ms"] for one in found[f"{name} x{size}"]), "p50"),
                    "to_first": spread(ratios(found[f"{name} x{size}"], found[f"{FIRST} x{size}"])),
                }
                for size in options.concurrency
            },
        }
        for name in systems
    }
    rows = [
        (
            f"{SYSTEMS[name]} x{size}",
            f"{cell['rate']['median']:.1f}",
            f"{cell['p50_ms']:.0f}",
            f"{cell['to_first']['median']:.2f}",
            f"{about['cosine']:.6f}{'' if about['valid'] else ' INVALID'}",
            f"{about['odd']:.6f}",
        )
        for name, about in summary.items()
        for size, cell in about["at"].items()
    ]
    headings = ("", "texts/s", "p50 ms", "to open_clip", "least cosine", "least cosine, odd texts")
    show("Medians of the rounds", headings, rows)
    return {"model": run.passport.id, "summary": summary}


def texts() -> list[str]:
    """The captions, then the odd texts."""
    choose = random.Random(0).choice
    captions = [choose(_STYLES).format(f"{choose(_THINGS)} {choose(_PLACES)}".strip()) for _ in range(CAPTIONS)]
    return [*captions, *ODD]


def write_texts(folder: Path) -> Path:
    """Write :func:`texts`, a file each, in the order of their names; return ``folder``."""
    folder.mkdir()
    for number, text in enumerate(texts()):
        (folder / f"{number:03}.txt").write_text(text, encoding="utf-8")
    return folder
