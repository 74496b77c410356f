"""TLS with and without client certificates, and what is said when they do not fit."""

from __future__ import annotations

import asyncio
import logging
import os
from typing import TYPE_CHECKING, Any

import pytest
import trustme

from clip_client import ClientConfig, ClipClient, ProtocolMismatch, Unauthorized
from clip_client.testing import FakeTriton

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture(params=[False, True], ids=["tls", "mutual tls"])
def is_mutual(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.fixture
async def tls_server(authority: trustme.CA, is_mutual: bool) -> AsyncIterator[FakeTriton]:
    issued = authority.issue_cert("localhost")
    server = FakeTriton()
    server.use_tls(
        certificate=issued.cert_chain_pems[0].bytes(),
        key=issued.private_key_pem.bytes(),
        client_ca=authority.cert_pem.bytes() if is_mutual else None,
    )
    async with server:
        yield server


async def embed(server: FakeTriton, **settings: Any) -> None:
    async with ClipClient(config=ClientConfig(urls=(server.url,), timeout_s=20, **settings)) as clip:
        assert (await clip.embed(b"a")).errors == {}


async def test_certificates_are_bytes_or_paths(
    tls_server: FakeTriton, authority: trustme.CA, is_mutual: bool, tmp_path: Path
) -> None:
    mine = authority.issue_cert("client@example.org")
    ca, key = tmp_path / "ca.pem", tmp_path / "key.pem"
    authority.cert_pem.write_to_path(str(ca))
    mine.private_key_pem.write_to_path(str(key))
    own: dict[str, Any] = {"client_certificate": mine.cert_chain_pems[0].bytes(), "client_key": key}
    for certificate in (ca.read_bytes(), ca, str(ca)):
        await embed(tls_server, ca_certificate=certificate, token="s3cret", **(own if is_mutual else {}))
    assert tls_server.requests[0].metadata["authorization"] == "Bearer s3cret"


async def test_a_closed_client_stops_connecting() -> None:
    """Even while its errors are referenced: gRPC continues the handshake of any call that is referenced."""
    connections = 0

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        await reader.read(1024)
        writer.write(b"no TLS " * 8)
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        async with ClipClient(f"grpcs://127.0.0.1:{port}", timeout_s=20) as clip:
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
    [("/no/such.pem", "ca_certificate cannot be read: No such file"), (os.devnull, "ca_certificate is empty")],
)
async def test_a_missing_or_empty_file_does_not_mean_the_roots_of_the_system(file: str, says: str) -> None:
    config = ClientConfig(urls=("grpcs://localhost",), ca_certificate=file)
    with pytest.raises(ValueError, match=says):
        async with ClipClient(config=config):
            pass


@pytest.mark.parametrize("is_mutual", [True], indirect=True)
@pytest.mark.parametrize("wrong", ["ca_certificate", "client_certificate", "client_key", "another key"])
async def test_files_that_are_no_certificates(tls_server: FakeTriton, authority: trustme.CA, wrong: str) -> None:
    mine, other = (authority.issue_cert(f"{name}@example.org") for name in ("me", "you"))
    files: dict[str, Any] = {
        "ca_certificate": authority.cert_pem.bytes(),
        "client_certificate": mine.cert_chain_pems[0].bytes(),
        "client_key": mine.private_key_pem.bytes(),
    }
    files |= {"client_key": other.private_key_pem.bytes()} if wrong == "another key" else {wrong: b"junk"}
    with pytest.raises(Unauthorized, match="is not in PEM form, or the key is another certificate's"):
        await embed(tls_server, **files)


async def test_secrets_are_never_shown(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    async with FakeTriton(token="other") as server:
        async with ClipClient(server.url, token="s3cret") as clip:
            with pytest.raises(Unauthorized) as caught:
                await clip.embed(b"a")
            shown = [repr(clip), repr(clip.stats()), repr(await clip.health()), str(caught.value), repr(caught.value)]
        async with ClipClient(server.url, token="other") as clip:
            assert (await clip.embed(b"a")).errors == {}
            assert server.requests[0].metadata["authorization"] == "Bearer other"
    assert "s3cret" not in "".join(shown) + caplog.text
