"""The table of models: against the skeletons of the package, and on the page that repeats it."""

from __future__ import annotations

import json

import pytest

from preprocess_ensemble.export import command
from preprocess_ensemble.export.catalogue import tables
from preprocess_ensemble.export.model_source import SHIPPED, shipped_models
from preprocess_ensemble.export.skeleton import GENERATED, find_skeleton
from tests.paths import ROOT

HEADINGS, *ROWS = tables()[0]
MODELS = [dict(zip(HEADINGS, row, strict=True)) for row in ROWS]


@pytest.mark.parametrize(
    "model", [model for model in MODELS if not model["PyTorch"]], ids=lambda model: model["--model"]
)
def test_what_a_skeleton_knows_is_in_the_table(model: dict[str, str]) -> None:
    skeleton = find_skeleton(model["--model"])
    assert int(model["tokens"]) == skeleton.token_kinds[0]
    assert int(model["dimension"]) == skeleton.text.expected[GENERATED].shape[1]
    assert model["preprocessing"] == skeleton.tags[model["--pretrained"]].preprocess.id
    sizes = (skeleton.image.weights_bytes, skeleton.text.weights_bytes)
    assert model["MB, image + text"] == " + ".join(f"{size / 1e6:.0f}" for size in sizes)


def test_every_model_is_open_clips_and_those_without_pytorch_are_shipped() -> None:
    import open_clip

    assert sorted(model["--model"] for model in MODELS if not model["PyTorch"]) == shipped_models()
    for model in MODELS:
        assert model["--pretrained"] in open_clip.list_pretrained_tags_by_model(model["--model"])


def test_the_speed_is_that_of_the_newest_result() -> None:
    newest = max((ROOT / "benchmarks" / "results").glob("towers-*.json"))
    measured = {
        id_.partition("/")[0].removesuffix("-stand-in"): f"{one['image']:.0f} + {one['text']:.0f}"
        for id_, one in json.loads(newest.read_text(encoding="utf-8"))["milliseconds"].items()
    }
    assert {model["--model"]: model["ms, image + text"] for model in MODELS} == measured


def test_the_page_has_the_tables() -> None:
    page = (ROOT / "docs" / "models.md").read_text(encoding="utf-8")
    for block in (SHIPPED.with_name("models.md")).read_text(encoding="utf-8").split("\n\n"):
        assert not block.startswith("|") or block.strip() in page


def test_the_list_has_every_model(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--list"]) == 0
    printed = capsys.readouterr().out
    assert all(printed.count(f"{model['--model']} ") >= 1 for model in MODELS)
    assert "Recall in percent by language" in printed
