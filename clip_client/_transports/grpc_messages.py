"""The bytes of requests and answers, without gRPC: the encoding of BYTES tensors, and the tensors of an answer."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from tritonclient.utils import deserialize_bytes_tensor

from clip_client._errors import ProtocolMismatch
from clip_client._transports.base import Answer
from preprocess_ensemble import contract

_LENGTH_DELIMITED: Final = 2
"""Protobuf's wire type of bytes: tag and length as varints, then the bytes."""
_LARGEST_REQUEST: Final = 8 * 2**20


def with_strings(head: bytes, field: int, strings: Sequence[bytes]) -> bytes:
    """Append a BYTES tensor to a serialised message, as the next element of its bytes field number ``field``.

    Concatenated messages of one type are one message (protobuf's encoding, "Last One Wins"). Protobuf itself would copy
    all images twice more.
    """
    tensor_bytes = sum(map(len, strings)) + 4 * len(strings)
    parts = [head, _varint(field << 3 | _LENGTH_DELIMITED), _varint(tensor_bytes)]
    for string in strings:
        # Each element of a BYTES tensor is a 4-byte little-endian length and then the bytes.
        parts += (len(string).to_bytes(4, "little"), string)
    return b"".join(parts)


def _varint(number: int) -> bytes:
    """Encode a number like protobuf: seven bits per byte, the lowest first; the top bit is set if more bytes follow."""
    encoded = bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)


def tensors(response: Any, request_id: str) -> dict[str, bytes]:
    """Return name -> bytes of each tensor of a ``ModelInferResponse``. Raises ProtocolMismatch."""
    if len(response.outputs) != len(response.raw_output_contents):
        raise malformed(request_id)
    return {tensor.name: raw for tensor, raw in zip(response.outputs, response.raw_output_contents, strict=True)}


def read_answer(response: Any, rows: int, request_id: str) -> Answer:
    """Read the answer of an ensemble to ``rows`` images or texts, without copies. Raises ProtocolMismatch."""
    raw = tensors(response, request_id)
    truncated = raw.get(contract.TRUNCATED)
    try:
        return Answer(
            vectors=np.frombuffer(raw[contract.EMBEDDING], dtype="<f4").reshape(rows, -1),
            statuses=np.frombuffer(raw[contract.STATUS], dtype="<i4").reshape(rows),
            errors=read_strings(raw[contract.ERROR], rows, request_id),
            fingerprints=np.frombuffer(raw[contract.FINGERPRINT], dtype="<i4").reshape(rows, 2),
            truncated=None if truncated is None else np.frombuffer(truncated, dtype=np.bool_).reshape(rows),
        )
    except (KeyError, ValueError):
        raise malformed(request_id) from None


def read_strings(raw: bytes, count: int, request_id: str) -> tuple[str, ...]:
    """Return the ``count`` elements of a BYTES tensor as text. Raises ProtocolMismatch."""
    if raw == bytes(4 * count):
        # All elements are empty, which is the usual case.
        return ("",) * count
    try:
        texts = deserialize_bytes_tensor(raw)
    except struct.error:
        raise malformed(request_id) from None
    if len(texts) != count:
        raise malformed(request_id)
    return tuple(text.decode("utf-8", "replace") for text in texts)


def malformed(request_id: str) -> ProtocolMismatch:
    return ProtocolMismatch(
        "The answer does not follow the wire contract; install the same clip-triton on both sides.",
        request_id=request_id,
    )


def warm_up_malloc() -> None:
    """Make glibc reuse the memory of one request for the next.

    glibc returns free memory at the top of its heap to the system above a threshold: twice the size of the largest
    block that was ever mapped and freed (``mallopt``, M_TRIM_THRESHOLD and M_MMAP_THRESHOLD). If a program's largest
    blocks are its requests, each request is returned and mapped again, page by page: 0.7 of 1.4 ms for every 500 KB.
    This function frees one block as large as the largest default request. The block is never written, so it takes no
    memory. With other allocators the function has no effect.
    """
    bytes(_LARGEST_REQUEST)
