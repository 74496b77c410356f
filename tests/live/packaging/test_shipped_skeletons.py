"""The shipped skeleton of ViT-B-32 gives the very file that PyTorch gives. Other tests show it for a small model."""

import filecmp
from dataclasses import replace
from pathlib import Path

import pytest

from tests.fixtures.models.exports import export, export_without_pytorch, installed, load_model, text_of


@pytest.mark.long
def test_the_shipped_skeleton_gives_the_file_that_pytorch_gives(tmp_path: Path) -> None:
    """If it differs, record it again: ``clip-export --model ViT-B-32 --skeleton FILE`` (see CONTRIBUTING.md)."""
    with_pytorch = tmp_path / "with"
    passport = export(with_pytorch, "ViT-B-32")
    without = export_without_pytorch(load_model("ViT-B-32", "random:0").state_dict(), tmp_path)
    files = ("clip_encoder/1/model.onnx", "clip_text_encoder/1/model.onnx", "clip_tokenize/1/tokenizer.json")
    assert filecmp.cmpfiles(with_pytorch, without, files, shallow=False) == (list(files), [], [])
    other = installed(without)
    assert (other.fingerprint, other.canary) == (passport.fingerprint, passport.canary)
    assert replace(text_of(other), parity=text_of(passport).parity) == text_of(passport)
