"""A small set of content hashes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray


class KeyFilter:
    """A set of hashes by their first 8 bytes: a million hashes take 8 MB.

    It may report a hash that is not in the set: about once in 10**13 questions if the set has a million hashes.
    """

    def __init__(self, keys: Any) -> None:
        """Take ``keys``, a ``pyarrow.ChunkedArray`` of fixed-size binary values."""
        prefixes = [_prefixes(chunk) for chunk in keys.chunks if len(chunk)]
        self._prefixes = np.unique(np.concatenate(prefixes)) if prefixes else np.empty(0, dtype=np.uint64)

    def __contains__(self, key: bytes) -> bool:
        prefix = np.frombuffer(key, dtype=np.uint64, count=1)
        at = int(np.searchsorted(self._prefixes, prefix)[0])
        return at < len(self._prefixes) and bool(self._prefixes[at] == prefix[0])


def _prefixes(keys: Any) -> NDArray[Any]:
    width = keys.type.byte_width
    data = np.frombuffer(keys.buffers()[1], dtype=np.uint8, offset=keys.offset * width, count=len(keys) * width)
    return np.ascontiguousarray(data.reshape(-1, width)[:, :8]).view(np.uint64).ravel()
