"""How many texts a second does each system embed?

Compares the library in front of Triton, open_clip in process and infinity, with one text in a request. All embed the
same short captions with the same weights. Their vectors are compared before anything is timed; ``odd`` is the least
cosine among longer texts and those with characters that open_clip cleans, which no rate depends on.
"""

from __future__ import annotations

import random
from functools import partial
from pathlib import Path
from typing import Any, Final

from benchmarks.experiments.serving import comparison
from benchmarks.experiments.serving.comparison import System
from benchmarks.harness.experiment import MODEL, REPOSITORY, Run, experiment, option, rounds, seconds
from benchmarks.harness.results import cosine_to_first, show
from benchmarks.load.adapters import clip_client, in_process, infinity_texts, pytorch_texts
from benchmarks.peers.services import infinity

SYSTEMS: Final = {
    "pytorch-text": System("open_clip in process, fp32", partial(in_process, load=pytorch_texts)),
    "client-text": System("clip_text, through ClipClient", partial(clip_client, text=True), "triton"),
    "infinity-text": System("infinity, fp32", infinity_texts, "infinity"),
}
"""The vectors of the others are compared with those of the first."""
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


@experiment(
    REPOSITORY,
    MODEL,
    option("--systems", nargs="*", choices=list(SYSTEMS)[1:], default=list(SYSTEMS)[1:], help="beside open_clip"),
    option("--concurrency", type=int, nargs="+", default=[1, 8, 32], help="callers, or texts in a batch in process"),
    option("--captions", type=int, default=256, help="different ones"),
    rounds(3),
    seconds(4.0, "per system, number of callers and round"),
)
def measure(run: Run) -> dict[str, Any]:
    options = run.options
    options.photos = write_texts(run.scratch / "texts", options.captions)
    systems = {name: system for name, system in SYSTEMS.items() if name in options.systems or not system.service}
    running: dict[str, Any] = {}
    if "client-text" in systems:
        running["triton"] = run.serve(None, "--precision", "fp32")
    if "infinity-text" in systems:
        weights = (options.model or run.passport.model, run.passport.pretrained)
        running["infinity"] = run.stack.enter_context(infinity(*weights))
    workers = comparison.start(run, systems, running)
    vectors = {name: worker.ready for name, worker in workers.items()}
    plain = cosine_to_first({name: rows[: options.captions] for name, rows in vectors.items()})
    odd = cosine_to_first({name: rows[options.captions :] for name, rows in vectors.items()})
    found = comparison.measure(run, systems, workers, {size: {"concurrency": size} for size in options.concurrency})
    summary = comparison.summarise(systems, options.concurrency, found, plain)
    for name, about in summary.items():
        about["odd"] = odd[name]
    show("Medians of the rounds", comparison.rows_of(systems, summary, "texts"))
    show("Least cosine of longer and of odd texts", {SYSTEMS[name].words: {"": odd[name]} for name in systems})
    return {"model": run.passport.id, "summary": summary}


def texts(captions: int = 256) -> list[str]:
    choose = random.Random(0).choice
    made = [choose(_STYLES).format(f"{choose(_THINGS)} {choose(_PLACES)}".strip()) for _ in range(captions)]
    return [*made, *ODD]


def write_texts(folder: Path, captions: int) -> Path:
    """Write :func:`texts`, a file each, in the order of their names; return ``folder``."""
    folder.mkdir()
    for number, text in enumerate(texts(captions)):
        (folder / f"{number:03}.txt").write_text(text, encoding="utf-8")
    return folder
