"""The thresholds of a model: built in, asked for, and from decisions: which pairs count, and what they prove."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest

from clip_client.dedup import Store, thresholds_for
from clip_client.dedup.compare.cells import wilson_interval
from clip_client.dedup.compare.thresholds import NEEDED_LABELS, Label, Precision, labels_for, tune
from clip_client.dedup.store.choices import KEEP, SKIP, ChosenPhoto
from clip_client.dedup.store.decisions import DIFFERENT, KEEP_ALL
from clip_client.dedup.store.journal import MovedFile, State
from clip_client.dedup.types import is_random
from tests.fixtures.vectors import at_degrees

if TYPE_CHECKING:
    from pathlib import Path

MODEL = "ViT-B-32/openai@1a2b3c4d"
VECTOR_ID = f"{MODEL}|shortest-bicubic-224x224|original"


@pytest.mark.parametrize(
    ("model_id", "is_untrained"),
    [
        ("ViT-B-32/random:0@1a2b3c4d", True),
        ("ViT-B-32/random@1a2b3c4d+fp16", True),
        (MODEL, False),
        ("ViT-B-32//data/random/weights@2.pt@1a2b3c4d", False),
    ],
)
def test_random_weights_are_known_by_the_id(model_id: str, is_untrained: bool) -> None:
    assert is_random(model_id) is is_untrained
    found = thresholds_for(model_id)
    assert found.recommended is not is_untrained
    # Two different textures reach 0.9965 under random weights, copies stay above 0.998.
    assert not is_untrained or 0.9965 < found.similar <= 0.998


def test_a_threshold_says_where_it_comes_from() -> None:
    known, unknown = thresholds_for(MODEL), thresholds_for("ViT-L-14/laion2b@1a2b3c4d")
    assert known.similar == unknown.similar
    assert ["not measured for this model" in one.source for one in (known, unknown)] == [False, True]
    asked = thresholds_for(MODEL, 0.9)
    assert asked.similar == 0.9
    assert "0.9 was asked for" in asked.source


def test_sscd_has_the_threshold_of_its_authors() -> None:
    published, other = (
        thresholds_for(f"sscd_{name}/file:a.torchscript.pt@1a2b3c4d") for name in ("disc_mixup", "disc_blur")
    )
    # Vectors nominate pairs for alignment as far down as they say anything.
    assert (published.similar, published.candidate, published.recommended) == (0.75, 0.75, True)
    assert other.similar == 0.75
    assert "sscd_disc_mixup alone" in other.source


@pytest.mark.parametrize("value", [-0.1, 1.1, float("nan"), float("inf")])
def test_no_other_number_is_a_threshold(value: float) -> None:
    with pytest.raises(ValueError, match="between 0 and 1"):
        thresholds_for(MODEL, value)


@pytest.mark.parametrize(("successes", "trials"), [(0, 5), (5, 5), (1, 3), (34, 35), (380, 381), (999, 1000)])
def test_the_interval_is_wilsons(successes: int, trials: int) -> None:
    # By definition: the shares from which the observed one is 1.96 standard deviations away, and no more.
    share = successes / trials
    for end in wilson_interval(successes, trials):
        assert 0 <= end <= 1
        assert (share - end) ** 2 == pytest.approx(1.959964**2 * end * (1 - end) / trials, abs=1e-12)
    assert wilson_interval(0, 0) == (0.0, 1.0), "without trials nothing is known"


def same(similarity: float, number: int = 1, shown_from: float = 0.5) -> list[Label]:
    return [Label(is_same=True, similarity=similarity, shown_from=shown_from)] * number


def different(similarity: float, number: int = 1, shown_from: float = 0.5) -> list[Label]:
    return [replace(label, is_same=False) for label in same(similarity, number, shown_from)]


def test_the_lowest_threshold_with_few_mistakes_is_found_whatever_the_order() -> None:
    labels = [*same(0.98, 400), *same(0.95, 200), *different(0.96, 20), *different(0.9, 300)]
    tuning = tune(labels)
    assert tuning.similar == Precision(threshold=0.95, same=600, different=20)
    assert tuning.similar.value == pytest.approx(600 / 620)
    random.Random(0).shuffle(labels)
    assert tune(labels) == tuning
    found = tuning.thresholds(thresholds_for(MODEL))
    assert found is not None
    assert (found.similar, found.recommended) == (0.95, True)
    assert found.source.startswith("tuned with 920 decisions: at 0.95, expected precision 0.968 (95 % interval 0.9")


def test_too_few_labels_change_nothing() -> None:
    present = thresholds_for(MODEL)
    needed = NEEDED_LABELS
    assert tune([]).thresholds(present) is None
    assert tune([*same(0.95, needed - 1), *different(0.6, 10)]).thresholds(present) is None
    assert tune([*same(0.95, needed), *different(0.6, 9)]).thresholds(present) is None
    found = tune([*same(0.95, needed), *different(0.6, 10)]).thresholds(present)
    assert found is not None
    assert found.similar == 0.95


def test_pairs_that_no_search_would_have_shown_say_nothing_about_a_lower_threshold() -> None:
    # Copies at 0.7 that another test found, under a search for 0.9: different photos at 0.7 were never shown.
    tuning = tune(
        [*same(0.95, 50, shown_from=0.9), *same(0.7, 500, shown_from=0.9), *different(0.91, 20, shown_from=0.9)]
    )
    assert tuning.similar == Precision(threshold=0.95, same=50, different=0)


def content(number: int) -> str:
    return bytes([number] * 32).hex()


def store_with(folder: Path, *angles: float, threshold: float | None = 0.9) -> Store:
    """A store with vectors at these angles, contents 0, 1, ..., after a search with this threshold."""
    store = Store(folder)
    vectors = store.vectors(VECTOR_ID, 2)
    for number, vector in enumerate(at_degrees(*angles)):
        row = {"vector": None if np.isnan(vector).any() else vector, "code": "", "message": ""}
        vectors.add({"sha256": bytes.fromhex(content(number)), **row})
    vectors.flush()
    if threshold is not None:
        store.settings.note_search(VECTOR_ID, threshold)
    return store


def photo(number: int, *, moves: bool = False) -> ChosenPhoto:
    return ChosenPhoto(f"/{number}.jpg", content(number), moves)


def move(store: Store, kept: int, *moved: int) -> None:
    """Record that a person chose what moves, and that it was moved."""
    photos = [photo(kept), *(photo(number, moves=True) for number in moved)]
    store.choices.begin([choice.id for choice in store.choices.add([(KEEP, photos)])], "a run")


def similarities(store: Store) -> list[tuple[bool, float]]:
    labels, _ = labels_for(store, VECTOR_ID, 2)
    return sorted((label.is_same, round(label.similarity, 4)) for label in labels)


def cosine(degrees: float) -> float:
    return round(float(np.cos(np.radians(degrees))), 4)


def test_of_several_decisions_about_a_pair_the_last_one_is_its_label(tmp_path: Path) -> None:
    with store_with(tmp_path, 0, 10, 90, 95) as store:
        move(store, 0, 1)
        store.decisions.add(DIFFERENT, [content(2), content(3)])
        store.decisions.add(KEEP_ALL, [content(0), content(1)])  # says nothing about what the photos show
        assert similarities(store) == [(False, cosine(5)), (True, cosine(10))]
        store.decisions.add(DIFFERENT, [content(0), content(1)])
        assert similarities(store) == [(False, cosine(10)), (False, cosine(5))]
        assert labels_for(store, "another model", 2) == ([], 3)


def test_of_many_different_photos_each_counts_with_the_most_similar(tmp_path: Path) -> None:
    with store_with(tmp_path, 0, 4, 10, 90) as store:
        store.decisions.add(DIFFERENT, map(content, range(4)))
        # 0 and 4 degrees are nearest to each other, 10 degrees to 4. What is at 90 degrees no search has shown.
        assert similarities(store) == [(False, cosine(6)), (False, cosine(4))]


def test_what_needs_no_threshold_and_what_no_search_showed_is_no_label(tmp_path: Path) -> None:
    with store_with(tmp_path, 0, 0, 40, float("nan")) as store:
        for other in (1, 2, 3, 7):  # the same picture, below the threshold, no vector, unknown to the store
            move(store, 0, other)
        assert labels_for(store, VECTOR_ID, 2) == ([], 2)


def test_each_decision_belongs_to_the_search_before_it(tmp_path: Path) -> None:
    with store_with(tmp_path, 0, 10, 90, 100, 180, 190, threshold=None) as store:
        move(store, 4, 5)  # before any search
        store.settings.note_search(VECTOR_ID, 0.9)
        move(store, 0, 1)
        store.settings.note_search(VECTOR_ID, 0.8)
        move(store, 2, 3)
        labels, unusable = labels_for(store, VECTOR_ID, 2)
    assert (sorted(label.shown_from for label in labels), unusable) == ([0.8, 0.9], 1)


def test_what_a_person_chose_to_move_is_a_label_until_it_comes_back(tmp_path: Path) -> None:
    with store_with(tmp_path, 0, 10, 13, 15) as store:
        chosen, skipped, _staged, by_rules = (
            store.choices.add([(what, [photo(0), photo(moved, moves=True), photo(3)])], rules=rules)[0].id
            for what, moved, rules in ((KEEP, 1, ""), (SKIP, 2, ""), (KEEP, 2, ""), (KEEP, 2, "newest"))
        )
        store.choices.begin([chosen, skipped, by_rules], "a run")
        assert similarities(store) == [(True, cosine(10))]
        files = [MovedFile("/1.jpg", "/q/1.jpg", content(1), 1, 0, 0)]
        entry = store.journal.plan(
            run="a run", method="quarantine", kept="/0.jpg", kept_sha256=content(0), tier="similar", files=files
        )
        for state, labels in ((State.MOVED, 1), (State.RESTORED, 0)):
            store.journal.set_state(entry, state)
            assert len(similarities(store)) == labels
