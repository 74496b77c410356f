"""What ``clip-export`` says to wrong choices and unusable files."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from benchmarks.fixtures.server import TINY_CLIP
from preprocess_ensemble.export import command as export_command
from preprocess_ensemble.export import exporter
from preprocess_ensemble.export.model_source import ExportError, WrongChoice
from tests.fixtures.models.exports import WITHOUT_PYTORCH, python

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--model", "ViT-B-23"], "no model 'ViT-B-23'; did you mean ViT-B-"),
        (["--pretrained", "laion2b_s34b_b79"], "did you mean laion2b_s34b_b79k"),
        (["--pretrained", "/nowhere/weights.pt"], "no checkpoint file /nowhere/weights.pt"),
        (["--pretrained", "openai"], "use --model ViT-B-32-quickgelu"),
        (["--model", "/nowhere/model.json"], "cannot be read: No such file"),
        (["--name", "my_model"], "'my_model' is no name of a model"),
    ],
)
def test_a_wrong_choice_is_misuse(
    arguments: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert export_command.main([*arguments, "--repository", str(tmp_path / "models")]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "models").exists()


@pytest.mark.parametrize("weights", ["mine.safetensors", "folder/mine"])
def test_a_missing_file_of_weights_is_not_sought_at_the_hub(
    weights: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.chdir(tmp_path)
    assert export_command.main(["--pretrained", weights]) == 2
    said = capsys.readouterr().err
    assert f"There is no checkpoint file {weights}." in said
    assert "does not answer" not in said


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
        exporter.load_model(str(model), "random")


@pytest.mark.parametrize("content", [b"", b"no checkpoint", b"PK\x03\x04", None])
def test_a_checkpoint_that_cannot_be_read_is_one_sentence(content: bytes | None, tmp_path: Path) -> None:
    import torch

    checkpoint = tmp_path / "weights.pt"
    if content is None:
        torch.save({"visual.proj": torch.zeros(3, 3)}, checkpoint)  # of another model
    else:
        checkpoint.write_bytes(content)
    with pytest.raises(ExportError, match=r"weights\.pt do not fit the model tiny_clip") as raised:
        exporter.load_model(str(TINY_CLIP), str(checkpoint))
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


def test_a_download_by_open_clip_that_fails_has_the_same_message(monkeypatch: pytest.MonkeyPatch) -> None:
    import open_clip

    def no_route(config: dict[str, Any]) -> None:
        raise OSError("no route to host")

    monkeypatch.setattr(open_clip, "download_pretrained", no_route)
    with pytest.raises(ExportError, match=r"tried: laion/CLIP-ViT-B-32-laion2B-s34B-b79K\n  got:   no route to host"):
        exporter.load_model("ViT-B-32", "laion2b_s34b_b79k")


def test_help_does_not_wait_for_pytorch() -> None:
    with python("-c", "import preprocess_ensemble.export.command, sys; print('torch' in sys.modules)") as process:
        said, _ = process.communicate()
    assert said == "False\n"
