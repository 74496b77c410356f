"""What the driver holds of each row: which content it has, and by what it can be compared."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from clip_client.distributed.chunks import vectors_in

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from clip_client.distributed.chunks import Chunk

    Indices = NDArray[np.intp]

_COLUMNS: Final = (
    "path_bytes",
    "vector",
    "error_code",
    "sha256",
    "perceptual_hash",
    "inner_hash",
    "is_flat",
    "code",
    "width",
    "height",
    "camera",
    "taken_ms",
)
_NOT_AN_IMAGE: Final = "NOT_AN_IMAGE"


@dataclass(frozen=True, kw_only=True, eq=False)
class Facts:
    """About the rows of a chunk, or about all rows; element i of each array is about row i."""

    contents: NDArray[np.bytes_]
    """(R,), the first 16 bytes of the SHA-256."""
    paths: NDArray[np.bytes_]
    """(R,), hashes of 16 bytes."""
    hashes: NDArray[np.uint64]
    """(R,) perceptual hashes."""
    inner_hashes: NDArray[np.uint64]
    """(R,), those of what lies within a plain border; 0 if there is none."""
    is_image: NDArray[np.bool_]
    """(R,), False for what could not be read and for what is no image."""
    is_picture: NDArray[np.bool_]
    """(R,), whether vector and hash say what it shows: it was embedded and is not of nearly one colour."""
    moments: NDArray[np.uint64]
    """(R,), equal for photos that one camera took at the same time; 0 if the time is not known."""
    flat_sizes: NDArray[np.uint64]
    """(R,), equal for pictures of one size and nearly one colour; 0 for all others."""

    @classmethod
    def empty(cls, rows: int) -> Facts:
        """Return arrays to be filled, of no image at all."""
        return cls(
            contents=np.zeros(rows, "S16"),
            paths=np.zeros(rows, "S16"),
            hashes=np.zeros(rows, np.uint64),
            inner_hashes=np.zeros(rows, np.uint64),
            is_image=np.zeros(rows, bool),
            is_picture=np.zeros(rows, bool),
            moments=np.zeros(rows, np.uint64),
            flat_sizes=np.zeros(rows, np.uint64),
        )

    def fill(self, rows: slice, part: Facts) -> None:
        """Take over the facts about ``rows``."""
        for name, array in vars(part).items():
            getattr(self, name)[rows] = array

    def first_with_content(self) -> Indices:
        """Return (R,), the row that stands for each row's content; -1 for no image, or if a later row has its path.

        This is one with a picture, if the content has any.
        """
        counts = self.is_image & self._is_last_of_path()
        rows = np.concatenate([np.flatnonzero(counts & self.is_picture), np.flatnonzero(counts & ~self.is_picture)])
        firsts = np.full(len(self.contents), -1)
        _, first, which = np.unique(self.contents[rows], return_index=True, return_inverse=True)
        firsts[rows] = rows[first][which]
        return firsts

    def _is_last_of_path(self) -> NDArray[np.bool_]:
        _, last = np.unique(self.paths[::-1], return_index=True)
        is_last = np.zeros(len(self.paths), dtype=bool)
        is_last[len(self.paths) - 1 - last] = True
        return is_last


@dataclass(frozen=True, kw_only=True, eq=False)
class Sample:
    """Vectors of a chunk that were drawn by their contents, so that copies are drawn together."""

    rows: Indices
    """(S,), their numbers among all rows."""
    vectors: NDArray[np.float32]
    """(S, D)"""
    is_for_cells: NDArray[np.bool_]
    """(S,), drawn for the cells."""
    is_for_recall: NDArray[np.bool_]
    """(S,), drawn for the recall."""

    @classmethod
    def concatenate(cls, parts: Sequence[Sample]) -> Sample:
        """Return the vectors of all ``parts``, in the order of their rows."""
        whole = cls(**{name: np.concatenate([getattr(part, name) for part in parts]) for name in vars(parts[0])})
        return whole.of(np.argsort(whole.rows))

    def of(self, chosen: NDArray[Any]) -> Sample:
        """Return some of the vectors, by position or by a mask."""
        return Sample(**{name: array[chosen] for name, array in vars(self).items()})


def read_facts(chunk: Chunk, cells_share: float, recall_share: float) -> tuple[Facts, Sample]:
    """Read a chunk, and draw the shares (0 to 1) of its vectors. Raises DistributedError."""
    table = chunk.read(_COLUMNS)
    vectors = vectors_in(table)
    digests = table.column("sha256").to_pylist()
    codes = [table.column(name).to_pylist() for name in ("error_code", "code")]
    is_embedded = np.array([error is None and not code for error, code in zip(*codes, strict=True)], dtype=bool)
    is_flat = np.array([flat is not False for flat in table.column("is_flat").to_pylist()], dtype=bool)
    facts = Facts(
        contents=np.array([(digest or b"")[:16] for digest in digests], dtype="S16"),
        paths=np.array(
            [blake2b(path, digest_size=16).digest() for path in table.column("path_bytes").to_pylist()], dtype="S16"
        ),
        hashes=_hashes(table, "perceptual_hash"),
        inner_hashes=_hashes(table, "inner_hash"),
        is_image=np.array(
            [digest is not None and error != _NOT_AN_IMAGE for digest, error in zip(digests, codes[0], strict=True)],
            dtype=bool,
        ),
        is_picture=is_embedded & ~is_flat & np.isfinite(vectors.sum(axis=1)),
        moments=_moments(table),
        flat_sizes=np.where(is_embedded & is_flat, _sizes(table), np.uint64(0)),
    )
    numbers = np.array([digest or bytes(32) for digest in digests], dtype="V32").view(np.uint64).reshape(-1, 4)
    drawn = [
        facts.is_picture & (numbers[:, column] < share * 2.0**64)
        for column, share in enumerate((cells_share, recall_share))
    ]
    rows = np.flatnonzero(drawn[0] | drawn[1])
    sample = Sample(
        rows=rows + chunk.first_row,
        vectors=vectors[rows],
        is_for_cells=drawn[0][rows],
        is_for_recall=drawn[1][rows],
    )
    return facts, sample


def equal_pairs(rows: Indices, values: NDArray[np.uint64]) -> tuple[Indices, Indices]:
    """Return pairs that connect those of ``rows`` with equal ``values``, (R,), except 0."""
    rows = rows[values[rows] != 0]
    rows = rows[np.argsort(values[rows], kind="stable")]
    is_equal = values[rows[1:]] == values[rows[:-1]]
    return rows[:-1][is_equal], rows[1:][is_equal]


def _hashes(table: Any, column: str) -> NDArray[np.uint64]:
    return np.asarray(table.column(column).fill_null(0).to_numpy(), np.uint64)


def _moments(table: Any) -> NDArray[np.uint64]:
    taken = zip(table.column("camera").to_pylist(), table.column("taken_ms").to_pylist(), strict=True)
    names = (b"" if ms is None else blake2b(f"{ms} {camera}".encode(), digest_size=8).digest() for camera, ms in taken)
    return np.array([int.from_bytes(name, "big") for name in names], dtype=np.uint64)


def _sizes(table: Any) -> NDArray[np.uint64]:
    width, height = (table.column(side).fill_null(0).to_numpy().astype(np.uint64) for side in ("width", "height"))
    sizes: NDArray[np.uint64] = width << np.uint64(32) | height
    return sizes
