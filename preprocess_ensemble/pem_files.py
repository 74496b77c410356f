"""Load PEM files, so that a wrong file gives one sentence before anything starts, and find those of the system."""

from __future__ import annotations

import contextlib
import re
import ssl
from collections.abc import Iterator
from pathlib import Path

from preprocess_ensemble.errors import ReportedError


def check_client_files(roots: Path | None, certificate: Path | None, key: Path | None) -> None:
    """Raise ReportedError if a file holds no certificate or key. A pipe is not checked: it can be read only once."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.set_ciphers("DEFAULT:@SECLEVEL=0")  # gRPC also takes keys that OpenSSL finds too short
    if roots is not None and roots.is_file():
        load_roots(context, roots, "--tls-ca")
    if certificate is not None and key is not None and certificate.is_file() and key.is_file():
        load_pair(context, certificate, key, "--tls-certificate and --tls-key")


def load_pair(context: ssl.SSLContext, certificate: Path, key: Path, options: str) -> None:
    """Load a certificate chain and its key. Raises ReportedError that names the files and ``options``."""
    with _naming(f"{certificate} and {key}", options, "are not a PEM certificate with an unencrypted key"):
        # Give a password: without it, OpenSSL would ask for one at the terminal and block the start.
        context.load_cert_chain(certificate, key, password="")


def load_roots(context: ssl.SSLContext, path: Path, option: str) -> None:
    """Load certificates to trust. Raises ReportedError that names the file and ``option``."""
    with _naming(str(path), option, "is not a PEM certificate"):
        context.load_verify_locations(cafile=path)


def system_roots() -> bytes | None:
    """Return the certificates of Python's ``ssl`` in PEM form, if any, for gRPC, which has its own list."""
    loaded = ssl.create_default_context().get_ca_certs(binary_form=True)
    roots = [ssl.DER_cert_to_PEM_cert(root).encode() for root in loaded]
    folder = ssl.get_default_verify_paths().capath
    if folder is not None:
        # Read these files, too: OpenSSL reads them only when a server needs them. Their names are subject hashes.
        files = (file for file in Path(folder).iterdir() if re.fullmatch(r"[0-9a-f]{8}\.\d+", file.name))
        roots += [file.read_bytes() for file in files if file.is_file()]
    return b"\n".join(dict.fromkeys(roots)) or None


@contextlib.contextmanager
def _naming(files: str, options: str, mistake: str) -> Iterator[None]:
    try:
        yield
    except ssl.SSLError as error:
        problem = "do not match" if error.reason == "KEY_VALUES_MISMATCH" else mistake
    except OSError as error:
        problem = f"cannot be read ({error.strerror})"
    else:
        return
    raise ReportedError(f"{files} {problem}: see {options}.")
