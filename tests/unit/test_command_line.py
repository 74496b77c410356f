"""The parts that the four commands share: one parser, and one table of removed options."""

import re
from collections.abc import Callable, Sequence

import pytest

from clip_client.cli.main import main as clip_client
from clip_client.gateway.command import main as clip_gateway
from clip_client.serving.command import main as clip_serve
from preprocess_ensemble.export.command import main as clip_export
from preprocess_ensemble.refusals import GONE, refusal
from tests.fixtures.commands import Run
from tests.paths import ROOT

COMMANDS: dict[str, Callable[[Sequence[str]], int]] = {
    "clip-client": clip_client,
    "clip-export": clip_export,
    "clip-gateway": clip_gateway,
    "clip-serve": clip_serve,
}
MUTUAL = "clip-serve --tls-certificate=c --tls-key=k --tls-client-ca=a"
TO_ALL = "--http-port would let clients in without the certificate that --tls-client-ca requires"


def misuse(line: str, run: Run) -> str:
    name, *words = line.split()
    return run(COMMANDS[name], *words, code=2).err


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("clip-export --modle ViT-L-14", "there is no option --modle; did you mean --model?"),
        ("clip-gateway --prot 80", "there is no option --prot; did you mean --port?"),
        ("clip-client health --ca-certificate=a", "there is no option --ca-certificate; did you mean --tls-ca?"),
        ("clip-gateway --client-key a", "there is no option --client-key; did you mean --tls-key?"),
        ("clip-export --tensort", "there is no option --tensort; did you mean --tensorrt?"),
        ("clip-export --tensorrt 9", "invalid choice: 9 (choose from 10, 11)"),
        ("clip-export --precision fp61", "did you mean fp16?"),
        ("clip-export --towers image,txt", "did you mean image,text?"),
        ("clip-gateway --max-body-bytes 0", "--max-body-bytes: expected a whole number of at least 1, got '0'"),
        ("clip-gateway --port 0", "expected a port from 1 to 65535, got '0'"),
        ("clip-gateway --workers 0", "expected a whole number of at least 1, got '0'"),
        ("clip-serve models", "put arguments for tritonserver after --"),
        ("clip-serve --grpc-port 65536", "expected a port from 1 to 65535, got '65536'"),
        ("clip-serve --grpc-port x", "expected a port from 1 to 65535, got 'x'"),
        ("clip-serve --frozen-after-s -5", "a number of seconds above 0, got '-5'"),
        ("clip-serve --pretrained=openai", "--pretrained needs --model"),
        ("clip-serve --tls-key=k", "belong together"),
        ("clip-serve --tls-client-ca=c", "--tls-client-ca needs"),
        ("clip-serve --canary-key=k", "belong together"),
        ("clip-serve --canary-key=k --canary-certificate=c", "--canary-certificate needs --tls-client-ca"),
        *((f"{MUTUAL} {http}", TO_ALL) for http in ("--http-port=8000", "-- --allow-http=true", "-- --http-port=8000")),
        ("clip-serve --http-host=0.0.0.0", "--http-host needs --http-port"),
        ("clip-serve --start-timeout-s inf", "expected a number of seconds above 0, got 'inf'"),
    ],
)
def test_wrong_words_get_the_usage_and_a_sentence(line: str, says: str, run: Run) -> None:
    error = misuse(line, run)
    assert error.startswith(f"usage: {line.split()[0]} ")
    assert says in error.splitlines()[-1]


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_tells_the_version(name: str, run: Run) -> None:
    assert re.fullmatch(rf"{name} [0-9]\S*\n", run(COMMANDS[name], "--version").out)


def test_what_is_gone_gets_one_sentence(run: Run) -> None:
    for line, instead in GONE.items():
        assert misuse(line, run) == f"{line} is gone: {instead}\n"
        for page in re.findall(r"docs/\S+\.md", instead):
            assert (ROOT / page).is_file(), line


@pytest.mark.parametrize(
    ("line", "key"),
    [
        ("clip-client index --to x", "clip-client index"),
        ("clip-client dedup index", ""),
        ("clip-client dedup . --strict", "clip-client dedup --strict"),
        ("clip-client review . --strict", ""),
        ("clip-client dedup -- --strict", ""),
        ("clip-client dedup --act-on exact", ""),
        ("clip-client dedup . --act-on exact --act-on edited", "clip-client dedup --act-on edited"),
        ("clip-client dedup --act-on=edited .", "clip-client dedup --act-on edited"),
        ("clip-client review --hash-bits=9", "clip-client --hash-bits"),
        ("clip-client search cat --in qdrant://host/photos", "clip-client search --in qdrant://"),
        ("clip-serve --hash-bits 9", ""),
    ],
)
def test_a_row_stands_for_every_way_to_write_it(line: str, key: str) -> None:
    rows = ("index", "dedup --strict", "dedup --act-on edited", "--hash-bits", "search --in qdrant://")
    program, *words = line.split()
    said = refusal(program, words, {f"clip-client {row}": "do that" for row in rows})
    assert said == (f"{key} is gone: do that" if key else "")
