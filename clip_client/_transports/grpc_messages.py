"""The bytes of requests and answers: what a BYTES tensor is, and what the tensors of an answer mean; free of gRPC."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from clip_client._errors import ProtocolMismatch
from clip_client._transports.base import Answer
from preprocess_ensemble import contract

if TYPE_CHECKING:
    from collections.abc import Sequence

_LENGTH_DELIMITED: Final = 2
"""Protobuf's wire type of bytes: tag and length as varints, then the bytes."""
_LARGEST_REQUEST: Final = 8 * 2**20


def with_strings(head: bytes, field: int, strings: Sequence[bytes]) -> bytes:
    """Put a BYTES tensor, as the next element of the bytes field number ``field``, behind a serialised message.

    Messages of one type, one behind the other, are one message (protobuf's encoding, "Last One Wins"). To have protobuf
    itself do it costs two copies more of all that is sent.
    """
    tensor_bytes = sum(map(len, strings)) + 4 * len(strings)
    parts = [head, _varint(field << 3 | _LENGTH_DELIMITED), _varint(tensor_bytes)]
    for string in strings:
        # A BYTES tensor is, per element, a 4-byte little-endian length and then the bytes.
        parts += (len(string).to_bytes(4, "little"), string)
    return b"".join(parts)


def _varint(number: int) -> bytes:
    """Protobuf's encoding of a number: seven bits to a byte, the lowest first, the top bit where more follow."""
    encoded = bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)


def tensors(response: Any, request_id: str) -> dict[str, bytes]:
    """Name -> bytes of each tensor of a ``ModelInferResponse``. Raises ProtocolMismatch."""
    if len(response.outputs) != len(response.raw_output_contents):
        raise malformed(request_id)
    return {tensor.name: raw for tensor, raw in zip(response.outputs, response.raw_output_contents, strict=True)}


def read_answer(response: Any, rows: int, request_id: str) -> Answer:
    """What ``clip_image`` answered to ``rows`` images; views, no copies. Raises ProtocolMismatch."""
    raw = tensors(response, request_id)
    try:
        return Answer(
            vectors=np.frombuffer(raw[contract.EMBEDDING], dtype="<f4").reshape(rows, -1),
            statuses=np.frombuffer(raw[contract.STATUS], dtype="<i4").reshape(rows),
            errors=read_strings(raw[contract.ERROR], rows, request_id),
            fingerprints=np.frombuffer(raw[contract.FINGERPRINT], dtype="<i4").reshape(rows, 2),
        )
    except (KeyError, ValueError):
        raise malformed(request_id) from None


def read_strings(raw: bytes, count: int, request_id: str) -> tuple[str, ...]:
    """The ``count`` elements of a BYTES tensor, as text. Raises ProtocolMismatch."""
    if raw == bytes(4 * count):
        # All empty, as the sentences about images nearly always are.
        return ("",) * count
    texts, offset = [], 0
    for _ in range(count):
        end = offset + 4 + int.from_bytes(raw[offset : offset + 4], "little")
        if offset + 4 > len(raw) or end > len(raw):
            raise malformed(request_id)
        texts.append(raw[offset + 4 : end].decode("utf-8", "replace"))
        offset = end
    return tuple(texts)


def malformed(request_id: str) -> ProtocolMismatch:
    """The error for an answer that does not have the form of this contract."""
    return ProtocolMismatch(
        "The answer does not have the tensors of this contract; install the same clip-triton on both sides.",
        request_id=request_id,
    )


def warm_up_malloc() -> None:
    """Have the memory of one request used again for the next.

    glibc gives free memory at the top of its heap back to the system, above twice the size of the largest block that
    was ever mapped and freed (``mallopt``, M_TRIM_THRESHOLD and M_MMAP_THRESHOLD). A program that frees nothing larger
    than its requests gives them all back and takes them anew, page by page: 0.7 ms of 1.4 for each 500 KB. This block
    is as large as any request by default. It is never written to, so it takes no memory; elsewhere it does nothing.
    """
    bytes(_LARGEST_REQUEST)
