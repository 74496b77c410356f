"""Bodies of requests: read within limits, and parsed. What is malformed is refused here."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Final, TypeVar

from pydantic import BaseModel, ValidationError
from starlette.datastructures import UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser

from clip_client.gateway.errors import Refusal
from clip_client.gateway.metrics import HELD_BYTES

if TYPE_CHECKING:
    from starlette.requests import Request

    from clip_client.gateway.settings import Settings

# It would write a line for each malformed form.
logging.getLogger("python_multipart").setLevel(logging.ERROR)

Parsed = TypeVar("Parsed", bound=BaseModel)

_BODY_S: Final = 60.0
"""Seconds in which a body must arrive."""
_MOST_FIELDS: Final = 16
"""Fields of a form that are no files."""


class Bodies:
    """What this process holds of the bodies of all requests."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.held = 0

    @contextmanager
    def of(self, request: Request) -> Iterator[Body]:
        """Give the body of a request, whose bytes count as held until the end of the block."""
        body = Body(request, self)
        try:
            yield body
        finally:
            self.held -= body.size
            HELD_BYTES.set(self.held)


class Body:
    """The body of one request."""

    def __init__(self, request: Request, bodies: Bodies) -> None:
        self.size = 0
        self.max_items = bodies.settings.max_items
        self._request = request
        self._bodies = bodies

    async def json(self, model: type[Parsed]) -> Parsed:
        """Read a JSON object. Raises Refusal."""
        async with _in_time():
            content = b"".join([chunk async for chunk in self._chunks()])
        return parsed(model, content)

    async def form(self, *, max_files: int) -> list[tuple[str, str | bytes]]:
        """Read a multipart form: the name and value of each field, a file's as bytes. Raises Refusal."""
        if not self._request.headers.get("content-type", "").lower().startswith("multipart/form-data"):
            raise Refusal(422, "The body must be a form: multipart/form-data.")
        form = _Form(
            self._request.headers, self._chunks(), max_files=max_files, max_fields=_MOST_FIELDS, max_part_size=2**20
        )
        form.spool_max_size = self._bodies.settings.max_body_bytes + 1  # files stay in memory
        try:
            async with _in_time():
                fields = (await form.parse()).multi_items()
            if not form.is_complete:
                raise Refusal(422, "The form ends before its last boundary.")
            return [(name, await value.read() if isinstance(value, UploadFile) else value) for name, value in fields]
        except MultiPartException as error:
            raise Refusal(422, f"The form cannot be read: {error.message}") from None
        except ValueError:  # such as a charset or a boundary that no text can have
            raise Refusal(422, "The form cannot be read.") from None
        finally:
            form.close()

    async def _chunks(self) -> AsyncGenerator[bytes, None]:
        announced = self._request.headers.get("content-length", "")
        self._check(int(announced) if announced.isdecimal() else 0)
        async for chunk in self._request.stream():
            self.hold(len(chunk))
            yield chunk

    def hold(self, more: int) -> None:
        """Count bytes that arrived with the request or for it. Raises Refusal if they are too many."""
        self.size += more
        self._bodies.held += more
        HELD_BYTES.set(self._bodies.held)
        self._check(self.size)

    def _check(self, size: int) -> None:
        settings = self._bodies.settings
        if size > settings.max_body_bytes:
            limit = f"{settings.max_body_bytes:,} bytes, the limit of --max-body-bytes"
            raise Refusal(413, f"The request has more than {limit}: send fewer items.", code="body_too_large")
        if self._bodies.held > settings.max_held_bytes:
            raise Refusal(503, "The gateway holds as many requests as --max-held-bytes allows.", code="Overloaded")


class _Form(MultiPartParser):
    """Starlette's parser, which takes a form that was cut off for a complete one, and leaves its files open."""

    is_complete = False

    def on_end(self) -> None:
        self.is_complete = True

    def close(self) -> None:
        for file in self._files_to_close_on_error:
            file.close()


def parsed(model: type[Parsed], content: bytes | str) -> Parsed:
    """Parse JSON. Raises Refusal with one sentence about the first mistake."""
    try:
        return model.model_validate_json(content)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise Refusal(422, f"{where}: {first['msg']}" if where else first["msg"]) from None


@asynccontextmanager
async def _in_time() -> AsyncIterator[None]:
    try:
        async with asyncio.timeout(_BODY_S):
            yield
    except TimeoutError:
        raise Refusal(408, f"The body did not arrive within {_BODY_S:g} s.", code="body_too_slow") from None
