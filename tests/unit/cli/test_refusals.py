"""What cannot work ends at once: with exit code 2 for wrong usage, 1 for what is missing, and one sentence."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from clip_client.cli.main import main
from tests.fixtures.albums import write

if TYPE_CHECKING:
    from pathlib import Path

USAGE = "usage: clip-client "
VECTORS = ["embed", ".", "--output", "vectors"]


def refusal(words: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    """Return the exit code, and what is on standard error."""
    try:
        code: int | str | None = main(words)
    except SystemExit as ended:
        code = ended.code
    output = capsys.readouterr()
    assert output.out == ""
    assert isinstance(code, int)
    return code, output.err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "find duplicate photos"),
        (["find"], "invalid choice: 'find'"),
        (["dedpu", "."], "did you mean dedup?"),
        (["dedup"], "give a PATH, or a list of paths with --files-from"),
        (["dedup", ".", "--null"], "--null needs --files-from"),
        (["dedup", ".", "--thresold", "0.9"], "there is no option --thresold; did you mean --threshold?"),
        (["dedup", ".", "--aply=1"], "there is no option --aply; did you mean --apply?"),
        (["dedup", ".", "--report", "x.pdf"], "ends in .html, not 'x.pdf'"),
        (["dedup", ".", "--threshold", "97"], "a cosine similarity between 0 and 1, got '97'"),
        (["dedup", ".", "--threshold", "nan"], "a cosine similarity between 0 and 1, got 'nan'"),
        (["embed", "."], "required: --output"),
        ([*VECTORS[:3], "vectors.csv"], "must end in .parquet or .npz"),
        ([*VECTORS, "--transfer", "thumbnial"], "did you mean thumbnail?"),
        ([*VECTORS, "--shard-rows", "0"], "a whole number from 1 to 1,000,000, got '0'"),
        ([*VECTORS, "--timeout", "inf"], "a number of seconds above 0, got 'inf'"),
        (["similar", "--in", "."], "required: PHOTO"),
        (["similar", "a.jpg", "--in", ".", "--top", "0"], "a whole number of at least 1, got '0'"),
        (["health", "--timeout", "0"], "a number of seconds above 0, got '0'"),
        (["health", "--timeout", "soon"], "a number of seconds above 0, got 'soon'"),
        (["health", "--xyzzy"], "there is no option --xyzzy\n"),
        (["health", "localhost"], "unexpected arguments: localhost\n"),
        (["decide"], "error: the following arguments are required: what\n"),
        (["decide", "list", "1.dng"], "list takes no PHOTO"),
        (["decide", "forget"], "everything else needs one"),
        (["decide", "different"], "everything else needs one"),
        (["rules"], "error: the following arguments are required: what\n"),
        *(
            (["rules", *words], "save takes a NAME and rules")
            for words in (["save", "mine"], ["list", "mine"], ["delete"])
        ),
        (["rules", "delete", "mine", "newest"], "delete takes a NAME"),
    ],
)
def test_wrong_usage_is_told_with_the_usage(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, error = refusal(words, capsys)
    assert code == 2
    assert error.startswith(USAGE)
    assert said in error
    assert error.count("\n") == 2 or not words


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["dedup", ""], "a PATH is empty; . is the current folder"),
        (["dedup", "https://example.com/a.jpg"], "is a URL, and only files are read; download it first: curl -O https"),
        (["dedup", ".", "--url", "ftp://localhost:8000"], "gRPC port"),
        (["doctor", "--url", "ftp://localhost:8000"], "gRPC port"),
        (["dedup", ".", "--without-model", "--url", "localhost:1"], "asks no server"),
        (["dedup", ".", "--without-model", "--threshold", "0.9"], "compares none"),
        (["dedup", "x.jpg", "--without-model", "--act-on", "similar"], "no model is used"),
        (["rules", "save", "a/b", "newest"], "a name of rules is 1 to 64"),
        (["undo", "--suspects", "x.jpg"], "leave out the PATH"),
        (["decide", "keep", "x.jpg"], "name the photo that stays"),
        (["decide", "keep", "x.jpg", "x.jpg"], "name the photo that stays"),
        (["rules", "save", "mine", "biggest"], "there is no keep rule 'biggest'"),
        (["dedup", "x.jpg", "--workers", "2"], "--address and --workers need --engine ray"),
        ([*VECTORS, "--address", "auto"], "--address and --workers need --engine ray"),
        (["embed", "x.jpg", "--output", "s3://b/out"], "URLs, Parquet files and WebDataset tars need --engine ray"),
        ([*VECTORS, "--source", "parquet"], "WebDataset tars need --engine ray"),
        (["health", "--url=grpcs://a", "--tls-key={pem}"], "--tls-certificate and --tls-key belong together"),
        (["health", "--url=a", "--tls-ca={pem}"], "write the URLs as grpcs://"),
        (["health", "--tls-ca={pem}"], "write the URLs as grpcs://"),
        (["health", "--url=grpcs://a", "--tls-ca={pem}.no"], "file.pem.no cannot be read"),
        (["health", "--token-file={pem}.no"], "see --token-file"),
        (["health", "--model=a_b"], "'a_b' is no name of a model"),
        (["health", "--token-file=/dev/null"], "must hold the token in one line"),
        (["health", "--token-file={two}"], "must hold the token in one line"),
        (["health", "--token-file=/dev/zero"], "more than 65536 bytes"),
        (["health", "--token-file={latin}"], "token must be non-empty printable ASCII"),
        (["health", "--url=example.org", "--token-file={pem}"], "may not travel in the clear to grpc://example.org"),
    ],
)
def test_what_contradicts_itself_is_one_sentence(
    words: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "x.jpg", b"x")
    places = {
        "pem": write(tmp_path / "file.pem", b"-----BEGIN CERTIFICATE-----\n"),
        "two": write(tmp_path / "two", b"one\ntwo\n"),
        "latin": write(tmp_path / "latin", b"caf\xe9"),
    }
    before = sorted(tmp_path.iterdir())
    has_store = words[0] in ("dedup", "rules", "undo", "decide")
    store = ["--store", str(tmp_path / "store")] if has_store else []
    code, error = refusal([*(word.format(**places) for word in words), *store], capsys)
    assert (code, error.count("\n"), error.startswith("clip-client: ")) == (2, 1, True)
    assert said in error
    assert [path for path in sorted(tmp_path.iterdir()) if path.name != "store"] == before


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["dedup", "{tmp}", "--engine", "ray", "--without-model"], "embeds nothing"),
        (["embed", "--output", "{tmp}/out.npz", "{tmp}"], "--engine ray writes into a folder, and"),
        (["embed", "--output", "{tmp}/out/", "{tmp}", "--retry-failed"], "--retry-failed and --shard-rows need"),
        (["embed", "--output", "{tmp}/out/", "{tmp}", "--address", "auto"], "name the servers with --url: every"),
    ],
)
def test_what_contradicts_ray_is_one_sentence(
    words: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("ray", reason="Ray is not installed (extra: ray)")
    words = [word.format(tmp=tmp_path) for word in words]
    code, error = refusal([*words, *([] if "ray" in words else ["--engine", "ray"])], capsys)
    assert (code, said in error, list(tmp_path.iterdir())) == (2, True, [])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["rules", "save", "mine", "@other"], "no rules are saved as @other"),
        (["rules", "save", "mine", "folder=/not/there"], "there is no folder /not/there"),
        (["dedup", ".", "--keep", "@other"], "no rules are saved as @other"),
        (["dedup", ".", "--keep", "folder=/not/there"], "there is no folder /not/there: see --keep"),
        (["dedup", ".", "--reference", "/not/there"], "there is no folder /not/there: see --reference"),
        (["dedup", "--files-from", "/not/there"], "the list /not/there cannot be read: No such file"),
        (["dedup", ".", "--json", "/not/there/x"], "there is no folder /not/there"),
        (["dedup", ".", "--json", "x" * 300], "there is no photo to compare in the given paths"),
        (["embed", ".", "--output", f"{'x' * 300}.npz"], "there is no photo to embed in the given paths"),
        (["similar", "a.jpg", "--in", "x" * 300], "there is no file or folder"),
        (["similar", ".", "--in", "."], ". is a folder; name the photo to find similar ones for"),
        (["decide", "list", "--store", __file__], "is a file, and a folder is needed"),
    ],
)
def test_what_is_missing_is_one_sentence(
    words: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CLIP_STORE", str(tmp_path / "store"))
    code, error = refusal(words, capsys)
    assert (code, error.count("\n"), error.startswith("clip-client: ")) == (1, 1, True)
    assert said in error


def test_without_ray_the_command_says_how_to_install_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.delitem(sys.modules, "ray.data", raising=False)
    code, error = refusal([*VECTORS, "--engine", "ray"], capsys)
    assert (code, "install it with: pip install 'clip-triton[ray]'" in error) == (1, True)
