"""The Triton model ``clip_tokenize``: rows of texts in, rows of token ids out. This adapts Triton's API.

::

    in   text       (N, 1) BYTES  one text in UTF-8 each
    out  tokens     (N, L) INT32  token ids, padded to the model's context; those of the empty text if the text failed
         status     (N, 1) INT32  the number of an ImageStatus (preprocess_ensemble.contract)
         error      (N, 1) BYTES  empty, or one sentence for people
         truncated  (N, 1) BOOL   whether the text is longer than the context

A text that fails never fails its request, and a malformed request never fails another one in the same batch. Its
metrics are::

    clip_tokenize_texts_total{status}   texts by their status: OK, EMPTY, ...
    clip_tokenize_truncated_total       texts that were longer than the context
    clip_tokenize_requests_total{rows}  requests by their number of texts: 1, 2-4, 5-8, 9-16, ...
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import triton_python_backend_utils as pb_utils

from preprocess_ensemble.backends.rows import (
    Counters,
    Increments,
    check_dims,
    log_defects,
    parse,
    read_passport,
    respond,
    size_class,
    text_column,
)
from preprocess_ensemble.backends.shared_memory import restrict_own_regions
from preprocess_ensemble.contract import ERROR, STATUS, TEXT, TOKENS, TRUNCATED
from preprocess_ensemble.errors import ReportedError
from preprocess_ensemble.model_repository.passport import Passport, PassportError
from preprocess_ensemble.text.text_input import tokenize_rows
from preprocess_ensemble.text.tokenizer import Tokenizer, TokenizerConfig

_TEXTS: Final = "clip_tokenize_texts_total"
_LONG: Final = "clip_tokenize_truncated_total"
_REQUESTS: Final = "clip_tokenize_requests_total"
_METRICS: Final = {
    _TEXTS: "Texts by their status",
    _LONG: "Texts that were longer than the model's context",
    _REQUESTS: "Requests by their number of texts",
}


class TritonPythonModel:
    """Triton's Python backend calls ``initialize`` once, ``execute`` for each batch of requests, then ``finalize``."""

    def initialize(self, args: Mapping[str, str]) -> None:
        """Read the passport and the tokenizer. Raises ``TritonModelException`` with one sentence if the load fails."""
        restrict_own_regions()
        config = json.loads(args["model_config"])
        name, folder = config["name"], Path(args["model_repository"])
        try:
            passport = Passport.from_json(read_passport(folder / config["parameters"]["passport"]["string_value"]))
            if passport.text is None:
                raise PassportError("the installed model has no text tower; run clip-export --towers image,text")
            tokenizer_config = TokenizerConfig.from_mapping(passport.text.tokenizer)
            check_dims(config, TOKENS, [tokenizer_config.context_length])
            digests = passport.text.tokenizer_sha256
            self._tokenizer = Tokenizer.load(folder / args["model_version"], tokenizer_config, digests)
        except (ReportedError, ValueError) as error:
            raise pb_utils.TritonModelException(f"{name}: {error}") from None
        self._counters = Counters(name, _METRICS)

    def execute(self, requests: Sequence[Any]) -> list[Any]:
        """Return a response for each request, in order."""
        increments = Increments()
        responses = []
        for request in (parse(request, TEXT, "text") for request in requests):
            tokens, texts = tokenize_rows(self._tokenizer, request.rows)
            if not request.problem:
                increments[_REQUESTS, (("rows", size_class(len(texts))),)] += 1
            for text in texts:
                increments[_TEXTS, (("status", text.status.name),)] += 1
                if text.truncated:
                    increments[_LONG, ()] += 1
            log_defects(request, "Text", [text.log for text in texts])
            outputs = {
                TOKENS: tokens,
                STATUS: np.array([[text.status] for text in texts], dtype=np.int32),
                ERROR: text_column([text.message for text in texts]),
                TRUNCATED: np.array([[text.truncated] for text in texts], dtype=np.bool_),
            }
            responses.append(respond(request, outputs))
        self._counters.add(increments)
        return responses

    def finalize(self) -> None:
        """Release the metrics."""
        self._counters.close()
