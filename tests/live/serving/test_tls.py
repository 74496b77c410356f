"""TLS and mutual TLS on a real server under ``clip-serve``, and certificates that do not fit."""

from __future__ import annotations

import json
import re
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import psutil
import pytest
import trustme
from PIL import Image
from tritonclient.grpc import InferenceServerClient
from tritonclient.utils import InferenceServerException

from benchmarks.fixtures.server import Server, serving
from clip_client import ClientConfig, ClipClient, ClipError, ProtocolMismatch, Unauthorized, Unavailable
from clip_client.cli.main import main
from preprocess_ensemble.errors import ReportedError
from preprocess_ensemble.serving.tls import ServerTls

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@dataclass(frozen=True)
class Pair:
    """A certificate with its key, as files."""

    certificate: Path
    key: Path


class Authority:
    """A certificate authority that writes what it issues into a folder."""

    def __init__(self, directory: Path, name: str) -> None:
        self._directory = directory
        self._name = name
        self._ca = trustme.CA(organization_name=name)
        self.file = directory / f"{name}.pem"
        self._ca.cert_pem.write_to_path(str(self.file))

    def issue(self, name: str, *, expired: bool = False) -> Pair:
        ended = datetime.now(UTC) - timedelta(days=1) if expired else None
        issued = self._ca.issue_cert(
            name, not_before=ended and ended - timedelta(days=30), not_after=ended, common_name=name
        )
        stem = f"{self._name}-{name.replace('*', 'any')}{'-expired' if expired else ''}"
        pair = Pair(self._directory / f"{stem}.pem", self._directory / f"{stem}.key")
        issued.cert_chain_pems[0].write_to_path(str(pair.certificate))
        issued.private_key_pem.write_to_path(str(pair.key))
        return pair


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"), "right")


@pytest.fixture(scope="module")
def other_authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("other"), "wrong")


@dataclass(frozen=True, kw_only=True)
class Secured:
    """A clip-serve with mutual TLS whose certificate is made out to another name than localhost."""

    server: Server
    name: str

    def config(self, authority: Authority, client: Pair | None, *, name: str | None = None) -> ClientConfig:
        return ClientConfig(
            urls=(f"grpcs://{self.server.grpc_url}",),
            ca_certificate=authority.file,
            client_certificate=None if client is None else client.certificate,
            client_key=None if client is None else client.key,
            server_name=name or self.name,
            timeout_s=10,
        )


@contextmanager
def secured(repository: Path, authority: Authority) -> Iterator[Secured]:
    pair, canary = authority.issue("clip.example.org"), authority.issue("canary@example.org")
    options = ["--tls-certificate", pair.certificate, "--tls-key", pair.key, "--tls-client-ca", authority.file]
    options += ["--canary-certificate", canary.certificate, "--canary-key", canary.key]
    with serving(repository, *map(str, options)) as server:
        yield Secured(server=server, name="clip.example.org")


@pytest.fixture(scope="module")
def mutual(tiny_repository: Path, authority: Authority) -> Iterator[Secured]:
    with secured(tiny_repository, authority) as running:
        yield running


async def _embed(config: ClientConfig) -> None:
    async with ClipClient(config=config) as clip:
        batch = await clip.embed([Image.effect_noise((64, 64), 50).convert("RGB")])
    assert batch.errors == {}


async def test_both_sides_with_good_certificates(mutual: Secured, authority: Authority) -> None:
    await _embed(mutual.config(authority, authority.issue("me@example.org")))


@pytest.mark.parametrize("client", ["none", "another authority", "expired"])
async def test_a_client_without_a_good_certificate_is_refused(
    client: str, mutual: Secured, authority: Authority, other_authority: Authority
) -> None:
    pairs = {
        "none": None,
        "another authority": other_authority.issue("me@example.org"),
        "expired": authority.issue("me@example.org", expired=True),
    }
    with pytest.raises((Unauthorized, Unavailable)) as error:
        await _embed(mutual.config(authority, pairs[client]))
    # TLS 1.3 tells the client after its handshake, so the refusal may look like a lost connection.
    assert isinstance(error.value, Unauthorized) or re.search("hangs up|was lost", error.value.message)
    await _embed(mutual.config(authority, authority.issue("me@example.org")))


async def test_a_server_of_another_authority_or_name(
    mutual: Secured, authority: Authority, other_authority: Authority
) -> None:
    me = authority.issue("me@example.org")
    with pytest.raises(Unauthorized, match="check ca_certificate"):
        await _embed(mutual.config(other_authority, me))
    with pytest.raises(Unauthorized, match="failed on a certificate"):
        await _embed(mutual.config(authority, me, name="other.example.org"))


def test_the_command_line_takes_the_same_files(
    mutual: Secured, authority: Authority, other_authority: Authority, capsys: pytest.CaptureFixture[str]
) -> None:
    me = authority.issue("me@example.org")
    server = [f"--url=grpcs://{mutual.server.grpc_url}", f"--tls-ca={authority.file}", f"--tls-name={mutual.name}"]
    mine = [f"--tls-certificate={me.certificate}", f"--tls-key={me.key}"]
    assert main(["health", "--quiet", *server, *mine]) == 0
    assert main(["doctor", "--json", *server, *mine]) in (0, 1)
    findings = {finding["name"]: finding for finding in json.loads(capsys.readouterr().out)["findings"]}
    assert findings["health"]["level"] == "ok"
    assert main(["health", "--quiet", *server]) == 1
    assert main(["health", "--quiet", server[0], f"--tls-ca={other_authority.file}", *mine]) == 1
    assert "not healthy: connect: " in capsys.readouterr().err


def test_a_file_without_a_certificate_is_one_sentence(
    mutual: Secured, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "text").write_text("no certificate", encoding="ascii")
    assert main(["health", "--quiet", f"--url=grpcs://{mutual.server.grpc_url}", f"--tls-ca={tmp_path / 'text'}"]) in (
        1,
        2,
    )
    printed = capsys.readouterr()
    assert "Traceback" not in printed.err
    assert printed.err.startswith("clip-client: ")


async def test_a_plain_client(mutual: Secured) -> None:
    with pytest.raises(ClipError, match="grpcs://"):
        await _embed(ClientConfig(urls=(mutual.server.grpc_url,), timeout_s=5))


async def test_a_tls_client_of_a_plain_server(server: Server, authority: Authority) -> None:
    config = ClientConfig(urls=(f"grpcs://{server.grpc_url}",), ca_certificate=authority.file, timeout_s=5)
    with pytest.raises(ProtocolMismatch, match="does not speak TLS"):
        await _embed(config)


def _admin_secrets(server: Server) -> list[str]:
    """As anyone on this machine sees them."""
    serve = psutil.Process(server.process.pid)
    words = [word for process in (serve, *serve.children(recursive=True)) for word in process.cmdline()]
    return [word.rpartition("clip-admin=")[2] for word in words if "clip-admin=" in word]


def test_the_secret_is_not_in_ps(mutual: Secured) -> None:
    secrets = _admin_secrets(mutual.server)
    assert len(secrets) == 1, "that of gRPC; there is no HTTP"
    assert all(set(secret) == {"x"} for secret in secrets)


def test_what_stands_in_ps_opens_nothing_and_statistics_are_closed(server: Server) -> None:
    (secret, _) = _admin_secrets(server)
    with InferenceServerClient(server.grpc_url) as client:
        with pytest.raises(InferenceServerException, match="restricted"):
            client.unload_model("clip_image", headers={"triton-grpc-protocol-clip-admin": secret})
        with pytest.raises(InferenceServerException, match="restricted"):
            client.get_inference_statistics("clip_image")


def _server_tls(pair: Pair, **more: Path) -> ServerTls:
    return ServerTls(certificate=pair.certificate, key=pair.key, **more)


def test_good_files_pass_and_give_a_name(authority: Authority) -> None:
    assert _server_tls(authority.issue("clip.example.org")).check() == "clip.example.org"
    assert _server_tls(authority.issue("*.example.org")).check() == "canary.example.org"
    assert _server_tls(authority.issue("127.0.0.1")).check() == "127.0.0.1"
    canary = authority.issue("canary@example.org")
    mutual = _server_tls(
        authority.issue("clip.example.org"),
        client_ca=authority.file,
        canary_certificate=canary.certificate,
        canary_key=canary.key,
    )
    assert mutual.check() == "clip.example.org"


def test_files_that_do_not_fit_are_named_before_the_start(
    authority: Authority, other_authority: Authority, tmp_path: Path
) -> None:
    good, other = authority.issue("clip.example.org"), authority.issue("other.example.org")
    with pytest.raises(ReportedError, match="do not match"):
        _server_tls(Pair(good.certificate, other.key)).check()
    with pytest.raises(ReportedError, match=r"No such file.*--tls-key"):
        _server_tls(Pair(good.certificate, tmp_path / "none")).check()
    with pytest.raises(ReportedError, match="certificate has expired"):
        _server_tls(authority.issue("clip.example.org", expired=True)).check()
    with pytest.raises(ReportedError, match=r"reject the canary's certificate.*--canary-certificate"):
        _server_tls(good, client_ca=other_authority.file).check()
    (tmp_path / "text").write_text("no certificate", encoding="ascii")
    with pytest.raises(ReportedError, match="not a PEM certificate: see --tls-client-ca"):
        _server_tls(good, client_ca=tmp_path / "text").check()
