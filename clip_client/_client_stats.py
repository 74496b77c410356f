"""A look at a client's work."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class ServerStats:
    """One server, as one client sees it."""

    url: str
    """``local:...`` where the model is in this process."""
    images_in_flight: int
    """With cancelled ones, for as long as the server is expected to decode them."""
    limit: int
    """How many images may be in flight now."""
    latency_s: float | None
    """Running mean over its requests; None before the first answer."""
    is_down: bool
    """The last request failed, and it is only probed."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ClientStats:
    """Counts since the client was entered, and two of the moment. A snapshot: it does not change any more."""

    images_waiting: int
    """Read, and not in a request just now."""
    images_in_flight: int
    """In a request just now."""
    images_embedded: int
    images_failed: int
    """Ended with an ImageError from the server."""
    images_shed: int
    """Given up before they were sent, because they would have been too late."""
    requests_sent: int
    """Retries included."""
    requests_retried: int
    """Requests that failed and whose images were sent again."""
    requests_failed: int
    """Requests that failed for good."""
    bytes_sent: int
    """Bytes of images, retries included."""
    servers: tuple[ServerStats, ...]


class Counters:
    """What the sender counts as it goes."""

    __slots__ = (
        "bytes_sent",
        "images_embedded",
        "images_failed",
        "images_shed",
        "requests_failed",
        "requests_retried",
        "requests_sent",
    )

    def __init__(self) -> None:
        self.bytes_sent = 0
        self.images_embedded = 0
        self.images_failed = 0
        self.images_shed = 0
        self.requests_failed = 0
        self.requests_retried = 0
        self.requests_sent = 0
