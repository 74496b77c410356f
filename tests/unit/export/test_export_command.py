"""Messages of ``clip-export`` about wrong choices and unusable files, and the table of models that it lists."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.fixtures.server import TINY_CLIP
from preprocess_ensemble.export.command import main
from preprocess_ensemble.export.model_source import SHIPPED, ExportError, WrongChoice, shipped_models
from preprocess_ensemble.export.skeleton import GENERATED, find_skeleton
from tests.fixtures.commands import Run
from tests.fixtures.models.exports import WITHOUT_PYTORCH, load_model, python
from tests.paths import ROOT


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--model", "ViT-B-23"], "no model 'ViT-B-23'; did you mean ViT-B-"),
        (["--pretrained", "laion2b_s34b_b79"], "did you mean laion2b_s34b_b79k"),
        (["--pretrained", "/nowhere/weights.pt"], "no checkpoint file /nowhere/weights.pt"),
        (["--pretrained", "mine.safetensors"], "There is no checkpoint file mine.safetensors."),
        (["--pretrained", "folder/mine"], "There is no checkpoint file folder/mine."),
        (["--pretrained", "openai"], "use --model ViT-B-32-quickgelu"),
        (["--model", "/nowhere/model.json"], "cannot be read: No such file"),
        (["--model", "sscd_disc_mixup.torchscript.pt"], "SSCD models are not supported"),
        (["--name", "my_model"], "'my_model' cannot name a model"),
    ],
)
def test_a_wrong_choice_is_misuse(
    arguments: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Run
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert message in run(main, *arguments, "--repository", tmp_path / "models", code=2).err
    assert not (tmp_path / "models").exists()


def test_the_environment_names_model_and_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Run) -> None:
    monkeypatch.setenv("CLIP_MODEL", "/nowhere/model.json")
    assert "/nowhere/model.json cannot be read" in run(main, "--pretrained", "random", code=2).err
    monkeypatch.setenv("CLIP_MODEL", "ViT-B-32")
    monkeypatch.setenv("CLIP_PRETRAINED", "/nowhere/weights.pt")
    assert "no checkpoint file /nowhere/weights.pt" in run(main, code=2).err
    of_another_model = run(main, "--model", "/nowhere/other.json", code=2).err
    assert "weights.pt" not in of_another_model
    monkeypatch.setenv("CLIP_MODEL", str(tmp_path))
    assert "CLIP_REPOSITORY" in run(main, code=2).err


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("mine", "{", r"mine\.json is not"),
        ("mine", "[]", r"mine\.json is not"),
        ("mine", '{"embed_dim": 8}', r"mine\.json is not"),
        ("ViT-B-32", TINY_CLIP.read_text(), "rename"),
    ],
)
def test_a_file_that_is_no_model_or_has_the_name_of_another_is_misuse(
    name: str, text: str, says: str, tmp_path: Path
) -> None:
    model = tmp_path / f"{name}.json"
    model.write_text(text)
    with pytest.raises(WrongChoice, match=says):
        load_model(str(model), "random")


@pytest.mark.parametrize("content", [b"", b"no checkpoint", b"PK\x03\x04", None])
def test_a_checkpoint_that_cannot_be_read_is_one_sentence(content: bytes | None, tmp_path: Path) -> None:
    import torch

    checkpoint = tmp_path / "weights.pt"
    if content is None:
        torch.save({"visual.proj": torch.zeros(3, 3)}, checkpoint)  # of another model
    else:
        checkpoint.write_bytes(content)
    with pytest.raises(ExportError, match=r"weights\.pt do not fit the model tiny_clip") as raised:
        load_model(str(TINY_CLIP), str(checkpoint))
    assert "\n" not in str(raised.value)


def test_without_a_hub_the_message_names_three_remedies(tmp_path: Path) -> None:
    closed = "http://127.0.0.1:9"
    command = ("-c", WITHOUT_PYTORCH, "--repository", str(tmp_path / "models"))
    with python(*command, HF_ENDPOINT=closed, HF_HOME=str(tmp_path), HF_HUB_CACHE=str(tmp_path)) as process:
        _, said = process.communicate()
    assert process.returncode == 1
    assert "Traceback" not in said
    assert f"{closed} does not answer" in said
    assert "tried: laion/CLIP-ViT-B-32-laion2B-s34B-b79K" in said
    assert "only the cache was searched" in said
    assert "unset" not in said
    for way in ("--pretrained FILE", "HF_ENDPOINT=", "--pretrained random"):
        assert way in said
    assert not (tmp_path / "models").exists()


def test_a_missing_onnx_runtime_is_named_before_the_download(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Run
) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    said = run(main, "--pretrained", "random", "--repository", tmp_path / "models", code=1).err
    assert said == "clip-export needs onnxruntime: pip install '.[local]' in a clone of clip-triton\n"
    assert not (tmp_path / "models").exists()


def test_a_download_by_open_clip_that_fails_has_the_same_message(monkeypatch: pytest.MonkeyPatch) -> None:
    import open_clip

    def no_route(config: dict[str, Any]) -> None:
        raise OSError("no route to host")

    monkeypatch.setattr(open_clip, "download_pretrained", no_route)
    with pytest.raises(ExportError, match=r"tried: laion/CLIP-ViT-B-32-laion2B-s34B-b79K\n  got:   no route to host"):
        load_model("ViT-B-32", "laion2b_s34b_b79k")


TABLES = SHIPPED.with_name("models.md").read_text(encoding="utf-8")
HEADINGS, _, *ROWS = (
    [cell.strip(" `") for cell in line.split("|")[1:-1]] for line in TABLES.split("\n\n")[0].splitlines()
)
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
    for block in TABLES.split("\n\n"):
        assert not block.startswith("|") or block.strip() in page


def test_the_list_has_every_model(run: Run) -> None:
    printed = run(main, "--list").out
    assert all(printed.count(f"{model['--model']} ") >= 1 for model in MODELS)
    assert "Recall in percent by language" in printed
