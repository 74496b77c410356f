"""The tokenizer that an export writes; tests/unit/text/ compares the ids that it gives."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError

from preprocess_ensemble.export.model_source import ExportError
from preprocess_ensemble.export.tokenizer_files import write_tokenizer
from preprocess_ensemble.text.tokenizer import TOKENIZER_FILE, TokenizerConfig
from tests.fixtures.texts.tokenizers import write_gemma, write_xlm_roberta


def test_the_file_of_clip_is_the_same_everywhere(tmp_path: Path) -> None:
    # The fingerprint of each text tower depends on it: another digest means that all must be exported again.
    config, digests = write_tokenizer(tmp_path, {"context_length": 77})
    assert config == TokenizerConfig(kind="clip-bpe", clean="lower", context_length=77)
    assert digests == {TOKENIZER_FILE: "af77101a709a4d2f188a1efd497c92e71f5b38b17e3575af0f7dac96770c032c"}


def test_a_tokenizer_of_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_gemma(tmp_path)
    (tmp_path / "exported").mkdir()

    def download(repository: str, file: str) -> str:
        assert repository == "timm/ViT-B-32-SigLIP2-256"
        return str(tmp_path / file)

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)
    cfg = {"hf_tokenizer_name": "timm/ViT-B-32-SigLIP2-256", "tokenizer_kwargs": {"clean": "canonicalize"}}
    config, _ = write_tokenizer(tmp_path / "exported", {**cfg, "context_length": 64, "vocab_size": 256000})
    assert config == TokenizerConfig(kind="hf", clean="canonicalize", context_length=64)
    written = json.loads((tmp_path / "exported" / TOKENIZER_FILE).read_text(encoding="utf-8"))
    assert (written["padding"]["pad_token"], written["padding"]["strategy"]) == ("<pad>", {"Fixed": 64})


def test_settings_that_the_hub_lacks_are_no_error_and_those_that_it_may_have_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_xlm_roberta(tmp_path)
    (tmp_path / "exported").mkdir()
    error: Exception = EntryNotFoundError.__new__(EntryNotFoundError, "404")

    def download(_: str, file: str) -> str:
        if file == TOKENIZER_FILE:
            return str(tmp_path / file)
        raise error

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)
    write_tokenizer(tmp_path / "exported", {"hf_tokenizer_name": "xlm-roberta-base"})
    error = LocalEntryNotFoundError("only the cache was searched")
    with pytest.raises(ExportError, match="only the cache was searched"):
        write_tokenizer(tmp_path / "exported", {"hf_tokenizer_name": "xlm-roberta-base"})


def test_a_tokenizer_that_pads_on_the_left(tmp_path: Path) -> None:
    write_gemma(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text('{"padding_side": "left", "pad_token": "<pad>"}', encoding="utf-8")
    (tmp_path / "exported").mkdir()
    write_tokenizer(tmp_path / "exported", {"hf_tokenizer_name": str(tmp_path)})
    written = json.loads((tmp_path / "exported" / TOKENIZER_FILE).read_text(encoding="utf-8"))
    assert written["padding"]["direction"] == "Left"


@pytest.mark.parametrize(
    ("text_cfg", "words"),
    [
        ({"tokenizer_mode": "clips"}, "tokenizer_mode"),
        ({"tokenizer_kwargs": {"reduction_mask": "simple"}}, "reduction_mask"),
        ({"tokenizer_kwargs": {"clean": "upper"}}, "upper"),
        ({"vocab_size": 64}, "has 64 tokens, and CLIP's tokenizer 49,408"),
        ({"hf_tokenizer_name": "/"}, "cannot be loaded"),
    ],
)
def test_what_is_not_known_is_refused(tmp_path: Path, text_cfg: dict[str, Any], words: str) -> None:
    with pytest.raises(ExportError, match=words):
        write_tokenizer(tmp_path, text_cfg)
    assert list(tmp_path.iterdir()) == []


def test_a_tokenizer_without_padding(tmp_path: Path) -> None:
    write_xlm_roberta(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text('{"pad_token": "<none>"}', encoding="utf-8")
    with pytest.raises(ExportError, match="has no pad_token"):
        write_tokenizer(tmp_path, {"hf_tokenizer_name": str(tmp_path)})
