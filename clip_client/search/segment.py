"""A part of an index: vectors in ``exact.npy`` and their photos in ``photos.arrow``, never changed, memory-mapped."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Final, cast

import numpy as np
from numpy.typing import NDArray

from clip_client._errors import VectorsError

if TYPE_CHECKING:
    import pyarrow as pa

KEY: Final = "key"
"""Column of the keys: paths, or contents in hexadecimal, as bytes."""

_VECTORS, _PHOTOS = "exact.npy", "photos.arrow"


class Segment:
    """Unit vectors, (n, D), and the table of their photos, whose first column is :data:`KEY`."""

    def __init__(self, vectors: NDArray[np.float32], photos: pa.Table, name: str = "") -> None:
        self.vectors = vectors
        self.photos = photos
        self.name = name

    @classmethod
    def open(cls, folder: Path) -> Segment:
        import pyarrow as pa
        from pyarrow import feather

        try:
            vectors = np.asarray(np.load(folder / _VECTORS, mmap_mode="r"))
            photos = feather.read_table(folder / _PHOTOS, memory_map=True)
        except FileNotFoundError:
            raise
        except (OSError, ValueError, pa.ArrowException) as error:
            raise VectorsError(f"the index in {folder} is damaged ({error}); remove it, and make it again") from error
        if len(vectors) != len(photos):
            raise VectorsError(f"the index in {folder} is damaged: its files differ in length; remove it")
        return cls(vectors, photos, folder.name)

    def write(self, folder: Path) -> Segment:
        from pyarrow import feather

        part = folder.with_name(f"{folder.name}.part")
        part.mkdir(parents=True)
        np.save(part / _VECTORS, self.vectors)
        feather.write_feather(self.photos, part / _PHOTOS, compression="uncompressed")
        os.rename(part, folder)
        return Segment.open(folder)

    def __len__(self) -> int:
        return len(self.vectors)

    def holding(self, keys: pa.Array) -> NDArray[np.bool_]:
        import pyarrow.compute as pc

        return cast("NDArray[np.bool_]", pc.is_in(self.photos.column(KEY), value_set=keys).to_numpy())
