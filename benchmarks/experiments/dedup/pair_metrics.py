"""How good a detector of copies is: over pairs, over groups, and over what it would delete."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Bools = NDArray[np.bool_]


def pair_figures(found: Bools, same: Bools) -> dict[str, float]:
    """Return precision, recall, F1 and the rate of false pairs; both arguments have one value a pair."""
    hits = float((found & same).sum())
    precision, recall = hits / max(1, found.sum()), hits / max(1, same.sum())
    return {
        "precision": precision,
        "recall": recall,
        "f1": 2 * precision * recall / max(1e-12, precision + recall),
        "false_pair_rate": float((found & ~same).sum() / max(1, (~same).sum())),
    }


def curve(
    scores: NDArray[np.float64], same: Bools
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Return thresholds, falling, with the precision and the recall of the pairs at or above each.

    Pairs of equal score pass together: a threshold cannot tell them apart.
    """
    order = np.argsort(-scores, kind="stable")
    last = np.flatnonzero(np.diff(scores[order], append=-np.inf))
    hits = np.cumsum(same[order])[last]
    return scores[order][last], hits / (last + 1), hits / max(1, same.sum())


def ranking_figures(scores: NDArray[np.float64], same: Bools) -> dict[str, Any]:
    """Return uAP (micro average precision) and the recall at 90 % precision, as DISC21 defines them."""
    _, precision, recall = curve(scores, same)
    at_90 = recall[precision >= 0.9]
    return {
        "uap": float((precision * np.diff(recall, prepend=0.0)).sum()),
        "recall_at_p90": float(at_90.max()) if len(at_90) else 0.0,
    }


def group_figures(groups: Sequence[Sequence[int]], family: NDArray[np.intp], alike: Bools) -> dict[str, float]:
    """Return B-cubed precision, recall and F1, the chaining share and the largest group.

    ``groups`` hold row numbers, each row once at most, the kept one first; ``family`` has the shape (N,). ``alike``
    (N, N) says which pairs pass the detector's test. Chaining is the share of pairs inside groups that do not.
    """
    label = np.arange(len(family))
    for members in groups:
        label[list(members)] = members[0]
    mates, kin = label[:, None] == label, family[:, None] == family  # (N, N)
    both = (mates & kin).sum(axis=1)
    precision, recall = float((both / mates.sum(axis=1)).mean()), float((both / kin.sum(axis=1)).mean())
    inside = np.triu(mates, 1)
    return {
        "bcubed_precision": precision,
        "bcubed_recall": recall,
        "bcubed_f1": 2 * precision * recall / (precision + recall),
        "chaining": float((inside & ~alike).sum() / max(1, inside.sum())),
        "largest_group": max(map(len, groups), default=1),
    }


def delete_figures(
    groups: Sequence[Sequence[int]], family: NDArray[np.intp], cut_from: NDArray[np.intp], pixels: NDArray[np.intp]
) -> dict[str, float]:
    """Return the most important figure: of 1,000 photos deleted, how many had no copy left.

    All but the first of each group are deleted; a hard negative is a family of its own. If it was cut out of another
    family, ``cut_from`` (N,), a kept photo of that family shows it, too. ``keeper_right`` is the share of groups of one
    family whose first has the most ``pixels``.
    """
    deleted = np.zeros(len(family), dtype=bool)
    for members in groups:
        deleted[list(members[1:])] = True
    kept_families = set(family[~deleted].tolist())
    harmful = sum(
        kept_families.isdisjoint(shown)
        for shown in zip(family[deleted].tolist(), cut_from[deleted].tolist(), strict=True)
    )
    pure = [members for members in groups if len(set(family[list(members)].tolist())) == 1]
    right = sum(pixels[members[0]] == pixels[list(members)].max() for members in pure)
    return {
        "deleted": int(deleted.sum()),
        "harmful_per_1000": 1000 * harmful / max(1, deleted.sum()),
        "keeper_right": right / max(1, len(pure)),
    }
