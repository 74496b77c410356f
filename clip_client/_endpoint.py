"""The URLs at which a model can be reached, and their grammar."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from clip_client._errors import ModelNotReady
from preprocess_ensemble.contract import DEFAULT_NAME, ModelNames

DEFAULT_PORT: Final = 8001  # Triton's own default for gRPC
DEFAULT_URL: Final = f"localhost:{DEFAULT_PORT}"
_HOST: Final = re.compile(r"[\w.-]+|[0-9A-Fa-f:.%]*:[0-9A-Fa-f:.%]*", re.ASCII)


class EndpointKind(Enum):
    GRPC = "grpc"
    LOCAL = "local"
    AUTO = "auto"  # a server if it responds, else this process; decided once, when the client first needs the model


_SCHEMES: Final = {"grpc": False, "grpcs": True, "http": False, "https": True}  # -> TLS; for HTTP, see _parse_server


@dataclass(frozen=True, kw_only=True, slots=True)
class Endpoint:
    """One address of the model: a server, or this process."""

    kind: EndpointKind = EndpointKind.GRPC
    host: str = ""  # empty if the model is in this process
    port: int = DEFAULT_PORT
    tls: bool = False
    repository: str = ""
    """Model repository of a LOCAL endpoint. Empty means ``CLIP_REPOSITORY``, ``triton_models``, or the user's."""
    model: str = DEFAULT_NAME

    def __str__(self) -> str:
        if self.kind is EndpointKind.LOCAL:
            return f"local:{self.repository}"
        url = f"grpc{'s' if self.tls else ''}://{self.address}"
        return f"auto:{url}" if self.kind is EndpointKind.AUTO else url

    @property
    def names(self) -> ModelNames:
        return ModelNames(self.model)

    def require_model(self) -> None:
        """Raise ModelNotReady if the model is to run in this process, and its repository does not have it."""
        from preprocess_ensemble.model_repository.location import default_repository, has_model

        if self.kind is EndpointKind.LOCAL:
            repository = Path(self.repository) if self.repository else default_repository()
            if not has_model(repository, self.names):
                raise no_model(repository, self.model)

    @property
    def address(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def is_loopback(self) -> bool:
        return self.host in {"localhost", "::1"} or bool(re.fullmatch(r"127(\.\d+){3}", self.host))


def no_model(repository: Path, name: str) -> ModelNotReady:
    from preprocess_ensemble.model_repository.location import REPOSITORY_VARIABLE, model_names

    if found := model_names(repository):
        return ModelNotReady(
            f"There is no model named {name!r} in {repository}; there is {', '.join(map(repr, found))}. Name a model "
            "with model= (--model of the commands)."
        )
    return ModelNotReady(
        f"There is no model in {repository}: run `clip-export --repository {repository}`, or name another repository "
        f"by local:DIR or {REPOSITORY_VARIABLE}."
    )


def parse_url(url: str) -> Endpoint:
    """Read ``host``, ``host:port``, ``grpc://host:port`` or ``grpcs://host:port``; the default port is 8001.

    ``local:`` or ``local:DIR`` runs the model of a repository in this process. ``auto:`` before one of the gRPC forms
    means that server if it responds, else ``local:``; ``auto:`` alone tries ``localhost:8001``.

    Raises ValueError with one sentence that says what is wrong with the URL. If the URL holds a user name or a
    password, the message does not repeat the URL.
    """
    url = url.strip()
    kind, _, rest = url.partition(":")
    if kind not in (EndpointKind.LOCAL.value, EndpointKind.AUTO.value) or kind == url:
        return _parse_server(url)
    if rest.isdecimal():
        raise ValueError(
            f"{url!r} does not name a host: write HOST:{rest} or auto:HOST:{rest}, or local:./{rest} for a folder"
        )
    if kind == EndpointKind.LOCAL.value:
        return Endpoint(kind=EndpointKind.LOCAL, repository=os.path.expanduser(rest))
    return replace(_parse_server(rest or DEFAULT_URL), kind=EndpointKind.AUTO)


def _parse_server(url: str) -> Endpoint:
    scheme, separator, rest = url.strip().partition("://")
    if not separator:
        scheme, rest = "grpc", url.strip()
    if "@" in url:
        raise ValueError(
            "the URL holds a user name or password: pass token= instead, which is never logged or shown in an error"
        )
    if scheme not in _SCHEMES:
        raise ValueError(
            f"the URL scheme {scheme!r} is unknown: write host:port, grpc://host:port or grpcs://host:port "
            "(the gRPC port of Triton, 8001 by default, not its HTTP port)"
        )
    if "," in rest:
        raise ValueError(
            f"{url!r} is not one server: a URL names one, and several go into ClipClient([URL, URL]) or "
            "ClientConfig(urls=(URL, URL))"
        )
    try:
        parts = urlsplit(f"//{rest}")
        host, port = parts.hostname or "", parts.port
        if port == 0:
            raise ValueError
    except ValueError:
        raise ValueError(f"the port in {url!r} is not a number between 1 and 65535") from None
    if parts.path.strip("/") or parts.query or parts.fragment or not _HOST.fullmatch(host):
        raise ValueError(f"{url!r} is not a server address: write host:port, grpc://host:port or grpcs://host:port")
    if scheme.startswith("http"):
        instead = Endpoint(host=host, tls=_SCHEMES[scheme])
        raise ValueError(
            f"{url!r} is an HTTP address, but the client speaks gRPC, for which the server has another port (by "
            f"default {DEFAULT_PORT}): write {instead}"
        )
    return Endpoint(host=host, port=DEFAULT_PORT if port is None else port, tls=_SCHEMES[scheme])
