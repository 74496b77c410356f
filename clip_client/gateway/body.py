"""The body of a request, read within limits and parsed. Malformed bodies are refused here."""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import math
import re
from contextlib import suppress
from typing import ClassVar, Final, TypeVar

from pydantic import BaseModel, ValidationError
from python_multipart import FormParser
from python_multipart.multipart import Field, File, parse_options_header
from starlette.requests import Request

from clip_client.gateway.dialect import Refusal
from clip_client.gateway.items import MAX_ITEMS, TOKENS

# python_multipart would log a line for each malformed form.
logging.getLogger("python_multipart").setLevel(logging.ERROR)

Parsed = TypeVar("Parsed", bound=BaseModel)

_MOST_PARTS: Final = MAX_ITEMS + 16  # images in a form, and some other fields
_STRUCTURE: Final = 2**20
"""Bytes of JSON outside of strings, besides 64 for each item. Such a byte may take a hundred bytes in memory: 60 MiB of
``[],`` took 2.5 GB and half a minute to parse, and the gateway answered no other request in that time."""


class Body:
    """The body of one request, in memory. A large one takes long to parse: do that in a thread."""

    limit_s: ClassVar[float] = 60.0  # time in which the body must arrive

    def __init__(self, request: Request) -> None:
        self.request = request
        self._content = b""

    async def read(self, most: int) -> None:
        """Read the body from the caller. Raises Refusal if it has more than ``most`` bytes or comes too slowly."""
        content, size = bytearray(), int(self.request.headers.get("content-length", 0))
        try:
            async with asyncio.timeout(self.limit_s):
                if size <= most:
                    async for chunk in self.request.stream():
                        content += chunk
                        if (size := len(content)) > most:
                            break
        except TimeoutError:
            raise Refusal(408, f"The body did not arrive within {self.limit_s:g} s.", code="body_too_slow") from None
        if size > most:
            limit = f"{most:,} bytes, the limit of --max-body-bytes"
            raise Refusal(413, f"The request has more than {limit}: send fewer items.", code="body_too_large")
        self._content = bytes(content)

    def json(self, model: type[Parsed]) -> Parsed:
        """Parse a JSON object. Raises Refusal with one sentence about the first mistake."""
        most = _STRUCTURE + 64 * MAX_ITEMS
        if _outside_strings(self._content, most) > most:
            raise Refusal(422, f"The body has more than {most:,} bytes outside of strings. {TOKENS}")
        try:
            return model.model_validate_json(self._content)
        except ValidationError as error:
            first = error.errors(include_url=False, include_context=False, include_input=False)[0]
            # JavaScript writes half of a surrogate pair for an emoji that was cut. Python's parser accepts that, and
            # then only the item with the half pair gets an error.
            if re.search("escape|surrogate", first["msg"]):
                with suppress(ValueError, RecursionError):
                    return model.model_validate(json.loads(self._content))
            where = ".".join(map(str, first["loc"]))[:100]
            raise Refusal(422, f"{where}: {first['msg']}" if where else first["msg"]) from None

    def images(self) -> list[bytes]:
        """Parse a multipart form: its files and fields named images, in order. Raises Refusal."""
        kind, options = parse_options_header(self.request.headers.get("content-type"))
        if kind != b"multipart/form-data" or not (boundary := options.get(b"boundary")):
            raise Refusal(422, "The body is not multipart/form-data with a boundary; JSON goes to /embed/base64.")
        if b"--%b--" % boundary not in self._content:
            raise Refusal(422, "The form ends before its last boundary.")
        images: list[bytes] = []
        parts = itertools.count(1)

        def add(part: File | Field) -> None:
            if next(parts) > _MOST_PARTS:
                raise Refusal(422, f"The form has more than {_MOST_PARTS} parts.")
            if part.field_name == b"images" and isinstance(part, File):
                part.file_object.seek(0)
                images.append(part.file_object.read())
            elif part.field_name == b"images":  # some clients send an image as a field, a file without a name
                images.append(part.value or b"")

        try:
            in_memory = {"MAX_MEMORY_FILE_SIZE": math.inf}
            parser = FormParser("multipart/form-data", add, add, boundary=boundary, config=in_memory)
            parser.write(self._content)
            parser.finalize()
        except ValueError:  # every error of the parser is one
            raise Refusal(422, "The form cannot be read.") from None
        return images


def _outside_strings(content: bytes, most: int) -> int:
    content = content.replace(rb"\\", b"").replace(rb"\"", b"")
    strings = content.count(b'"') // 2
    return strings if strings > most else sum(map(len, content.split(b'"')[::2]))
