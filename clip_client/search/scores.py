"""What scores say: where they fall off, and whether they look like those of texts that mean nothing.

No flat threshold works: one model gives a good match 0.30 and another 0.10, and one text lies closer to all photos than
another. So a score is only compared with other scores of the same photos.
"""

from __future__ import annotations

import hashlib
import zipfile
from contextlib import suppress
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Final

import numpy as np
from anyio import to_thread

from preprocess_ensemble.whole_file import whole_file

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from clip_client.search.photo_index import PhotoIndex
    from clip_client.search.query import QueryEmbedder

MOST_RANKS: Final = 200
"""The fall is looked for among the first results."""
_FALSE_FALLS: Final = 0.05
"""How often an even tail may be taken for one with a fall."""

NEUTRAL: Final = (
    # No words of any language.
    "blorvak intrusel", "qued fnarbly ostrume", "zimplod wexta", "gruvanth oblikest", "tarnivol shemp",
    "yabrok luntish degg", "prexo villamund", "snorfit caddelwick", "oomlat brindaxe", "veskurly pank",
    "hodrim fessylane", "krantivo moople", "dwalish ebberont", "jixel forrobane", "mubbert slyth", "ragnivex toolm",
    # Words about nothing that can be seen.
    "the square root of a negative number", "a clause in the second paragraph", "the opposite of yesterday",
    "an unlikely hypothesis", "whether or not it follows", "the remainder of the argument", "interest rates in theory",
    "a question about the previous question", "the grammar of an exception", "seventeen percent of the total",
    "what was meant by that", "an abstract definition", "the average of all opinions", "a rumour about a principle",
    "the consequence of an omission", "in general and without example",
)  # fmt: skip
"""Texts that no photo shows. A query that scores like them matches nothing clearly."""
MOST_BEATEN_BY: Final = 0.1
"""A query is unclear if at least this share of the neutral texts scores as high."""


def first_fall(scores: Sequence[float]) -> int | None:
    """Return how many of ``scores``, the best first, come before they fall off; None if they do so nowhere.

    Where scores only thin out, their tail is close to exponential, and the steps ``k * (s[k] - s[k+1])`` of the k-th
    to the next are independent and equally distributed (Renyi 1953; the Hill estimator is their mean). A fall is a step
    that is too large for that: the largest one, if among m steps of the same mean one as large would appear by chance
    in at most 5 % of the lists, so if it exceeds the mean times ln(m / 0.05). The mean is estimated by the median
    divided by ln 2, which the fall itself does not move.
    """
    ranked = np.asarray(scores[: MOST_RANKS + 1], dtype=np.float64)
    steps = np.arange(1, len(ranked)) * (ranked[:-1] - ranked[1:])
    if len(steps) < 4:
        return None
    largest = int(steps.argmax())
    typical = max(float(np.median(steps)) / np.log(2), 1e-9)
    return largest + 1 if steps[largest] > typical * np.log(len(steps) / _FALSE_FALLS) else None


@dataclass(frozen=True, kw_only=True)
class NeutralTexts:
    """The vectors of :data:`NEUTRAL`, and how close the photos of an index come to them."""

    vectors: NDArray[np.float32]
    """(M, D), unit rows."""
    mean: NDArray[np.float32]
    """Mean photo, (D,)."""
    best: NDArray[np.float32]
    """The cosine of each text with the photo nearest to it, (M,)."""

    @classmethod
    async def of(cls, clip: QueryEmbedder, index: PhotoIndex) -> NeutralTexts:
        """Embed the texts, and compare them with the photos.

        If the index has a folder, this is kept there: the texts are embedded once, and compared once the photos change.
        """
        name = hashlib.sha256("\n".join((index.vector_id, *NEUTRAL)).encode()).hexdigest()[:16]
        stamp = f"{index.about.get('stamp')} {len(index)}"
        file = None if index.folder is None else index.folder / f"neutral-{name}.npz"
        kept = {} if file is None else _kept(file)
        if str(kept.get("stamp")) == stamp:
            return cls(**{field.name: kept[field.name] for field in fields(cls)})
        if "vectors" in kept:
            vectors = kept["vectors"]
        else:
            batch = await clip.embed_text(NEUTRAL)
            batch.raise_for_errors()
            vectors = batch.vectors
        best = await to_thread.run_sync(index.best_scores, vectors)
        made = cls(vectors=vectors, mean=index.mean(), best=best)
        if file is not None:
            with suppress(OSError), whole_file(file) as opened:  # without a folder, or on a full disk
                np.savez(opened, stamp=stamp, **vars(made))
        return made

    def is_unclear(self, query: NDArray[np.float32], index: PhotoIndex, among: NDArray[np.bool_] | None = None) -> bool:
        """Tell whether the photos match ``query``, (D,), no better than texts that mean nothing.

        That is so if at least a tenth of the neutral texts reaches the best score of the query, both as it is and less
        the score that the query has with the mean photo. The second takes away that some texts are close to all
        photos. The first keeps a query clear that most of the photos match, whose best score is near the mean.
        """
        unit = query / np.linalg.norm(query)
        neutral = self.best if among is None else index.best_scores(self.vectors, among=among)
        best = np.concatenate([index.best_scores(unit[None], among=among), neutral])
        above_mean = best - np.concatenate([unit[None], self.vectors]) @ self.mean
        return all(np.mean(scores[1:] >= scores[0]) >= MOST_BEATEN_BY for scores in (best, above_mean))


def _kept(file: Path) -> dict[str, NDArray[np.float32]]:
    """Read what :meth:`NeutralTexts.of` wrote; nothing if it is missing or damaged."""
    with suppress(OSError, ValueError, zipfile.BadZipFile), open(file, "rb") as opened:
        with np.load(opened, allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files}
    return {}
