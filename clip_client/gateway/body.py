"""The body of a request, read within limits and parsed. Malformed bodies are refused here."""

from __future__ import annotations

import asyncio
import json
import logging
import re
from collections.abc import AsyncGenerator
from contextlib import suppress
from email.message import Message
from typing import TYPE_CHECKING, ClassVar, Final, TypeVar

from pydantic import BaseModel, ValidationError
from starlette.datastructures import Headers, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser

from clip_client.gateway.dialect import Refusal
from clip_client.gateway.items import TOKENS

if TYPE_CHECKING:
    from starlette.requests import Request

# python_multipart would log a line for each malformed form.
logging.getLogger("python_multipart").setLevel(logging.ERROR)

Parsed = TypeVar("Parsed", bound=BaseModel)

_MOST_FIELDS: Final = 16
"""Fields of a form that are not files."""
_PIECE: Final = 2**18
"""Bytes of a form that are parsed at a time."""
_STRUCTURE: Final = 2**20
"""Bytes of JSON outside of strings, besides 64 for each item. Such a byte may take a hundred bytes in memory: 60 MiB of
``[],`` took 2.5 GB and half a minute to parse, and the gateway answered no other request in that time."""


class Body:
    """The body of one request, in memory."""

    limit_s: ClassVar[float] = 60.0
    """Seconds in which the body must arrive."""

    max_items: Final = 2048
    """Most images and texts in one request; OpenAI has the same limit."""

    def __init__(self, request: Request) -> None:
        self.request = request
        self._content = b""

    async def read(self, most: int) -> None:
        """Read it from the caller. Raises Refusal if it has more than ``most`` bytes or comes too slowly."""
        announced = self.request.headers.get("content-length", "")
        content = bytearray()
        try:
            _check_size(int(announced) if announced.isdecimal() else 0, most)
            async with asyncio.timeout(self.limit_s):
                async for chunk in self.request.stream():
                    content += chunk
                    _check_size(len(content), most)
        except TimeoutError:
            raise Refusal(408, f"The body did not arrive within {self.limit_s:g} s.", code="body_too_slow") from None
        self._content = bytes(content)

    def json(self, model: type[Parsed]) -> Parsed:
        """Parse a JSON object. Raises Refusal."""
        most = _STRUCTURE + 64 * self.max_items
        if _outside_strings(self._content, most) > most:
            raise Refusal(422, f"The body has more than {most:,} bytes outside of strings. {TOKENS}")
        return _parsed(model, self._content)

    async def form(self) -> list[tuple[str, bytes]]:
        """Parse a multipart form: names and values, files or not. Raises Refusal."""
        kind = self.request.headers.get("content-type", "")
        if not kind.lower().startswith("multipart/form-data"):
            raise Refusal(422, "The body must be a form: multipart/form-data.")
        header = Message()
        header["content-type"] = kind
        boundary = header.get_boundary()
        if boundary and f"--{boundary}--".encode() not in self._content:
            raise Refusal(422, "The form ends before its last boundary.")
        # Some clients send an image as a field, a file without a name. Latin-1 keeps all bytes of a field.
        headers = Headers({"content-type": f"{kind}; charset=latin-1"})
        parser = MultiPartParser(
            headers, self._pieces(), max_files=self.max_items, max_fields=_MOST_FIELDS, max_part_size=2**20
        )
        parser.spool_max_size = len(self._content) + 1  # files stay in memory
        try:
            form = await parser.parse()
            values = [
                (name, await value.read() if isinstance(value, UploadFile) else value.encode("latin-1"))
                for name, value in form.multi_items()
            ]
            await form.close()
            return values
        except MultiPartException as error:
            raise Refusal(422, f"The form cannot be read: {error.message}") from None
        except ValueError:  # such as an impossible boundary
            raise Refusal(422, "The form cannot be read.") from None

    async def _pieces(self) -> AsyncGenerator[bytes, None]:
        """Yield the content, and let other requests go on while it is parsed."""
        for start in range(0, len(self._content), _PIECE):
            yield self._content[start : start + _PIECE]
            await asyncio.sleep(0)


def _check_size(size: int, most: int) -> None:
    if size > most:
        limit = f"{most:,} bytes, the limit of --max-body-bytes"
        raise Refusal(413, f"The request has more than {limit}: send fewer items.", code="body_too_large")


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
