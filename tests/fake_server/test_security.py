"""TLS with and without client certificates, and what is said when they do not fit."""

import ast
import asyncio
import logging
import os
import sys
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import grpc
import pytest
import trustme

from clip_client import ClientConfig, ClipClient, ModelNotReady, ProtocolMismatch, Unauthorized
from clip_client.testing import FakeTriton, Reply
from tests.fixtures.fakes import listening
from tests.fixtures.packaging.pages import programs

AUTHORITY: Final = trustme.CA()
CA: Final = AUTHORITY.cert_pem.bytes()
MINE, OTHER = (AUTHORITY.issue_cert(f"{name}@example.org") for name in ("me", "you"))
OWN: Final = {"client_certificate": MINE.cert_chain_pems[0].bytes(), "client_key": MINE.private_key_pem.bytes()}


def tls_server(*, is_mutual: bool, **validity: Any) -> FakeTriton:
    issued = AUTHORITY.issue_cert("localhost", **validity)
    server = FakeTriton()
    server.use_tls(
        certificate=issued.cert_chain_pems[0].bytes(),
        key=issued.private_key_pem.bytes(),
        client_ca=CA if is_mutual else None,
    )
    return server


async def embed(server: FakeTriton, **settings: Any) -> None:
    async with ClipClient(config=ClientConfig(urls=(server.url,), timeout_s=20, **settings)) as clip:
        assert (await clip.embed(b"a")).errors == {}


@pytest.mark.parametrize("is_mutual", [False, True], ids=["tls", "mutual tls"])
async def test_certificates_are_bytes_or_paths(is_mutual: bool, tmp_path: Path) -> None:
    ca, key = tmp_path / "ca.pem", tmp_path / "key.pem"
    ca.write_bytes(CA)
    key.write_bytes(OWN["client_key"])
    own: dict[str, Any] = {**OWN, "client_key": key} if is_mutual else {}
    async with tls_server(is_mutual=is_mutual) as server:
        for certificate in (CA, ca, str(ca)):
            await embed(server, ca_certificate=certificate, token="s3cret", **own)
        assert server.requests[0].metadata["authorization"] == "Bearer s3cret"


async def test_the_example_of_the_security_page_embeds_over_mutual_tls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {"ca.pem": CA, "me.pem": OWN["client_certificate"], "me.key": OWN["client_key"], "a.jpg": b"a"}
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    monkeypatch.chdir(tmp_path)
    ((_, code, _),) = programs("security.md", __file__)
    async with tls_server(is_mutual=True) as server:
        code = code.replace("grpcs://clip.example.org:8001", server.url)
        names: dict[str, Any] = {}
        await eval(compile(code, "security.md", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT), names)
        assert names["batch"].errors == {}
        assert server.requests[0].images == (b"a",)


@pytest.mark.parametrize("variable", ["SSL_CERT_FILE", "SSL_CERT_DIR"])
async def test_the_authorities_of_the_system_are_trusted(
    variable: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "0a1b2c3d.0").write_bytes(CA)
    monkeypatch.delenv("GRPC_DEFAULT_SSL_ROOTS_FILE_PATH", raising=False)
    monkeypatch.setenv(variable, str(tmp_path / "0a1b2c3d.0" if variable == "SSL_CERT_FILE" else tmp_path))
    async with tls_server(is_mutual=False) as server:
        await embed(server)
        assert server.requests_received == 1


JUNK = b"-----BEGIN CERTIFICATE-----\njunk"
NO_PEM = "is not in PEM form, or the key is another certificate's"


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"ca_certificate": trustme.CA().cert_pem.bytes()}, "of an authority that is not trusted here.*--tls-ca"),
        ({"ca_certificate": None}, "of an authority that is not trusted here"),
        ({"server_name": "other.example.org"}, "a certificate for another name.*server_name.*--tls-name"),
        ({"ca_certificate": JUNK}, NO_PEM),
        ({"client_certificate": JUNK}, NO_PEM),
        ({"client_key": JUNK}, NO_PEM),
        ({"client_key": OTHER.private_key_pem.bytes()}, NO_PEM),
    ],
    ids=["another authority", "the system's", "another name", "no CA", "no certificate", "no key", "another key"],
)
async def test_certificates_that_do_not_fit(wrong: dict[str, Any], says: str) -> None:
    async with tls_server(is_mutual=True) as server:
        with pytest.raises(Unauthorized, match=says):
            await embed(server, **{"ca_certificate": CA, **OWN, **wrong})


async def test_a_certificate_that_is_out_of_date_is_told_from_one_of_another_authority() -> None:
    async with tls_server(is_mutual=False, not_after=datetime(2020, 1, 1)) as server:
        with pytest.raises(Unauthorized, match="has expired or is not valid yet; renew it"):
            await embed(server, ca_certificate=CA)


async def test_auto_says_that_the_server_may_need_tls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("CLIP_REPOSITORY", str(tmp_path))
    async with tls_server(is_mutual=False) as server:
        async with ClipClient(server.url.replace("grpcs://", "auto:")) as clip:
            with pytest.raises(ModelNotReady):
                await clip.embed(b"a")
    assert "hangs up" in caplog.text
    assert "does it need TLS (grpcs://)" in caplog.text


async def test_a_closed_client_stops_connecting() -> None:
    """Even while its errors are referenced: gRPC continues the handshake of any call that is referenced."""
    connections = 0

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        await reader.read(1024)
        writer.write(b"no TLS " * 8)

    async with listening(answer) as address:
        async with ClipClient(f"grpcs://{address}", timeout_s=20) as clip:
            with pytest.raises(ProtocolMismatch, match="does not speak TLS"):
                await clip.embed(b"a")
        # A connection that was being opened may still arrive, but a client that goes on pauses for a second at most. If
        # it never stops, the limit of the test ends this.
        before = -1
        while connections != before:
            before = connections
            await asyncio.sleep(1.5)
    assert clip is not None


@pytest.mark.parametrize(
    ("file", "says"),
    [
        ("/no/such.pem", "ca_certificate '/no/such.pem' cannot be read: No such file"),
        (os.devnull, "ca_certificate is empty"),
        (sys.executable, f"ca_certificate '{sys.executable}' is not a PEM certificate or key"),
        (b"junk", "ca_certificate is not a PEM certificate or key"),
        (OWN["client_key"].decode(), "ca_certificate is PEM text: pass it as bytes, or pass the path"),
    ],
    ids=["missing", "empty", "another file", "other bytes", "not a path"],
)
async def test_an_unusable_file_does_not_mean_the_roots_of_the_system(file: str | bytes, says: str) -> None:
    config = ClientConfig(urls=("grpcs://localhost",), ca_certificate=file)
    with pytest.raises(ValueError, match=says) as caught:
        async with ClipClient(config=config):
            pass
    assert "-----" not in str(caught.value), "it would show a key"


async def test_what_a_proxy_says_of_a_refused_token_is_shown_without_the_token() -> None:
    says = "denied by proxy: token expired (s3cret)\n" + "x" * 500
    async with FakeTriton() as server, ClipClient(server.url, token="s3cret") as clip:
        server.script(Reply(status=grpc.StatusCode.UNAUTHENTICATED, details=says))
        with pytest.raises(Unauthorized) as caught:
            await clip.embed(b"a")
    assert "refused the credentials, saying 'denied by proxy: token expired (***)\\nxxx" in str(caught.value)
    assert "check token, and token_header of ClientConfig" in str(caught.value)
    assert len(caught.value.message) < 400


async def test_secrets_are_never_shown(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    async with FakeTriton(token="other") as server:
        async with ClipClient(server.url, token="s3cret") as clip:
            with pytest.raises(Unauthorized) as caught:
                await clip.embed(b"a")
            shown = [repr(clip), repr(clip.stats()), repr(await clip.health()), str(caught.value), repr(caught.value)]
        await embed(server, token="other")
    assert "s3cret" not in "".join(shown) + caplog.text
