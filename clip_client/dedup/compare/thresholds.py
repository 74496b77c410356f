"""How similar two vectors must be, for each model: vectors of different models have different similarities.

The built-in thresholds were measured by others. A person's decisions give better ones. A label is a pair of photos that
a person called the same, by moving one of them, or different. The precision of a threshold is the share of "same" among
the labels of pairs that reach it. A pair is a label for a threshold only if a person would have seen it whatever the
answer: its similarity reached the threshold of the search before the decision, and that is not above the threshold in
question. Otherwise copies that other tests had found far below the threshold would speak for lowering it, and the
different photos down there, which no search showed, would not speak against it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import numpy as np

from clip_client.dedup.compare.cells import Z_95, wilson_interval
from clip_client.dedup.store.choices import KEEP
from clip_client.dedup.store.decisions import DIFFERENT
from clip_client.dedup.store.journal import State
from clip_client.dedup.types import NO_MODEL, Thresholds, is_random, split_model_id

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from clip_client.dedup.store.store import Store

_IMMICH: Final = Thresholds(
    similar=0.99,
    source="0.99 is the default of Immich for these weights (cosine distance 0.01)",
    recommended=True,
)

_PER_MODEL: Final = {("ViT-B-32", "openai"): _IMMICH, ("ViT-B-32-quickgelu", "openai"): _IMMICH}
"""(model, pretrained) -> thresholds. open_clip lists OpenAI's weights under both names."""

_SSCD: Final = Thresholds(
    similar=0.75,
    candidate=0.75,
    source="0.75 is what its authors publish: 90 % of the pairs above it are copies, on their photos (DISC)",
    recommended=True,
)
_OTHER_SSCD: Final = replace(_SSCD, source="0.75 is published for sscd_disc_mixup alone; check some groups by eye")
"""https://github.com/facebookresearch/sscd-copy-detection, "Using SSCD descriptors"."""

_TRAINED: Final = replace(
    _IMMICH, source="taken over from ViT-B-32/openai and not measured for this model; check some groups by eye"
)

_RANDOM: Final = Thresholds(
    similar=0.998,
    source="no threshold is recommended for random weights; 0.998 shows re-encoded and resized copies only",
    recommended=False,
)
"""Measured with a seeded random ViT-B-32: copies of 20 photos re-encoded at quality 40 or halved in size stay above
0.998, while two different textures reach 0.9965."""

_NONE: Final = Thresholds(similar=1.0, source="no model was used, so no vectors were compared", recommended=False)

SIMILAR_PRECISION: Final = 0.9
"""The lower end of the interval must reach this for ``similar``: of ten photos shown, nine are copies."""
NEEDED_LABELS: Final = math.ceil(Z_95**2 * SIMILAR_PRECISION / (1 - SIMILAR_PRECISION))
"""So many labels, all of them "same", have an interval that begins there."""
LEAST_DIFFERENT: Final = 10
"""With fewer labels that say "different", the labels may come from a person who only ever confirms."""

_STEPS: Final = 10_000
"""Thresholds are tried in steps of 0.0001, a tenth of the finest that the built-in ones use."""


def thresholds_for(model_id: str, threshold: float | None = None, *, tuned: Thresholds | None = None) -> Thresholds:
    """Return the thresholds for a model id such as ``"ViT-B-32/openai@1a2b3c4d"``.

    ``tuned`` is what ``clip-client tune`` found for this model; it replaces the table, except for random weights.
    ``threshold`` replaces ``similar``. Raises ValueError if it is not between 0 and 1.
    """
    if model_id == NO_MODEL:
        return _NONE
    table = _RANDOM if is_random(model_id) else tuned or _published(*split_model_id(model_id))
    if threshold is None:
        return table
    if not 0 <= threshold <= 1:
        raise ValueError(f"the threshold is a cosine similarity between 0 and 1, got {threshold}")
    return replace(table, similar=threshold, source=f"{threshold:g} was asked for; by default: {table.source}")


def _published(model: str, pretrained: str) -> Thresholds:
    if model.startswith("sscd_"):
        return _SSCD if model == "sscd_disc_mixup" else _OTHER_SSCD
    return _PER_MODEL.get((model, pretrained), _TRAINED)


@dataclass(frozen=True, kw_only=True)
class Label:
    """A pair of photos that a person called the same or different."""

    is_same: bool
    similarity: float
    """The cosine of the two vectors."""
    shown_from: float
    """The threshold of the last search before the decision."""


@dataclass(frozen=True, kw_only=True)
class Precision:
    """How many of the labels that reach a threshold are "same"."""

    threshold: float
    same: int
    different: int

    @property
    def value(self) -> float:
        """The share of "same", 0 to 1."""
        return self.same / (self.same + self.different)

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % interval of the share."""
        return wilson_interval(self.same, self.same + self.different)

    def __str__(self) -> str:
        low, high = self.interval
        return f"expected precision {self.value:.3f} (95 % interval {low:.3f} to {high:.3f})"


@dataclass(frozen=True, kw_only=True)
class Tuning:
    """What the labels say about a model."""

    labels: int
    different: int
    """How many of them say "different"."""
    unusable: int
    """Decisions about photos of which the store has no vectors of this model, or that no search of it came before."""
    similar: Precision | None
    """The lowest threshold whose precision is at least :data:`SIMILAR_PRECISION`, at the lower end of its interval."""

    def thresholds(self, present: Thresholds) -> Thresholds | None:
        """Return the thresholds to use from now on; None if there are too few labels for any."""
        if self.similar is None or self.different < LEAST_DIFFERENT:
            return None
        return replace(
            present,
            similar=self.similar.threshold,
            source=f"tuned with {self.labels} decisions: at {self.similar.threshold:g}, {self.similar}",
            recommended=True,
        )


def tune(labels: Sequence[Label], *, unusable: int = 0) -> Tuning:
    """Find the lowest threshold that the labels support. The result does not depend on their order."""
    return Tuning(
        labels=len(labels),
        different=sum(not label.is_same for label in labels),
        unusable=unusable,
        similar=_lowest(labels),
    )


def _lowest(labels: Sequence[Label]) -> Precision | None:
    for step in sorted({math.floor(label.similarity * _STEPS) for label in labels}):
        threshold = step / _STEPS
        reached = [label.is_same for label in labels if label.shown_from <= threshold <= label.similarity]
        found = Precision(threshold=threshold, same=sum(reached), different=len(reached) - sum(reached))
        if found.interval[0] >= SIMILAR_PRECISION:
            return found
    return None


def labels_for(store: Store, vector_id: str, dimension: int) -> tuple[list[Label], int]:
    """Return the labels for the vectors of this id, and how many pairs have no vectors or no search before them.

    "same" are the photos that a person chose one by one, that were moved, and that were not restored since, each with
    the photo that stayed. Of photos that a person called different, each makes a pair with the most similar of the
    others. Of several decisions about a pair the last one counts. Pairs of similarity 1 need no threshold and are left
    out. Raises StoreError.
    """
    decided = sorted(_decided(store), key=lambda one: one[0])
    contents = sorted({sha256 for _, _, group in decided for sha256 in group})
    vectors: dict[str, np.ndarray[tuple[int], np.dtype[np.float64]]] = {}
    for positions, table in store.vectors(vector_id, dimension).find([bytes.fromhex(sha256) for sha256 in contents]):
        for position, vector in zip(positions.tolist(), table.column("vector").to_pylist(), strict=True):
            if vector is not None and np.isfinite(array := np.array(vector)).all():  # else the image had failed
                vectors[contents[position]] = array
    searches = store.settings.searches(vector_id)
    labels: dict[frozenset[str], Label] = {}
    unusable = 0
    for at_ns, is_same, group in decided:
        shown_from = next((threshold for since_ns, threshold in reversed(searches) if since_ns < at_ns), None)
        known = [sha256 for sha256 in group if sha256 in vectors]
        if len(known) < 2 or shown_from is None:
            unusable += 1
            continue
        matrix = np.stack([vectors[sha256] for sha256 in known])
        for row, sha256 in enumerate(known):
            similarities = np.round(matrix @ matrix[row], 6)
            similarities[row] = -1
            nearest = int(similarities.argmax())
            similarity = float(similarities[nearest])
            if shown_from <= similarity < 1:
                pair = frozenset((sha256, known[nearest]))
                labels[pair] = Label(is_same=is_same, similarity=similarity, shown_from=shown_from)
    return list(labels.values()), unusable


def _decided(store: Store) -> Iterator[tuple[int, bool, tuple[str, ...]]]:
    """Yield when each decision was made, whether it says "same", and its contents."""
    for decision in store.decisions.all():
        if decision.what == DIFFERENT:
            yield decision.at_ns, False, tuple(sorted(decision.contents))
    undone = {(entry.kept_sha256, entry.files[0].sha256) for entry in store.journal.entries((State.RESTORED,))}
    for choice in store.choices.all():
        if choice.what == KEEP and choice.run and not choice.rules:
            kept, *others = choice.photos
            for photo in others:
                if photo.moves and photo.sha256 != kept.sha256 and (kept.sha256, photo.sha256) not in undone:
                    yield choice.at_ns, True, (kept.sha256, photo.sha256)
