"""Saved rules and tuned thresholds."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from clip_client.dedup import Store, thresholds_for

if TYPE_CHECKING:
    from pathlib import Path


def test_rules_are_saved_replaced_and_deleted(tmp_path: Path) -> None:
    with Store(tmp_path) as store:
        store.settings.save_keep_rules("b", ["newest"])
        store.settings.save_keep_rules("a", ["bytes", "path=*/x, y/*"])
        store.settings.save_keep_rules("b", ["oldest"])
    with Store(tmp_path) as store:
        assert store.settings.keep_rules() == {"a": ("bytes", "path=*/x, y/*"), "b": ("oldest",)}
        assert (store.settings.delete_keep_rules("b"), store.settings.delete_keep_rules("b")) == (True, False)
        for name in ("", "x" * 65, "a/b", "a\nb"):
            with pytest.raises(ValueError, match="a name of rules is 1 to 64"):
                store.settings.save_keep_rules(name, ["newest"])
        assert list(store.settings.keep_rules()) == ["a"]


def test_tuned_thresholds_belong_to_their_vectors(tmp_path: Path) -> None:
    tuned = thresholds_for("ViT-B-32/openai@1a2b3c4d", 0.95)
    with Store(tmp_path) as store:
        store.settings.set_tuned("vectors", tuned)
    with Store(tmp_path) as store:
        assert (store.settings.tuned("vectors"), store.settings.tuned("others")) == (tuned, None)
        store.settings.set_tuned("vectors", None)
        assert store.settings.tuned("vectors") is None


def test_a_search_is_noted_if_its_threshold_is_another(tmp_path: Path) -> None:
    with Store(tmp_path) as store:
        for threshold in (0.9, 0.9, 0.8, 0.9):
            store.settings.note_search("vectors", threshold)
        noted = store.settings.searches("vectors")
        assert [threshold for _, threshold in noted] == [0.9, 0.8, 0.9]
        assert [at_ns for at_ns, _ in noted] == sorted(at_ns for at_ns, _ in noted)
        assert store.settings.searches("others") == []
