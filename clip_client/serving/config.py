"""The options of ``clip-serve`` as one record, and the arguments that tritonserver gets from them."""

from __future__ import annotations

import secrets
import socket
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from clip_client.serving.tls import ServerTls
from preprocess_ensemble.contract import DEFAULT_NAME, SERVER_ID, ModelNames, Precision
from preprocess_ensemble.model_repository.location import model_names

_ADMIN_PROTOCOLS: Final = "model-repository,shared-memory,trace,logging"
"""Protocols that change the server or reach into its machine. Clients do not need them."""

CONNECTION_AGE_S: Final = 30
"""Age at which gRPC asks a client for a new connection, and answers what is in flight on the old one: all clients of a
server that is being replaced reach the new server."""

_EXIT_S: Final = 5
"""Triton's own limit for running requests once it is told to stop; the supervisor has waited for them by then."""


@dataclass(frozen=True, kw_only=True)
class ServeConfig:
    """Settings of ``clip-serve``, whose ``--help`` explains them; times are in seconds."""

    repository: Path
    only: tuple[str, ...] = ()  # names of exported models; empty for all
    model: str | None = None
    pretrained: str | None = None
    host: str = "127.0.0.1"
    grpc_port: int = 8001
    http_port: int | None = None
    """None: no HTTP. Triton's HTTP has neither TLS nor limits, and single requests have crashed it."""
    http_host: str = "127.0.0.1"  # separate from ``host`` for the same reasons
    metrics_port: int = 8002
    health_port: int | None = None
    tls: ServerTls | None = None
    compute_precision: Precision | None = None  # None leaves it to environment and model
    open_statistics: bool = False
    log_file: Path | None = None
    log_json: bool = False
    canary_interval_s: float = 3.0  # one image more in three seconds
    canary_timeout_s: float = 5.0
    """Time without an answer after which the server counts as overloaded or frozen. A hang shows within the pause, this
    time and 4 s."""
    frozen_after_s: float = 20.0
    """Time after which a server that neither finishes a request nor computes is restarted. Two canaries with their
    pauses take 16 s, so one late answer does not restart it."""
    start_timeout_s: float = 600.0
    triton_metrics_port: int = 0  # loopback port of one server; clip-serve hands its metrics on
    extra: tuple[str, ...] = ()
    admin_secret: str = field(default_factory=lambda: secrets.token_hex(16), repr=False)
    """Header that Triton requires for ``_ADMIN_PROTOCOLS``; clip-serve itself does not use them."""

    @property
    def names(self) -> list[ModelNames]:
        """The exported models to serve; the default one if the repository has none yet."""
        return list(map(ModelNames, self.only or model_names(self.repository) or [DEFAULT_NAME]))

    @property
    def client_host(self) -> str:
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.host, self.host)
        return f"[{host}]" if ":" in host else host

    @property
    def families(self) -> list[str]:
        """Addresses to listen on: ``host``; for a wildcard, if IPv6 works, also the other: gRPC listens on both."""
        other = {"0.0.0.0": "::", "::": "0.0.0.0"}.get(self.host)
        return [self.host, other] if other and _has_ipv6() else [self.host]

    @property
    def grpc_url(self) -> str:
        return f"{'grpc' if self.tls is None else 'grpcs'}://{self.client_host}:{self.grpc_port}"

    @property
    def addresses(self) -> dict[str, tuple[str, int]]:
        """The ports to open: the first part of the option's name -> host and port."""
        ports = {"grpc": self.grpc_port, "metrics": self.metrics_port, "health": self.health_port}
        addresses = {name: (self.host, port) for name, port in ports.items() if port is not None}
        return addresses | ({} if self.http_port is None else {"http": (self.http_host, self.http_port)})

    @property
    def arguments(self) -> tuple[str, ...]:
        protocols = _ADMIN_PROTOCOLS if self.open_statistics else f"{_ADMIN_PROTOCOLS},statistics"
        admin = f"{protocols}:clip-admin={self.admin_secret}"
        http = ["--allow-http=false"]
        if self.http_port is not None:
            libevent = f"ipv6:{self.http_host}" if ":" in self.http_host else self.http_host
            http = [f"--http-address={libevent}", f"--http-port={self.http_port}", f"--http-restricted-api={admin}"]
        ensembles = [one for names in self.names for one in (names.image, names.text)]
        loaded = [one for one in ensembles if (self.repository / one).is_dir()] if self.only else ["*"]
        return (
            f"--id={SERVER_ID}{','.join(names.name for names in self.names)}",
            f"--model-repository={self.repository}",
            "--model-control-mode=explicit",
            # An ensemble brings the models that it consists of.
            *(f"--load-model={one}" for one in loaded),
            # The configurations are complete. Otherwise Triton starts an additional process for each model to ask for
            # the rest, and every load takes more than a second longer.
            "--disable-auto-complete-config",
            f"--grpc-address={f'[{self.host}]' if ':' in self.host else self.host}",
            "--metrics-address=127.0.0.1",
            f"--grpc-port={self.grpc_port}",
            f"--metrics-port={self.triton_metrics_port}",
            "--reuse-grpc-port=true",
            f"--grpc-max-connection-age={1000 * CONNECTION_AGE_S}",
            f"--grpc-restricted-protocol={admin}",
            *http,
            f"--exit-timeout-secs={_EXIT_S}",
            # Quantiles of the latency; without them Triton reports only sums, which give a mean.
            "--metrics-config=summary_latencies=true",
            *(self.tls.arguments if self.tls is not None else ()),
            *self.extra,
        )


def _has_ipv6() -> bool:
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            return True
    except OSError:
        return False
