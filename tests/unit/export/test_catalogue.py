"""The table of models: against the skeletons of the package, and on the page that repeats it."""

from __future__ import annotations

import json

import pytest

from preprocess_ensemble.export import command
from preprocess_ensemble.export.catalogue import MODELS, Model, Table, facts, recall
from preprocess_ensemble.export.model_source import shipped_models
from preprocess_ensemble.export.skeleton import GENERATED, find_skeleton
from tests.paths import ROOT


@pytest.mark.parametrize("model", [model for model in MODELS if not model.needs_pytorch], ids=lambda model: model.name)
def test_what_a_skeleton_knows_is_in_the_table(model: Model) -> None:
    skeleton = find_skeleton(model.name)
    assert model.context_length == skeleton.token_kinds[0]
    assert model.dimension == skeleton.text.expected[GENERATED].shape[1]
    assert model.preprocess_id == skeleton.tags[model.pretrained].preprocess.id
    sizes = (skeleton.image.weights_bytes, skeleton.text.weights_bytes)
    assert (model.image_mb, model.text_mb) == tuple(round(size / 1e6) for size in sizes)


def test_every_model_without_pytorch_is_in_the_table() -> None:
    assert sorted(model.name for model in MODELS if not model.needs_pytorch) == shipped_models()


def test_models_with_pytorch_are_open_clips() -> None:
    import open_clip

    assert all(model.pretrained in open_clip.list_pretrained_tags_by_model(model.name) for model in MODELS)


def test_the_speed_is_that_of_the_newest_result() -> None:
    newest = max((ROOT / "benchmarks" / "results").glob("towers-*.json"))
    measured = json.loads(newest.read_text(encoding="utf-8"))["milliseconds"]
    for model in MODELS:
        (found,) = [
            one for id_, one in measured.items() if id_.partition("/")[0].removesuffix("-stand-in") == model.name
        ]
        assert (model.image_ms, model.text_ms) == (round(found["image"]), round(found["text"]))


@pytest.mark.parametrize("table", [facts(), recall()], ids=["facts", "recall"])
def test_the_page_has_the_table(table: Table) -> None:
    lines = [
        "|".join(("", *(f" {cell} " if cell else " " for cell in row), "")) for row in (table.headings, *table.rows)
    ]
    lines.insert(1, "|".join(("", *("---" for _ in table.headings), "")))
    assert "\n".join(lines) in (ROOT / "docs" / "models.md").read_text(encoding="utf-8")


def test_the_list_has_every_model(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--list"]) == 0
    printed = capsys.readouterr().out
    assert all(f"{model.name} " in printed for model in MODELS)
