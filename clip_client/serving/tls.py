"""Checks certificates before Triton gets them: it reports a wrong key late, and an expired certificate not at all."""

from __future__ import annotations

import contextlib
import ipaddress
import ssl
from dataclasses import dataclass
from pathlib import Path

from preprocess_ensemble.errors import ReportedError
from preprocess_ensemble.pem_files import load_pair, load_roots


@dataclass(frozen=True, kw_only=True)
class ServerTls:
    """PEM files. With ``client_ca``, every client needs a certificate from that authority, including the canary."""

    certificate: Path
    """Certificate of the server, and those between it and the authority that clients trust."""
    key: Path
    client_ca: Path | None = None
    canary_certificate: Path | None = None  # default: the server's own
    canary_key: Path | None = None

    @property
    def arguments(self) -> tuple[str, ...]:
        files = (f"--grpc-server-cert={self.certificate}", f"--grpc-server-key={self.key}")
        if self.client_ca is None:
            return ("--grpc-use-ssl=true", *files)
        return ("--grpc-use-ssl=true", "--grpc-use-ssl-mutual=true", *files, f"--grpc-root-cert={self.client_ca}")

    @property
    def canary_files(self) -> tuple[Path, Path] | None:
        """Certificate and key of the canary; None if the server does not require any."""
        if self.client_ca is None:
            return None
        return (self.canary_certificate or self.certificate, self.canary_key or self.key)

    def check(self) -> str:
        """Perform the canary's handshake in memory; return a name of the certificate. Raises ``ReportedError``."""
        server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        load_pair(server, self.certificate, self.key, "--tls-certificate and --tls-key")
        client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        client.check_hostname = False
        # The canary trusts this very certificate, whatever its issuer, as gRPC trusts the roots that it is given.
        client.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        load_roots(client, self.certificate, "--tls-certificate")
        if self.canary_files is not None and self.client_ca is not None:
            server.verify_mode = ssl.CERT_REQUIRED
            load_roots(server, self.client_ca, "--tls-client-ca")
            load_pair(client, *self.canary_files, "--canary-certificate and --canary-key")
        there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
        caller = client.wrap_bio(back, there, server_side=False)
        callee = server.wrap_bio(there, back, server_side=True)
        try:
            # Hello, answer with certificates, and the caller's own certificate.
            for side in (caller, callee, caller, callee, caller, callee):
                with contextlib.suppress(ssl.SSLWantReadError):
                    side.do_handshake()
        except ssl.SSLCertVerificationError as error:
            raise ReportedError(f"{self._whose(caller)}: {error.verify_message}.") from None
        except ssl.SSLError as error:
            raise ReportedError(f"The TLS handshake fails with these certificates: {error.reason}.") from None
        return _name(caller)

    def _whose(self, caller: ssl.SSLObject) -> str:
        # The caller verifies first. If it succeeded, the server rejected the canary's certificate.
        if caller.version() is None or caller.getpeercert() is None or self.canary_files is None:
            return f"The server's certificate {self.certificate} is not valid"
        return (
            f"The server would reject the canary's certificate {self.canary_files[0]}, because all clients need one "
            f"from {self.client_ca} (choose another with --canary-certificate and --canary-key)"
        )


def _name(connection: ssl.SSLObject) -> str:
    peer = connection.getpeercert() or {}
    names = [(str(entry[0]), str(entry[1])) for entry in peer.get("subjectAltName", ()) if len(entry) == 2]
    for kind, name in sorted(names):  # "DNS" is before "IP Address"
        if kind == "DNS":
            return name.replace("*", "canary", 1)
        if kind == "IP Address":
            return str(ipaddress.ip_address(name))
    raise ReportedError(
        "The server's certificate has no host name (subjectAltName): clients reject such a certificate."
    )
