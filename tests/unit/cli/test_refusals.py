"""Commands that cannot work end at once: with exit code 2 for wrong usage, 1 if something is missing, and a message."""

import errno
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest

from clip_client.cli.main import main
from preprocess_ensemble.errors import pip_install
from tests.fixtures.albums import write
from tests.fixtures.commands import Run

USAGE = "usage: clip-client "
VECTORS = ["embed", ".", "--output", "vectors"]
RAY = ["--engine", "ray"]


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
        ([*VECTORS[:3], "vectors.csv"], "or of a file with .parquet or .npz"),
        ([*VECTORS, "--transfer", "thumbnial"], "did you mean thumbnail?"),
        ([*VECTORS, "--timeout", "inf"], "a number of seconds above 0, got 'inf'"),
        (["similar", "--in", "."], "required: PHOTO"),
        (["similar", "a.jpg", "--in", ".", "--top", "0"], "a whole number of at least 1, got '0'"),
        (["health", "--timeout", "0"], "a number of seconds above 0, got '0'"),
        (["health", "--timeout", "soon"], "a number of seconds above 0, got 'soon'"),
        (["health", "--xyzzy"], "there is no option --xyzzy\n"),
        (["health", "localhost"], "unexpected arguments: localhost\n"),
        (["search", "sunset", "--since", "2019", "Pictures"], "Pictures; put Pictures before the options\n"),
        (["dedup", "a", "--apply", "b", "c"], "unexpected arguments: b c; put b c before the options\n"),
        (["search", "dog", "--json"], "--json needs a FILE; - is standard output\n"),
        (["similar", "--", "-coins.png", "--top", "3"], "--top after -- is not an option; put it before --\n"),
        (["decide"], "error: the following arguments are required: what\n"),
        (["decide", "list", "1.dng"], "list takes no PHOTO"),
        (["decide", "forget"], "forget takes one or more, and the other decisions two or more"),
        (["decide", "different"], "forget takes one or more, and the other decisions two or more"),
        (["rules"], "error: the following arguments are required: what\n"),
        *(
            (["rules", *words], "save takes a NAME and rules")
            for words in (["save", "mine"], ["list", "mine"], ["delete"])
        ),
        (["rules", "delete", "mine", "newest"], "delete takes a NAME"),
    ],
)
def test_wrong_usage_is_told_with_the_usage(words: list[str], said: str, run: Run) -> None:
    out, error = run(main, *words, code=2)
    assert (out, error[: len(USAGE)]) == ("", USAGE)
    assert said in error
    assert error.count("\n") == 2 or not words


@pytest.mark.parametrize("words", [["similar"], ["search"], ["dedup"], ["search", "dog"]])
def test_a_file_that_is_named_like_an_option_can_be_named(
    words: list[str], tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "-coins.png", b"x")
    monkeypatch.chdir(tmp_path)
    assert run(main, *words, "-coins.png", code=2).err.endswith("; write ./-coins.png for the file of that name\n")


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        # Contradictions.
        (["dedup", ""], 2, "a PATH is empty; . is the current folder"),
        (["dedup", "https://example.com/a.jpg"], 2, "only files are read; download it first: curl -O https"),
        (["dedup", ".", "--url", "ftp://localhost:8000"], 2, "gRPC port"),
        (["doctor", "--url", "ftp://localhost:8000"], 2, "gRPC port"),
        (["dedup", ".", "--without-model", "--url", "localhost:1"], 2, "--without-model needs none"),
        (["dedup", ".", "--without-model", "--threshold", "0.9"], 2, "compares none"),
        (["dedup", "x.jpg", "--without-model", "--act-on", "similar"], 2, "similar photos move from the review page"),
        (
            ["dedup", ".", "--apply", "--act-on", "edited"],
            2,
            "edited photos move from the review page (clip-client review)",
        ),
        (["dedup", ".", "--apply", "--act-on", "all"], 2, "takes exact, same-pixels, re-encoded or chosen, not 'all'"),
        (["dedup", ".", "--apply", "--act-on", "chosen", "--act-on", "exact"], 2, "leave out --act-on exact"),
        (["dedup", ".", "--keep", "prettiest"], 2, "the rules are reference"),
        (["dedup", ".", "--csv", "1.NEF"], 2, "is named like a photo"),
        (["dedup", ".", "--json", "a.html", "--report", "./a.html"], 2, "cannot write the same file: name different"),
        (["dedup", ".", "--json", "-", "--csv", "-"], 2, "cannot write the same file: name different files"),
        (["rules", "save", "a/b", "newest"], 2, "cannot name rules: use 1 to 64"),
        (["undo", "--suspects", "x.jpg"], 2, "leave out the PATH"),
        (["decide", "keep", "x.jpg"], 2, "name the photo that stays"),
        (["decide", "keep", "x.jpg", "x.jpg"], 2, "name the photo that stays"),
        (["rules", "save", "mine", "biggest"], 2, "there is no keep rule 'biggest'"),
        (["dedup", "x.jpg", "--workers", "2"], 2, "--address and --workers need --engine ray"),
        ([*VECTORS, "--address", "auto"], 2, "--address and --workers need --engine ray"),
        (["embed", "x.jpg", "--output", "s3://b/out"], 2, "a URL as --output need --engine ray"),
        ([*VECTORS, "--source", "parquet"], 2, "--source webdataset and a URL as --output need"),
        (["health", "--url", "localhost:1", "--tls-name=x"], 2, "--tls-ca, --tls-certificate and --tls-name are for"),
        (["health", "--url=grpcs://a", "--tls-key={pem}"], 2, "--tls-certificate and --tls-key belong together"),
        (["health", "--url=a", "--tls-ca={pem}"], 2, "write the URLs as grpcs://"),
        (["health", "--tls-ca={pem}"], 2, "write the URLs as grpcs://"),
        (["health", "--url=grpcs://a", "--tls-ca={pem}.no"], 2, "file.pem.no cannot be read"),
        (["health", "--token-file={pem}.no"], 2, "see --token-file"),
        (["health", "--model=a_b"], 2, "'a_b' cannot name a model"),
        (["health", "--token-file=/dev/null"], 2, "must hold the token in one line"),
        (["health", "--token-file={two}"], 2, "must hold the token in one line"),
        (["health", "--token-file=/dev/zero"], 2, "more than 65536 bytes"),
        (["health", "--token-file={latin}"], 2, "token must be non-empty printable ASCII"),
        (["health", "--url=example.org", "--token-file={pem}"], 2, "may not travel in the clear to grpc://example.org"),
        (["dedup", ".", *RAY, "--without-model"], 2, "embeds nothing"),
        (["embed", ".", "--output", "out.npz", *RAY], 2, "--engine ray needs a folder as --output, and"),
        (["embed", ".", "--output", "out/", "--retry-failed", *RAY], 2, "--retry-failed needs"),
        (["embed", ".", "--output", "out/", "--address", "auto", *RAY], 2, "--address needs a --url that every"),
        # What is not there.
        (["dedup", ".", "--keep", "format=heic,foo"], 2, "no photo has the ending 'foo', which format=heic,foo names"),
        (["rules", "save", "mine", "@other"], 1, "no rules are saved as @other"),
        (["rules", "save", "mine", "folder=/not/there"], 1, "there is no folder /not/there"),
        (["dedup", ".", "--keep", "@other"], 1, "no rules are saved as @other"),
        (["dedup", ".", "--keep", "folder=/not/there"], 1, "there is no folder /not/there, which --keep names"),
        (["dedup", ".", "--reference", "/not/there"], 1, "there is no folder /not/there, which --reference names"),
        (["dedup", "--files-from", "/not/there"], 1, "the list /not/there cannot be read: No such file"),
        (["dedup", ".", "--json", "/not/there/x"], 1, "there is no folder /not/there"),
        (["search", "dog", "--json", "/not/there/x"], 1, "there is no folder /not/there"),
        (["decide", "list", "--json", "x.jpg"], 2, "x.jpg is named like a photo"),
        (["dedup", "{empty}", "--json", "x" * 300], 1, "there is no photo to compare in the given paths"),
        (["embed", "{empty}", "--output", f"{'x' * 300}.npz"], 1, "there is no photo to embed in the given paths"),
        (["similar", "x.jpg", "--in", "x" * 300], 1, "there is no file or folder"),
        (["similar", ".", "--in", "."], 1, ". is a folder, and clip-client similar needs a photo"),
        # Neither a server nor a model is asked.
        (["search", "x", "--since=2021", "--until=2019"], 2, "--since 2021 is later than --until 2019, so no"),
        (["similar", "nosuch.jpg"], 1, "there is no file nosuch.jpg\n"),
        (["similar", "fiel.pem"], 1, "there is no file fiel.pem; did you mean file.pem?"),
        (["search", "flower", "emtpy/"], 1, "there is no file or folder emtpy/; did you mean empty?"),
        (["search", "flower", "./empty"], 1, "there is no photo in ./empty"),
        (["search", "flower"], 1, "holds no photos yet: name a folder"),
        (["search", "flower", "absent.JPG"], 1, "there is no file or folder absent.JPG"),
        (["search", "flower", "absent.parquet"], 1, "there is no file or folder absent.parquet"),
        (["search", "flower", "--in", "absent"], 1, "there is no file or folder absent"),
        (["search", "https://example.org/cat.jpg"], 2, "download it first"),
        (["search", "flower", "-"], 1, "ends with -"),
        (["search", " "], 1, "the query is empty"),
        (["search", "flower", "--near", "here"], 2, "--near must be latitude"),
        (["review", "{empty}"], 1, "there is no photo to compare in the given paths"),
        (["review", "emtpy"], 1, "there is no file or folder emtpy; did you mean empty?"),
        (["review", "my", "photos"], 1, "there is no file or folder my; did you mean 'my photos'?"),
        (["dedup", "my potos"], 1, "there is no file or folder my potos; did you mean 'my photos'?"),
        (["dedup", "--quiet", "--apply", "x.jpg", "*.png"], 1, "there is no file or folder *.png\n"),
        (["embed", "x.jpg", "gone", "--output", "out/"], 1, "there is no file or folder gone\n"),
        (["decide", "list", "--store", __file__], 1, "is a file, and a folder is needed"),
    ],
)
def test_what_cannot_work_is_one_sentence(
    words: list[str], code: int, said: str, tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    if set(RAY) <= set(words):
        pytest.importorskip("ray", reason="Ray is not installed (extra: ray)")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CLIP_STORE", str(tmp_path / "store"))
    places = {
        "photo": write(tmp_path / "x.jpg", b"x"),
        "pem": write(tmp_path / "file.pem", b"-----BEGIN CERTIFICATE-----\n"),
        "two": write(tmp_path / "two", b"one\ntwo\n"),
        "latin": write(tmp_path / "latin", b"caf\xe9"),
        "empty": tmp_path / "empty",
        "spaced": tmp_path / "my photos",
    }
    for folder in ("empty", "spaced"):
        places[folder].mkdir()
    out, error = run(main, *(word.format(**places) for word in words), code=code)
    assert (out, error.count("\n"), error.startswith("clip-client: ")) == ("", 1, True)
    assert said in error
    assert {path for path in tmp_path.iterdir() if path.name != "store"} == set(places.values())


@pytest.mark.parametrize(
    "words",
    [
        ["undo", "x.jpg"],
        ["undo", "--from", "x"],
        ["decide", "keep", "x.jpg", "y.jpg"],
        ["dedup", ".", "--json", "x.json"],
        ["purge", "--store", "x"],
    ],
)
def test_a_current_folder_that_was_deleted_is_one_sentence(
    words: list[str], tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLIP_STORE", str(tmp_path / "store"))
    folder = tmp_path / "deleted"
    folder.mkdir()
    monkeypatch.chdir(folder)
    folder.rmdir()
    said = "clip-client: the current folder no longer exists; change to another folder, and run the command again\n"
    assert run(main, *words, code=1).err == said
    assert run(main, "rules", "delete", "x", code=1).err.startswith("clip-client: no rules are saved as x"), (
        "needs none"
    )


SHUT: Final = "The folder cannot be read: Permission denied. Its photos are not compared."


@pytest.mark.parametrize(
    ("words", "said"),
    [
        *(
            (words, f"UNREADABLE {{shut}}: {SHUT}\nclip-client: there is no photo")
            for words in (
                ["search", "sunset", "{shut}"],
                ["search", "sunset", "--in", "{shut}"],
                ["similar", "{photo}", "--in", "{shut}"],
                ["dedup", "{shut}"],
                ["review", "{shut}"],
            )
        ),
        *(
            ([*words, "{shut}/x.jpg"], "clip-client: {shut}/x.jpg cannot be read: you have no permission to look into")
            for words in (["search"], ["similar"], ["dedup"], ["search", "sunset", "--in"])
        ),
        *(
            ([*words, "--store", "{shut}"], "clip-client: the store {shut} cannot be read: you have no permission")
            for words in (["search", "sunset"], ["similar", "{photo}"], ["rules", "list"], ["undo"])
        ),
    ],
)
def test_a_folder_without_permission_is_named(
    words: list[str], said: str, tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The calls of the system are refused here, because root may look into any folder."""
    places = {"photo": write(tmp_path / "x.jpg", b"x"), "shut": write(tmp_path / "shut" / "x.jpg", b"x").parent}
    monkeypatch.setenv("CLIP_STORE", str(tmp_path / "store"))

    def refuse(name: str, is_refused: Callable[[Path], bool]) -> None:
        call = getattr(os, name)

        def refusing(path: Any = ".", *more: Any, **named: Any) -> Any:
            if isinstance(path, str | Path) and is_refused(Path(path)):
                raise PermissionError(errno.EACCES, "Permission denied", str(path))
            return call(path, *more, **named)

        monkeypatch.setattr(os, name, refusing)

    for name in ("stat", "lstat"):
        refuse(name, lambda path: path.parent == places["shut"])
    for name in ("scandir", "listdir"):
        refuse(name, lambda path: path == places["shut"])
    access = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != places["shut"] and access(path, mode))
    assert said.format(**places) in run(main, *(word.format(**places) for word in words), code=1).err


def test_without_ray_the_command_says_how_to_install_it(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.delitem(sys.modules, "ray.data", raising=False)
    assert f"install it with: {pip_install('ray')}" in run(main, *VECTORS, *RAY, code=1).err
