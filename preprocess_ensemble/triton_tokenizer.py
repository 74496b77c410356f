"""The Triton model ``clip_tokenize``: texts in, token ids out, which are those of the empty text if one failed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from preprocess_ensemble.backends.rows import Increments, Outputs, RowsModel, RowsRequest, check_dims, read_passport
from preprocess_ensemble.contract import TEXT, TOKENS, TRUNCATED
from preprocess_ensemble.model_repository.passport import Passport, PassportError
from preprocess_ensemble.text.text_input import tokenize_rows
from preprocess_ensemble.text.tokenizer import Tokenizer, TokenizerConfig

_LONG: Final = "clip_tokenize_truncated_total"


class TritonPythonModel(RowsModel):
    """Tokenizes the texts of one request after the other."""

    input = TEXT
    row = "text"
    requests_metric = "clip_tokenize_requests_total"
    rows_metric = "clip_tokenize_texts_total"
    metrics = {  # noqa: RUF012
        rows_metric: "Texts by their status",
        _LONG: "Texts that were longer than the model's context",
        requests_metric: "Requests by their number of texts",
    }

    def load(self, config: Mapping[str, Any], parameters: Mapping[str, str], folder: Path, version: Path) -> None:
        text = Passport.from_json(read_passport(folder / parameters["passport"])).text
        if text is None:
            raise PassportError(
                "the installed model has no text tower; run clip-export --towers image,text with the model's own "
                "--name, --model and --pretrained"
            )
        tokenizer_config = TokenizerConfig.from_mapping(text.tokenizer)
        check_dims(config, TOKENS, [tokenizer_config.context_length])
        self._tokenizer = Tokenizer.load(version, tokenizer_config, text.tokenizer_sha256)

    def answer(self, requests: Sequence[RowsRequest], increments: Increments) -> Iterator[Outputs]:
        for request in requests:
            if request.problem:
                yield {}
                continue
            tokens, texts = tokenize_rows(self._tokenizer, request.rows)
            if long := sum(text.truncated for text in texts):
                increments[_LONG, ()] += long
            yield {
                TOKENS: tokens,
                TRUNCATED: np.array([[text.truncated] for text in texts], dtype=np.bool_),
                **self.described(request, texts, increments),
            }
