"""The certificates of ``clip-serve``: checked before the start, and read again at every restart."""

from collections.abc import Callable
from pathlib import Path
from unittest.mock import patch

import grpc
import pytest

from clip_client.serving.config import ServeConfig
from clip_client.serving.probed_triton import ProbedTriton
from clip_client.serving.tls import ServerTls
from preprocess_ensemble.errors import ReportedError
from tests.unit.serving.authority import Authority, Pair


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path, "right")


def server_tls(pair: Pair, **more: Path) -> ServerTls:
    return ServerTls(certificate=pair.certificate, key=pair.key, **more)


@pytest.mark.parametrize("issued_to", ["clip.example.org", "*.example.org", "127.0.0.1"])
@pytest.mark.parametrize("mutual", [False, True], ids=["tls", "mutual"])
def test_good_files_pass_and_give_a_name(issued_to: str, mutual: bool, authority: Authority) -> None:
    canary = authority.issue("canary@example.org")
    own = {"client_ca": authority.file, "canary_certificate": canary.certificate, "canary_key": canary.key}
    name = server_tls(authority.issue(issued_to), **(own if mutual else {})).check()
    assert name == issued_to.replace("*", "canary")


def _another_client_authority(authority: Authority, folder: Path) -> ServerTls:
    return server_tls(authority.issue("clip.example.org"), client_ca=Authority(folder, "wrong").file)


def _text(authority: Authority, folder: Path) -> ServerTls:
    (folder / "text").write_text("no certificate", encoding="ascii")
    return server_tls(authority.issue("clip.example.org"), client_ca=folder / "text")


@pytest.mark.parametrize(
    ("files", "sentence"),
    [
        (lambda ca, _: server_tls(Pair(ca.issue("a.org").certificate, ca.issue("b.org").key)), "do not match"),
        (
            lambda ca, folder: server_tls(Pair(ca.issue("a.org").certificate, folder / "none")),
            "No such file.*--tls-key",
        ),
        (lambda ca, _: server_tls(ca.issue("clip.example.org", expired=True)), "certificate has expired"),
        (lambda ca, _: server_tls(ca.issue("person@example.org")), r"no host name \(subjectAltName\)"),
        (_another_client_authority, r"reject the canary's certificate.*--canary-certificate"),
        (_text, "not a PEM certificate: see --tls-client-ca"),
    ],
    ids=["another key", "no key", "expired", "no host", "canary of another authority", "text"],
)
def test_files_that_do_not_fit_are_named_before_the_start(
    files: Callable[[Authority, Path], ServerTls], sentence: str, authority: Authority, tmp_path: Path
) -> None:
    with pytest.raises(ReportedError, match=sentence):
        files(authority, tmp_path).check()


async def test_the_canary_trusts_the_certificate_of_the_restart(authority: Authority, tmp_path: Path) -> None:
    """Certificates are replaced while the server runs, and tritonserver reads them again when it is restarted."""
    pair = authority.issue("clip.example.org")
    config = ServeConfig(repository=tmp_path, tls=server_tls(pair))
    with patch.object(grpc, "ssl_channel_credentials", wraps=grpc.ssl_channel_credentials) as credentials:
        ProbedTriton(config)
        first = pair.certificate.read_bytes()
        authority.issue("clip.example.org")
        ProbedTriton(config)
    trusted = [call.kwargs["root_certificates"] for call in credentials.call_args_list]
    assert trusted == [first, pair.certificate.read_bytes()]
    assert first != trusted[1]
    pair.key.write_text("no key", encoding="ascii")
    with pytest.raises(ReportedError, match="not a PEM certificate"):
        ProbedTriton(config)
