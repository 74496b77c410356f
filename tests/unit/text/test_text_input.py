"""Rows of bytes to token ids: what each bad text gets, and that its neighbours do not notice."""

from __future__ import annotations

import time

import numpy as np
import pytest

from preprocess_ensemble.contract import MAX_TEXT_BYTES, ImageStatus
from preprocess_ensemble.export.tokenizer_files import write_tokenizer
from preprocess_ensemble.text.text_input import tokenize_rows
from preprocess_ensemble.text.tokenizer import Tokenizer

GOOD = (b"a dog on the beach", "ein Hund am Strand \U0001f436".encode(), b"word " * 200)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    folder = tmp_path_factory.mktemp("clip")
    return Tokenizer.load(folder, *write_tokenizer(folder, {}))


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"", ImageStatus.EMPTY),
        (" \t\n\u3000\u2028".encode(), ImageStatus.EMPTY),
        (b"caf\xe9", ImageStatus.NOT_UTF8),
        ("\ud83d dog".encode("utf-8", "surrogatepass"), ImageStatus.NOT_UTF8),
        (b"\xff\xfea\x00", ImageStatus.NOT_UTF8),
        (b"x" * (MAX_TEXT_BYTES + 1), ImageStatus.TOO_LARGE),
        (b"x" * MAX_TEXT_BYTES, ImageStatus.OK),
        (b"\x00", ImageStatus.OK),
        ("\ufeff".encode(), ImageStatus.OK),
        (b"&nbsp;", ImageStatus.OK),
    ],
)
def test_statuses(tokenizer: Tokenizer, data: bytes, status: ImageStatus) -> None:
    (found,) = tokenize_rows(tokenizer, [data])[1]
    assert found.status is status
    assert bool(found.message) == (status is not ImageStatus.OK)


def test_bad_rows_do_not_change_their_neighbours(tokenizer: Tokenizer) -> None:
    alone, outcomes = tokenize_rows(tokenizer, GOOD)
    assert [row.truncated for row in outcomes] == [False, False, True]
    assert alone[2, -1] == alone.max()
    tokens, outcomes = tokenize_rows(tokenizer, [GOOD[0], b"", GOOD[1], b"\xff", GOOD[2], b"x" * 70_000])
    assert np.array_equal(tokens[::2], alone)
    assert np.array_equal(tokens[1::2], np.tile(tokenizer.empty, (3, 1)))
    assert [row.status.name for row in outcomes[1::2]] == ["EMPTY", "NOT_UTF8", "TOO_LARGE"]
    assert tokenize_rows(tokenizer, [])[0].shape == (0, 77)


def test_a_defect_fails_its_row_only(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    good = tokenize_rows(tokenizer, GOOD[:1])[0]
    encode = Tokenizer.encode

    def fails_on_a_cat(self: Tokenizer, texts: list[str]) -> object:
        if "a cat" in texts:
            raise RuntimeError("secret path")
        return encode(self, texts)

    monkeypatch.setattr(Tokenizer, "encode", fails_on_a_cat)
    tokens, (failed, fine) = tokenize_rows(tokenizer, [b"a cat", GOOD[0]])
    assert failed.status is ImageStatus.INTERNAL
    assert "secret path" in failed.log
    assert "secret path" not in failed.message
    assert fine.status is ImageStatus.OK
    assert np.array_equal(tokens[1:], good)


def test_a_request_that_spent_its_time_gets_no_more_long_texts(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    spent_s = iter(range(0, 100, 4))
    monkeypatch.setattr(time, "thread_time", lambda: next(spent_s))
    _, outcomes = tokenize_rows(tokenizer, [b"x" * 5000, b"x" * 5000, b"x" * 4000])
    assert [row.status.name for row in outcomes] == ["OK", "LIMIT", "OK"]
