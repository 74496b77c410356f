"""The settings of a client, checked once."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from os import PathLike
from pathlib import Path
from typing import Final

from clip_client._encoding import IMAGE_ENCODINGS, TransferName
from clip_client._endpoint import DEFAULT_URL, Endpoint, EndpointKind, parse_url
from preprocess_ensemble.contract import DEFAULT_NAME, PRECISIONS, ModelNames, Precision

_LONGEST_S: Final = 1e9
"""Seconds. gRPC counts deadlines in 64 bits of nanoseconds, and treats a deadline that does not fit as passed."""

Pem = bytes | str | PathLike[str]
"""A certificate or key in PEM form: the bytes themselves, or the path of a file that holds them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ClientConfig:
    """Every setting of a :class:`ClipClient`, with its default. Immutable, and checked on construction.

    ::

        config = ClientConfig(urls=("grpcs://a.example:8001", "grpcs://b.example:8001"), token="...")
        async with ClipClient(config=config) as clip:
            batch = await clip.embed("a.jpg")
    """

    urls: tuple[str, ...] = (DEFAULT_URL,)
    """One or more servers that serve the same model; a DNS name stands for all its addresses. ``local:`` and ``auto:``
    stand alone (see :func:`parse_url`)."""
    model: str = DEFAULT_NAME
    """Name of the model, as ``clip-export --name`` gave it; a server may serve several."""
    timeout_s: float = 60.0
    """Time for one image or text, everything included: connecting, reading its file, queueing, retries. A call with
    many images or texts fails if it gets no result for this long."""
    transfer: TransferName = "thumbnail"
    """``"thumbnail"`` reduces a photo on this side to the pixels that the model takes, as a JPEG of 17 KB on average;
    ``"thumbnail-small"`` to a WebP file of 8 KB, which takes more time to make; ``"original"`` sends each file as it
    is. The choice is part of a vector's id."""
    max_in_flight: int = 256
    """The most images and texts in flight at one time, over all calls; the adaptive limit stays at or below it."""
    target_latency_s: float = 2.0
    """If an answer takes longer, this client keeps fewer images in flight. A lower value gives shorter queues under
    load, a higher value fuller batches; the value must be above the network's round trip."""
    max_request_bytes: int = 8 * 2**20
    """Largest size of a request with several images or texts; a larger image or text travels alone."""
    max_image_bytes: int = 64 * 2**20
    """A larger file fails with an ImageError (``TOO_LARGE``) and is not read."""
    keepalive_time_s: float = 10.0
    """A connection that is silent for this long during a request is probed, and closed after as much silence again."""
    local_threads: int | None = None
    """Threads that ``local:`` decodes and embeds with; None means one for each core that the process may use."""
    local_precision: Precision | None = None
    """Precision of ``local:``. ``"auto"`` takes the precision that was measured as the fastest on such a processor, if
    its vectors agree with those of fp32. None means the environment variable ``CLIP_PRECISION``, else ``"auto"``."""
    token: str | None = field(default=None, repr=False)
    """Sent as ``authorization: Bearer ...`` and as the value of ``token_header``; to other hosts only over TLS."""
    allow_token_in_clear: bool = False
    """Let the token travel without TLS to other hosts, for networks that encrypt below gRPC."""
    token_header: str = "triton-grpc-protocol-authorization"
    """Header that Triton's ``--grpc-restricted-protocol=inference:authorization=TOKEN`` reads."""
    ca_certificate: Pem | None = field(default=None, repr=False)
    """Roots to trust instead of the system's. This and the next three settings are for ``grpcs://`` only."""
    server_name: str | None = None
    """Name that the servers' certificates must have, if it differs from the name in the URLs."""
    client_certificate: Pem | None = field(default=None, repr=False)
    """This client's certificate chain, for mutual TLS; needs ``client_key``."""
    client_key: Pem | None = field(default=None, repr=False)
    """Private key of ``client_certificate``."""

    def __post_init__(self) -> None:
        urls: object = self.urls
        if isinstance(urls, str):  # each letter would become a server
            parse_url(urls)  # refuses a password, which the message would show
            raise ValueError(f"urls must be a tuple, even for one server: write urls=({urls!r},)")
        if not self.urls:
            raise ValueError("urls is empty: name at least one server, for example 'localhost:8001'")
        ModelNames(self.model)  # raises ValueError if this is not a name
        self._check_endpoints()
        for name in ("timeout_s", "target_latency_s", "keepalive_time_s"):
            positive_seconds(name, getattr(self, name))
        for name in ("max_in_flight", "max_request_bytes", "max_image_bytes"):
            check_count(name, getattr(self, name))
        if self.transfer not in IMAGE_ENCODINGS:
            raise ValueError(f"transfer must be one of {', '.join(IMAGE_ENCODINGS)}, got {self.transfer!r}")
        if self.local_threads is not None:
            check_count("local_threads", self.local_threads)
        if self.local_precision not in (None, *PRECISIONS):
            raise ValueError(f"local_precision must be one of {', '.join(PRECISIONS)}, got {self.local_precision!r}")

    def _check_endpoints(self) -> None:
        endpoints = self.endpoints
        if len(endpoints) > 1 and any(endpoint.kind is not EndpointKind.GRPC for endpoint in endpoints):
            raise ValueError(
                "local: and auto: cannot be combined with other URLs: name only local:, only auto:, or servers"
            )
        if (self.client_certificate is None) != (self.client_key is None):
            raise ValueError("client_certificate and client_key belong together: give both or neither")
        tls = all(endpoint.tls for endpoint in endpoints)
        if not tls and (self.ca_certificate, self.client_certificate, self.server_name) != (None, None, None):
            raise ValueError(
                "ca_certificate, client_certificate and server_name are for gRPC with TLS: write the URLs as "
                "grpcs://host:port"
            )
        if self.token is not None:
            if not self.token or not self.token.isascii() or not self.token.isprintable():
                raise ValueError("token must be non-empty printable ASCII; it travels in a header")
            remote = [one for one in endpoints if one.kind is not EndpointKind.LOCAL and not one.is_loopback]
            exposed = [one for one in remote if not one.tls]
            if exposed and not self.allow_token_in_clear:
                raise ValueError(f"a token may not travel in the clear to {exposed[0]}: use a grpcs:// URL")

    @property
    def endpoints(self) -> tuple[Endpoint, ...]:
        return tuple(replace(parse_url(url), model=self.model) for url in self.urls)


def positive_seconds(name: str, value: float) -> None:
    """Raise ValueError unless ``value`` is a number above 0 and up to 1e9."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= _LONGEST_S:
        raise ValueError(f"{name} must be a positive number of seconds, at most {_LONGEST_S:g}, got {value!r}")


def check_count(name: str, value: int) -> None:
    """Raise ValueError unless ``value`` is a whole number of 1 or more."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"{name} must be a whole number of at least 1, got {value!r}")


def read_pem(name: str, pem: Pem | None) -> bytes | None:
    """Return the bytes of a certificate or key. Raises ValueError if they cannot be read, or are not in PEM form."""
    if pem is None:
        return None
    try:
        content = pem if isinstance(pem, bytes) else Path(pem).read_bytes()
    except OSError as error:
        if "-----BEGIN" in str(pem):  # the message would show a key
            raise ValueError(f"{name} is PEM text: pass it as bytes, or pass the path of its file") from None
        raise ValueError(f"{name} {str(pem)!r} cannot be read: {error.strerror or type(error).__name__}") from None
    if not content.strip():  # with an empty file, gRPC would trust the system's roots
        raise ValueError(f"{name} is empty: give a certificate or key in PEM form")
    if b"-----BEGIN " not in content:
        where = "" if isinstance(pem, bytes) else f" {str(pem)!r}"
        raise ValueError(f"{name}{where} is not a PEM certificate or key")
    return content
