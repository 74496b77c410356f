"""Token ids, compared with those of open_clip's own tokenizers: a slice here, and 100,000 texts with ``make fuzz``.

CLIP's vocabulary is the real one. Those of SigLIP 2 and XLM-R are stand-ins of their kind, read by open_clip through
transformers: the real ones are on a hub. What each bad text gets, and that its neighbours do not notice.
"""

import os
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from preprocess_ensemble.contract import MAX_TEXT_BYTES, ImageStatus
from preprocess_ensemble.export.tokenizer_files import write_tokenizer
from preprocess_ensemble.text.text_input import tokenize_rows
from preprocess_ensemble.text.tokenizer import TOKENIZER_FILE, Tokenizer, TokenizerConfig, TokenizerError
from tests.fixtures.texts.fuzzed_texts import fuzzed_text
from tests.fixtures.texts.tokenizers import write_gemma, write_xlm_roberta

TEXTS = int(os.environ.get("FUZZ_TEXTS", "2000"))
SEED = int(os.environ.get("FUZZ_SEED", "7"))
CHUNK = 1000


@dataclass(frozen=True)
class Pair:
    """A tokenizer, and open_clip's for the same model."""

    ours: Tokenizer
    theirs: Any

    def token_counts(self, texts: list[str]) -> list[int]:
        """Numbers of open_clip's tokens before it cuts a text off."""
        from open_clip.tokenizer import HFTokenizer

        if isinstance(self.theirs, HFTokenizer):
            return [len(ids) for ids in self.theirs.tokenizer([self.theirs.clean_fn(t) for t in texts]).input_ids]
        return [2 + len(self.theirs.encode(text)) for text in texts]


def clip(folder: Path) -> Pair:
    import open_clip

    config, digests = write_tokenizer(folder, {"context_length": 77, "vocab_size": 49408, "width": 512})
    return Pair(Tokenizer.load(folder, config, digests), open_clip.get_tokenizer("ViT-B-32"))


def from_hub(write: Callable[[Path], None], context_length: int, **options: Any) -> Callable[[Path], Pair]:
    def make(folder: Path) -> Pair:
        from open_clip.tokenizer import HFTokenizer

        write(folder)
        theirs = HFTokenizer(str(folder), context_length=context_length, **options)
        exported = folder / "exported"
        exported.mkdir()
        cfg = {"context_length": context_length, "hf_tokenizer_name": str(folder), "tokenizer_kwargs": options}
        config, digests = write_tokenizer(exported, cfg)
        return Pair(Tokenizer.load(exported, config, digests), theirs)

    return make


KINDS = {
    "clip": clip,
    "siglip2": from_hub(write_gemma, 64, clean="canonicalize"),
    "xlm-roberta": from_hub(write_xlm_roberta, 77),
    "without-separator": from_hub(write_xlm_roberta, 10, clean="lower", strip_sep_token=True),
}


@pytest.fixture(scope="module", params=KINDS)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return KINDS[request.param](tmp_path_factory.mktemp(request.param))


KNOWN = (
    "", "İSTANBUL ığdır", "<start_of_text> a dog <END_OF_TEXT>", "\ud83d\ude00 \ud800", "&amp;lt;b&amp;gt;", "of" * 40,
)  # fmt: skip


@pytest.mark.timeout(60 + TEXTS // 100)
def test_token_ids_are_those_of_open_clip(pair: Pair) -> None:
    different = []
    long = 0
    for start in range(0, TEXTS, CHUNK):
        texts = [*KNOWN, *(fuzzed_text(SEED, number) for number in range(start, min(start + CHUNK, TEXTS)))]
        ids, truncated = pair.ours.encode(texts)
        wrong = (ids != pair.theirs(texts).numpy()).any(axis=1)
        wrong |= truncated != (np.array(pair.token_counts(texts)) > pair.ours.config.context_length)
        different += [texts[row] for row in np.flatnonzero(wrong)]
        long += int(truncated.sum())
    assert different == []
    assert 0.05 * TEXTS < long < 0.9 * TEXTS


def test_no_texts_give_no_rows_and_the_configuration_survives_the_passport(pair: Pair) -> None:
    ids, truncated = pair.ours.encode([])
    assert (ids.shape, truncated.shape) == ((0, pair.ours.config.context_length), (0,))
    assert TokenizerConfig.from_mapping(asdict(pair.ours.config)) == pair.ours.config


@pytest.mark.parametrize(
    ("length", "digests", "says"),
    [
        (77, {TOKENIZER_FILE: "0" * 64}, "not the file that was exported with this model"),
        (77, {}, "not the file that was exported with this model"),
        (77, {"merges.txt": "0" * 64}, r"merges\.txt cannot be read \(No such file"),
        (64, None, "cannot load"),
    ],
    ids=["another file", "an unknown file", "a missing file", "another length"],
)
def test_files_that_do_not_belong_to_the_model_are_refused(
    length: int, digests: dict[str, str] | None, says: str, tmp_path: Path
) -> None:
    config, exported = write_tokenizer(tmp_path, {})
    with pytest.raises(TokenizerError, match=says):
        Tokenizer.load(tmp_path, replace(config, context_length=length), exported if digests is None else digests)


@pytest.mark.parametrize(
    ("change", "says"),
    [({"kind": "bytes"}, "has no tokenizer of the kind"), ({"clean": "upper"}, "has no tokenizer of the kind"),
     ({"language": "de"}, "cannot be read")],
)  # fmt: skip
def test_a_tokenizer_of_a_later_version_is_refused(change: dict[str, str], says: str) -> None:
    mapping = asdict(TokenizerConfig(kind="clip-bpe", clean="lower", context_length=77))
    with pytest.raises(TokenizerError, match=says):
        TokenizerConfig.from_mapping({**mapping, **change})


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
