"""Write the tokenizer of a text tower into the model repository, without open_clip and transformers.

CLIP's own tokenizer is built from its merges, ``vocabulary/clip_merges.txt.gz``. They are the first 48,894 of the file
``bpe_simple_vocab_16e6.txt`` of https://github.com/openai/CLIP, which open_clip has, too; ``vocabulary/LICENSE`` is its
licence. Every other tokenizer comes from the hub, or from a folder.
"""

from __future__ import annotations

import gzip
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from preprocess_ensemble.export import hub
from preprocess_ensemble.export.model_source import ExportError, WrongChoice
from preprocess_ensemble.text.tokenizer import CLEANINGS, END, START, TOKENIZER_FILE, TokenizerConfig

_MERGES: Final = Path(__file__).with_name("vocabulary") / "clip_merges.txt.gz"
_SETTINGS_FILE: Final = "tokenizer_config.json"  # file of transformers: special tokens, side of the padding
_DEFAULT_CONTEXT: Final = 77  # open_clip's, for models whose configuration has none
_OPTIONS: Final = {"clean", "strip_sep_token"}  # supported keys of open_clip's ``tokenizer_kwargs``
_UNUSED: Final = ("single_word", "lstrip", "rstrip", "normalized")  # options that are off in CLIP's tokenizer

_Document = dict[str, Any]
"""The JSON of a ``tokenizer.json``. It is edited as JSON, because releases of the tokenizers library write different
bytes, and the fingerprint of the text tower depends on the bytes."""


def write_tokenizer(directory: Path, text_cfg: Mapping[str, Any]) -> tuple[TokenizerConfig, dict[str, str]]:
    """Write the tokenizer of a model into the folder ``directory``.

    ``text_cfg`` is the section of that name in open_clip's configuration of the model. Its ``hf_tokenizer_name`` may be
    a repository of the hub or the path of a folder with ``tokenizer.json`` and ``tokenizer_config.json``; without it,
    the tokenizer is CLIP's. Returns the tokenizer's configuration, and file name -> SHA-256. Raises ExportError.
    """
    options = text_cfg.get("tokenizer_kwargs", {})
    name = text_cfg.get("hf_tokenizer_name")
    cleaning = options.get("clean", "whitespace" if name else "lower")
    unknown = sorted(options.keys() - _OPTIONS) + ["tokenizer_mode"] * bool(text_cfg.get("tokenizer_mode"))
    if unknown or cleaning not in CLEANINGS:
        raise WrongChoice(
            f"The model's tokenizer has options that are not known here ({', '.join(unknown) or cleaning}); export the "
            "image tower alone: clip-export --towers image"
        )
    document, settings = _load(str(name)) if name else (_clip_document(), {"pad_token": "!"})
    ids = _ids(document)
    if not name and text_cfg.get("vocab_size", len(ids)) < len(ids):
        raise WrongChoice(
            f"The model's text tower has {text_cfg['vocab_size']:,} tokens, and CLIP's tokenizer {len(ids):,}; name "
            "its own tokenizer as hf_tokenizer_name in the model's configuration, or use --towers image."
        )
    context_length = int(text_cfg.get("context_length", _DEFAULT_CONTEXT))
    pad = _token(ids, settings, "pad_token", "<pad>", "[PAD]")
    document["truncation"] = {
        "direction": settings.get("truncation_side", "right").capitalize(),
        "max_length": context_length,
        "strategy": "LongestFirst",
        "stride": 0,
    }
    document["padding"] = {
        "strategy": {"Fixed": context_length},
        "direction": settings.get("padding_side", "right").capitalize(),
        "pad_to_multiple_of": None,
        "pad_id": ids[pad],
        "pad_type_id": 0,
        "pad_token": pad,
    }
    data = json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode()
    (directory / TOKENIZER_FILE).write_bytes(data)
    zeroed = _token(ids, settings, "sep_token", "[SEP]", "</s>") if options.get("strip_sep_token") else None
    config = TokenizerConfig(
        kind="hf" if name else "clip-bpe",
        clean=cleaning,
        context_length=context_length,
        zeroed_id=None if zeroed is None else ids[zeroed],
    )
    return config, {TOKENIZER_FILE: hashlib.sha256(data).hexdigest()}


def _clip_document() -> _Document:
    merges = gzip.decompress(_MERGES.read_bytes()).decode().splitlines()
    # GPT-2's characters for the 256 bytes: printable bytes stand for themselves in Latin-1; other bytes get stand-ins.
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    alphabet = [chr(code) for code in (*printable, *range(256, 512 - len(printable)))]
    joined = (merge.replace(" ", "") for merge in merges)
    tokens = [*alphabet, *(f"{character}</w>" for character in alphabet), *joined, START, END]
    ids = {token: number for number, token in enumerate(tokens)}
    special = {token: {"SpecialToken": {"id": token, "type_id": 0}} for token in (START, END)}
    text = {"Sequence": {"id": "A", "type_id": 0}}
    return {
        "version": "1.0",
        # A text may contain these tokens; open_clip then treats them as special tokens.
        "added_tokens": [
            {"id": ids[token], "content": token, **dict.fromkeys(_UNUSED, False), "special": True} for token in special
        ],
        "normalizer": None,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False},
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [special[START], text, special[END]],
            "pair": [special[START], text, special[END]],
            "special_tokens": {token: {"id": token, "ids": [ids[token]], "tokens": [token]} for token in special},
        },
        "decoder": None,
        "model": {"type": "BPE", "end_of_word_suffix": "</w>", "vocab": ids, "merges": merges},
    }


def _load(name: str) -> tuple[_Document, _Document]:
    folder = Path(name)
    try:
        if not folder.is_dir():
            folder = hub.download_folder(name, TOKENIZER_FILE, _SETTINGS_FILE)
        settings = folder / _SETTINGS_FILE
        return (
            json.loads((folder / TOKENIZER_FILE).read_text(encoding="utf-8")),
            json.loads(settings.read_text(encoding="utf-8")) if settings.exists() else {},
        )
    except Exception as error:  # errors of the hub, its HTTP library, the file system or the file
        raise ExportError(
            f"The tokenizer {name} cannot be loaded.\n"
            f"  got: {hub.failure(error)}\n"
            "You can use:\n"
            "  the image tower alone: clip-export --towers image\n"
            "  a mirror of the hub:   HF_ENDPOINT=https://MIRROR clip-export ...\n"
            f"  a copy:                {TOKENIZER_FILE} and {_SETTINGS_FILE} in a folder, whose path is the "
            "hf_tokenizer_name in a copy of the model's configuration"
        ) from error


def _ids(document: _Document) -> dict[str, int]:
    vocabulary = document["model"]["vocab"]
    if isinstance(vocabulary, list):  # a unigram model has [token, score] in the order of the ids
        vocabulary = {token: number for number, (token, _) in enumerate(vocabulary)}
    return {**vocabulary, **{token["content"]: token["id"] for token in document["added_tokens"]}}


def _token(ids: Mapping[str, int], settings: Mapping[str, Any], key: str, *usual: str) -> str:
    """Return the token under ``key`` of the settings, else the first ``usual`` one that exists. Raises ExportError."""
    value = settings.get(key) or ""
    named = value["content"] if isinstance(value, Mapping) else value
    for token in [named] if named else usual:
        if token in ids:
            return str(token)
    raise ExportError(f"The model's tokenizer has no {key} ({named or ' or '.join(usual)}); use --towers image.")
