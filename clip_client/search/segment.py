"""A part of an index: vectors of photos that are written together and never changed.

::

    scan.faiss    the vectors in 16 bits; every search reads all of them
    exact.npy     the vectors in 32 bits; a search reads only the best
    photos.arrow  the key of each vector, and the columns about its photo

All three files are memory-mapped, so that searches share them and load only the parts that they need.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from clip_client._errors import VectorsError

if TYPE_CHECKING:
    from pathlib import Path

    import pyarrow as pa
    from numpy.typing import NDArray

KEY: Final = "key"
"""Column of the keys: paths, or contents in hexadecimal, as bytes."""

ROUNDING: Final = 5e-4
"""Largest error of a cosine of 16-bit numbers: each number of a unit vector is off by at most 2**-11 of itself."""

_SCAN, _EXACT, _PHOTOS = "scan.faiss", "exact.npy", "photos.arrow"


class Segment:
    """Unit vectors, (n, D), and the table of their photos, whose first column is :data:`KEY`."""

    def __init__(self, exact: NDArray[np.float32], photos: pa.Table, scan: Any, name: str = "") -> None:
        self.exact = exact
        self.photos = photos
        self.name = name
        """Name of the segment's folder; empty for a segment in memory."""
        self._scan = scan

    @classmethod
    def of(cls, vectors: NDArray[np.float32], photos: pa.Table) -> Segment:
        """Make a segment in memory of unit vectors, (n, D)."""
        import faiss

        kind = faiss.ScalarQuantizer.QT_fp16
        scan = faiss.IndexScalarQuantizer(vectors.shape[1], kind, faiss.METRIC_INNER_PRODUCT)
        scan.train(vectors)
        scan.add(vectors)
        return cls(vectors, photos, scan)

    @classmethod
    def open(cls, folder: Path) -> Segment:
        """Open a segment that :meth:`write` wrote. Raises FileNotFoundError, and VectorsError for damaged files."""
        import faiss
        import pyarrow as pa
        from pyarrow import feather

        try:
            exact = np.load(folder / _EXACT, mmap_mode="r")
            photos = feather.read_table(folder / _PHOTOS, memory_map=True)
            scan = faiss.read_index(os.fspath(folder / _SCAN), faiss.IO_FLAG_MMAP_IFC)
        except FileNotFoundError:
            raise
        except (OSError, ValueError, RuntimeError, pa.ArrowException) as error:
            (folder / _SCAN).stat()  # raises FileNotFoundError; faiss has no such type for a missing file
            raise VectorsError(f"the index in {folder} is damaged ({error}); remove it, and make it again") from error
        if not len(exact) == len(photos) == scan.ntotal:
            raise VectorsError(f"the index in {folder} is damaged: its files differ in length; remove it")
        return cls(exact, photos, scan, folder.name)

    def write(self, folder: Path) -> Segment:
        """Write the files into ``folder``, which must not exist, and open them. Raises OSError."""
        import faiss
        from pyarrow import feather

        part = folder.with_name(f"{folder.name}.part")
        part.mkdir(parents=True)
        np.save(part / _EXACT, self.exact)
        feather.write_feather(self.photos, part / _PHOTOS, compression="uncompressed")
        faiss.write_index(self._scan, os.fspath(part / _SCAN))
        os.rename(part, folder)
        return Segment.open(folder)

    def __len__(self) -> int:
        return len(self.exact)

    def holding(self, keys: pa.Array) -> NDArray[np.bool_]:
        """Tell for each row whether its key is among ``keys``."""
        import pyarrow.compute as pc

        held: NDArray[np.bool_] = pc.is_in(self.photos.column(KEY), value_set=keys).to_numpy()
        return held

    def best(
        self, query: NDArray[np.float32], count: int, among: NDArray[np.bool_] | None = None
    ) -> tuple[NDArray[np.float32], NDArray[np.intp]]:
        """Return at most ``count`` best cosines with ``query``, (D,), exact to :data:`ROUNDING`, and their rows.

        ``among`` tells for each row whether it counts.
        """
        import faiss

        faiss_untyped: Any = faiss  # the stubs lack the names that faiss's Python part adds
        parameters = None
        if among is not None and not among.all():  # a mask costs time
            chosen = faiss_untyped.IDSelectorBitmap(np.packbits(among, bitorder="little"))
            parameters = faiss_untyped.SearchParameters(sel=chosen)
        # Use one thread: faiss divides threads among queries, so a single query would only wait for idle threads. While
        # other programs run, this costs more than the query itself.
        threads = faiss_untyped.omp_get_max_threads()
        faiss_untyped.omp_set_num_threads(1)
        try:
            (cosines,), (rows,) = self._scan.search(query[None], count, params=parameters)
        finally:
            faiss_untyped.omp_set_num_threads(threads)
        # faiss fills the result with -1 if fewer rows count.
        return cosines[rows >= 0], rows[rows >= 0]
