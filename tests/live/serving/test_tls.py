"""Mutual TLS on a real server under ``clip-serve``; tests/unit/serving/test_tls.py has the check of its files."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from PIL import Image

from benchmarks.fixtures.server import Server, serving
from clip_client import ClientConfig, ClipClient, Unauthorized, Unavailable
from clip_client.cli.main import main
from tests.fixtures.commands import Run
from tests.unit.serving.authority import Authority, Pair

NAME = "clip.example.org"  # name in the server's certificate, which lacks localhost


@dataclass(frozen=True, kw_only=True)
class Secured:
    """A server that requires certificates of this authority, with one of a person, and an authority that it refuses."""

    server: Server
    authority: Authority
    mine: Pair
    other: Authority

    def config(self, client: Pair | None) -> ClientConfig:
        certificate, key = client or (None, None)
        return ClientConfig(
            urls=(f"grpcs://{self.server.grpc_url}",),
            ca_certificate=self.authority.file,
            client_certificate=certificate,
            client_key=key,
            server_name=NAME,
            timeout_s=10,
        )


@pytest.fixture(scope="module")
def mutual(tiny_repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    authority, other = (Authority(tmp_path_factory.mktemp(name), name) for name in ("right", "wrong"))
    pair, canary = authority.issue(NAME), authority.issue("canary@example.org")
    options = ["--tls-certificate", pair.certificate, "--tls-key", pair.key, "--tls-client-ca", authority.file]
    options += ["--canary-certificate", canary.certificate, "--canary-key", canary.key]
    with serving(tiny_repository, *map(str, options)) as server:
        yield Secured(server=server, authority=authority, mine=authority.issue("me@example.org"), other=other)


async def _embed(config: ClientConfig) -> None:
    async with ClipClient(config=config) as clip:
        (await clip.embed([Image.effect_noise((64, 64), 50).convert("RGB")])).raise_for_errors()


@pytest.mark.parametrize("client", ["none", "another authority", "expired"])
async def test_a_client_without_a_good_certificate_is_refused(client: str, mutual: Secured) -> None:
    pair = {
        "none": None,
        "another authority": mutual.other.issue("me@example.org"),
        "expired": mutual.authority.issue("me@example.org", expired=True),
    }[client]
    with pytest.raises((Unauthorized, Unavailable)) as error:
        await _embed(mutual.config(pair))
    # TLS 1.3 tells the client after its handshake, so the refusal may look like a lost connection.
    told = re.search("hangs up.*--tls-certificate|was lost", error.value.message)
    assert isinstance(error.value, Unauthorized) or told
    await _embed(mutual.config(mutual.mine))


def test_the_command_line_takes_the_same_files(mutual: Secured, run: Run) -> None:
    command = ["health", "--quiet", f"--url=grpcs://{mutual.server.grpc_url}", f"--tls-ca={mutual.authority.file}"]
    mine = [f"--tls-certificate={mutual.mine.certificate}", f"--tls-key={mutual.mine.key}"]
    run(main, *command, f"--tls-name={NAME}", *mine)
    assert "not healthy: connect: " in run(main, *command, f"--tls-name={NAME}", code=1).err
