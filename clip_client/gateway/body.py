"""The body of a request, read within limits and parsed. Malformed bodies are refused here."""

from __future__ import annotations

import asyncio
import json
import logging
import re
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import TYPE_CHECKING, ClassVar, Final, TypeVar

from prometheus_client import Gauge
from pydantic import BaseModel, ValidationError
from starlette.datastructures import UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser

from clip_client.gateway.dialect import Refusal
from clip_client.gateway.items import TOKENS

if TYPE_CHECKING:
    from starlette.requests import Request

    from clip_client.gateway.settings import Settings

# python_multipart would log a line for each malformed form.
logging.getLogger("python_multipart").setLevel(logging.ERROR)

Parsed = TypeVar("Parsed", bound=BaseModel)

_MOST_FIELDS: Final = 16
"""Fields of a form that are not files."""
_STRUCTURE: Final = 2**20
"""Bytes of JSON outside of strings, besides 64 for each item. Such a byte may take a hundred bytes in memory: 60 MiB of
``[],`` took 2.5 GB and half a minute to parse, and the gateway answered no other request in that time."""
_HELD_BYTES: Final = Gauge(
    "clip_gateway_held_bytes", "Bytes of requests and answers that are not done yet", multiprocess_mode="livesum"
)


class Bodies:
    """Counts the bytes that this process holds of all requests and answers."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.held = 0

    @contextmanager
    def of(self, request: Request) -> Iterator[Body]:
        """Yield the body of a request; its bytes count as held until the end of the block."""
        body = Body(request, self)
        try:
            yield body
        finally:
            self.held -= body.held
            _HELD_BYTES.set(self.held)


class Body:
    """The body of one request."""

    limit_s: ClassVar[float] = 60.0
    """Seconds in which the body must arrive."""

    max_items: Final = 2048
    """Most images and texts in one request; OpenAI has the same limit."""

    def __init__(self, request: Request, bodies: Bodies) -> None:
        self.request = request
        self.held = 0
        self._bodies = bodies
        self._is_read = asyncio.Event()

    async def json(self, model: type[Parsed]) -> Parsed:
        """Read a JSON object. Raises Refusal."""
        async with self._reading():
            content = b"".join([chunk async for chunk in self._chunks()])
        most = _STRUCTURE + 64 * self.max_items
        if _outside_strings(content, most) > most:
            raise Refusal(422, f"The body has more than {most:,} bytes outside of strings. {TOKENS}")
        return _parsed(model, content)

    async def form(self) -> list[tuple[str, bytes]]:
        """Read a multipart form: names and values, files or not. Raises Refusal."""
        headers = self.request.headers
        if not headers.get("content-type", "").lower().startswith("multipart/form-data"):
            raise Refusal(422, "The body must be a form: multipart/form-data.")
        form = _Form(headers, self._chunks(), max_files=self.max_items, max_fields=_MOST_FIELDS, max_part_size=2**20)
        form.spool_max_size = self._bodies.settings.max_body_bytes + 1  # files stay in memory
        try:
            async with self._reading():
                fields = (await form.parse()).multi_items()
            if not form.is_complete:
                raise Refusal(422, "The form ends before its last boundary.")
            return [
                (name, await value.read() if isinstance(value, UploadFile) else value.encode("latin-1"))
                for name, value in fields
            ]
        except MultiPartException as error:
            raise Refusal(422, f"The form cannot be read: {error.message}") from None
        except ValueError:  # such as an impossible charset or boundary
            raise Refusal(422, "The form cannot be read.") from None
        finally:
            for file in form._files_to_close_on_error:
                file.close()

    @asynccontextmanager
    async def _reading(self) -> AsyncIterator[None]:
        try:
            async with asyncio.timeout(self.limit_s):
                yield
        except TimeoutError:
            raise Refusal(408, f"The body did not arrive within {self.limit_s:g} s.", code="body_too_slow") from None
        self._is_read.set()

    async def _chunks(self) -> AsyncGenerator[bytes, None]:
        announced = self.request.headers.get("content-length", "")
        self._check(int(announced) if announced.isdecimal() else 0)
        async for chunk in self.request.stream():
            self.hold(len(chunk))
            yield chunk

    async def wait_for_disconnect(self) -> None:
        """Return when the caller has closed the connection. While the body is read, its reader notices that instead."""
        if self.request.method == "POST":
            await self._is_read.wait()
        while (await self.request.receive())["type"] != "http.disconnect":
            pass

    def hold(self, more: int, *, is_answer: bool = False) -> None:
        """Count bytes of the request or of its answer. Raises Refusal if there are too many bytes."""
        self.held += more
        self._bodies.held += more
        _HELD_BYTES.set(self._bodies.held)
        self._check(0 if is_answer else self.held)

    def _check(self, size: int) -> None:
        settings = self._bodies.settings
        if size > settings.max_body_bytes:
            limit = f"{settings.max_body_bytes:,} bytes, the limit of --max-body-bytes"
            raise Refusal(413, f"The request has more than {limit}: send fewer items.", code="body_too_large")
        if self._bodies.held > settings.max_held_bytes:
            raise Refusal(503, "The gateway holds as many requests as --max-held-bytes allows.", code="Overloaded")


class _Form(MultiPartParser):
    """Starlette's parser, with corrections for incomplete forms and for images in fields.

    Starlette takes a form that was cut off for a complete one: ``is_complete`` tells them apart. Starlette also leaves
    files open, and decodes each field as a text, but some clients send an image as a field: a file without a name. Here
    a field is a text in Latin-1, which keeps all bytes.
    """

    is_complete = False

    def on_part_end(self) -> None:
        part = self._current_part
        super().on_part_end()
        if part.file is None:
            self.items[-1] = part.field_name, part.data.decode("latin-1")

    def on_end(self) -> None:
        self.is_complete = True


def _outside_strings(content: bytes, most: int) -> int:
    """Return how many bytes of JSON are outside of strings, or a number above ``most``."""
    content = content.replace(rb"\\", b"").replace(rb"\"", b"")
    strings = content.count(b'"') // 2
    return strings if strings > most else sum(map(len, content.split(b'"')[::2]))


def _parsed(model: type[Parsed], content: bytes) -> Parsed:
    """Parse JSON. Raises Refusal with one sentence about the first mistake."""
    try:
        try:
            return model.model_validate_json(content)
        except ValidationError as error:
            # JavaScript writes half of a surrogate pair for an emoji that was cut. Python's parser accepts that, and
            # then only the item with the half pair gets an error.
            if not re.search("escape|surrogate", error.errors(include_url=False)[0]["msg"]):
                raise
            with suppress(ValueError, RecursionError):
                return model.model_validate(json.loads(content))
            raise
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"]))[:100]
        raise Refusal(422, f"{where}: {first['msg']}" if where else first["msg"]) from None
