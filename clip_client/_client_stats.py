"""What a client has done and what it is doing: a snapshot."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class ServerStats:
    """One server, as one client sees it."""

    url: str
    """``local:...`` if the model is in this process."""
    images_in_flight: int
    """Includes cancelled images, for as long as the server is expected to decode them."""
    limit: int
    """How many images may be in flight now."""
    latency_s: float | None
    """Running mean over its requests; None before the first answer."""
    is_down: bool
    """The last request failed; until one succeeds, the server gets one request at a time."""


@dataclass(kw_only=True, slots=True)
class ClientStats:
    """Counts since the client was entered, and two of this moment. It does not change after you got it.

    Texts count as images do.
    """

    images_waiting: int = 0
    """Encoded, and not in a request now."""
    images_in_flight: int = 0
    images_embedded: int = 0
    images_failed: int = 0
    """Ended with an ItemError from the server."""
    images_shed: int = 0
    """Given up before they were sent, because they would have come back too late."""
    requests_sent: int = 0
    """Includes retries."""
    requests_retried: int = 0
    """Requests that failed and whose images were sent again."""
    requests_failed: int = 0
    """Requests that failed for good."""
    bytes_sent: int = 0
    """Bytes of images, retries included."""
    servers: tuple[ServerStats, ...] = ()
