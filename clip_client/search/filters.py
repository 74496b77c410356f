"""Filters that select the photos of a search: by date, place, camera, format, size and folder."""

from __future__ import annotations

import os
import re
from calendar import monthrange
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from clip_client.dedup.types import RAW
from clip_client.search.query import QueryError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    import pyarrow as pa
    from numpy.typing import NDArray

    from clip_client.dedup.store.store import Store
    from clip_client.search.photo_index import PhotoIndex

FACTS: Final = ("width", "height", "format", "taken_ms", "camera", "latitude", "longitude")
"""Columns in the index of a store."""
FILTERS: Final = ("since", "until", "in_folder", "camera", "format", "min_pixels", "near")
"""Arguments of :meth:`Filter.of`, which are the names of the options and of the form fields."""

_EARTH_KM: Final = 6371.0
_DATE: Final = re.compile(r"(\d{4})(?:-(\d{1,2})(?:-(\d{1,2}))?)?")
_NAMES: Final = {"jpg": "jpeg", "tif": "tiff", "jxl": "jpeg xl", "heif": "heic", "raw": "raw file"}
"""Common name of a format -> its name in :data:`FORMATS`, case-folded."""


@dataclass(frozen=True, kw_only=True)
class Filter:
    """Conditions that all results meet; None and empty texts set none. A photo does not fit if its value is unknown."""

    first_ms: int | None = None
    """Earliest time of capture, in milliseconds since 1970 by the camera's clock."""
    end_ms: int | None = None
    """Time of capture, in the same unit, from which photos no longer fit."""
    folders: tuple[str, ...] = ()
    """Absolute paths of one folder: the named path, and the path without links."""
    camera: str = ""
    """Part of make and model, case-folded."""
    format: str = ""
    """Name of the format in the store."""
    pixels: float | None = None
    """Least product of width and height."""
    near: tuple[float, float, float] | None = None
    """Latitude and longitude in degrees, north and east positive, and kilometres around this place."""

    @classmethod
    def of(
        cls,
        *,
        since: str = "",
        until: str = "",
        in_folder: str = "",
        camera: str = "",
        format: str = "",
        min_pixels: str = "",
        near: str = "",
    ) -> Filter:
        """Read the texts of a person.

        ``since`` and ``until`` are years, months or days, such as ``"2019"`` or ``"2019-05-03"``. ``min_pixels`` is a
        number, or millions such as ``"2M"``. ``near`` is ``"LATITUDE,LONGITUDE,KM"``. Raises QueryError for a text that
        cannot be read.
        """
        folder = os.path.abspath(os.path.expanduser(in_folder))
        return cls(
            first_ms=_milliseconds(since, "since")[0] if since else None,
            end_ms=_milliseconds(until, "until")[1] if until else None,
            folders=tuple(dict.fromkeys((folder, os.path.realpath(folder)))) if in_folder else (),
            camera=camera.casefold(),
            format=_format_name(format) if format else "",
            pixels=_pixels(min_pixels) if min_pixels else None,
            near=_near(near) if near else None,
        )

    def rows(self, index: PhotoIndex, store: Store | None = None) -> NDArray[np.bool_] | None:
        """Tell for each row of the index whether it fits; None if all rows fit.

        Without a ``store`` the keys of the index are paths. Raises QueryError if the index lacks a needed column.
        """
        if self == Filter() or not len(index):
            return None
        if self != Filter(folders=self.folders) and not set(FACTS) <= set(index.column_names):
            raise QueryError(
                "files of vectors know only --in-folder, and not when, where and how photos were taken: name the "
                "folder of the photos instead"
            )
        fits = np.ones(len(index), dtype=bool)
        with np.errstate(invalid="ignore"):  # unknown values are NaN, with which every comparison is false
            if self.first_ms is not None:
                fits &= _numbers(index, "taken_ms") >= self.first_ms
            if self.end_ms is not None:
                fits &= _numbers(index, "taken_ms") < self.end_ms
            if self.pixels is not None:
                fits &= _numbers(index, "width") * _numbers(index, "height") >= self.pixels
            if self.near is not None:
                fits &= _km_from(self.near, _numbers(index, "latitude"), _numbers(index, "longitude")) <= self.near[2]
        if self.camera:
            fits &= _named(index, "camera", lambda name: self.camera in name.casefold())
        if self.format:
            fits &= _named(index, "format", lambda name: name == self.format)
        if self.folders:
            if store is None:
                fits &= index.holding(filter(self.has_file, index.keys()))
            else:
                fits &= index.holding(set[str]().union(*map(store.files.contents_below, self.folders)))
        return fits

    def has_file(self, path: str) -> bool:
        """Tell whether a file is in the folder or below it."""
        return not self.folders or is_below(path, self.folders)


def is_below(path: str, folders: Collection[str]) -> bool:
    """Tell whether a file is in one of ``folders`` (absolute paths), at any depth, or is itself in the list."""
    path = os.path.abspath(path)
    while path not in folders and (above := os.path.dirname(path)) != path:
        path = above
    return path in folders


def facts_table(features: pa.Table) -> pa.Table:
    """Return the columns :data:`FACTS` of stored features, which may have further columns; unknown values are null."""
    import pyarrow as pa
    import pyarrow.compute as pc

    # Most photos have their time in EXIF, the only block with milliseconds. Other photos have it in XMP or IPTC.
    texts = features.column("taken").to_pylist()
    told = pa.array([None if (moment := _start(text)) is None else _to_ms(moment) for text in texts], pa.int64())
    columns = {name: features.column(name) for name in FACTS}
    columns["taken_ms"] = pc.coalesce(columns["taken_ms"], told)
    for name in ("camera", "format"):
        columns[name] = columns[name].combine_chunks().dictionary_encode()
    return pa.table(columns)


def taken_text(taken_ms: int | None) -> str:
    """Write a time of capture, ``"2019-05-03 10:11:12"``; empty if it is unknown."""
    if taken_ms is None:
        return ""
    return (datetime(1970, 1, 1) + timedelta(milliseconds=taken_ms)).isoformat(" ", "seconds")


def _numbers(index: PhotoIndex, name: str) -> NDArray[np.float64]:
    """Return a column, with NaN for unknown values."""
    import pyarrow as pa

    numbers: NDArray[np.float64] = index.column(name).cast(pa.float64(), safe=False).to_numpy()
    return numbers


def _named(index: PhotoIndex, name: str, fits: Callable[[str], bool]) -> NDArray[np.bool_]:
    """Tell for each row whether its name in a column fits; ``fits`` is called once for each different name."""
    import pyarrow as pa
    import pyarrow.compute as pc

    column: Any = index.column(name).cast(pa.string())
    wanted = pa.array([one for one in pc.unique(column).to_pylist() if one and fits(one)], pa.string())
    found: NDArray[np.bool_] = pc.is_in(column, value_set=wanted).to_numpy()
    return found


def _format_name(text: str) -> str:
    from preprocess_ensemble.imaging.formats import FORMATS

    names = {name.casefold(): name for name in (RAW, *(one.name for one in FORMATS if one.opener is not None))}
    wanted = text.casefold().removeprefix(".")
    found = names.get(_NAMES.get(wanted, wanted))
    if found is None:
        raise QueryError(f"format is one of {', '.join(names.values())}, not {text!r}")
    return found


def _km_from(
    place: tuple[float, ...], latitudes: NDArray[np.float64], longitudes: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return the distances of places from ``place`` in kilometres, by the haversine formula."""
    north, east = np.radians(latitudes), np.radians(longitudes)
    latitude, longitude = np.radians(place[0]), np.radians(place[1])
    across = np.cos(latitude) * np.cos(north) * np.sin((east - longitude) / 2) ** 2
    distances: NDArray[np.float64] = np.arcsin(np.sqrt(np.minimum(1, np.sin((north - latitude) / 2) ** 2 + across)))
    return 2 * _EARTH_KM * distances


def _near(text: str) -> tuple[float, float, float]:
    try:
        latitude, longitude, km = map(float, text.split(","))
        if not (abs(latitude) <= 90 and abs(longitude) <= 180 and 0 < km < np.inf):
            raise ValueError
    except ValueError:
        raise QueryError(f"near is latitude, longitude and km, such as 47.37,8.54,10, not {text!r}") from None
    return latitude, longitude, km


def _pixels(text: str) -> float:
    try:
        number = text.upper().removesuffix("P")
        pixels = float(number.removesuffix("M")) * (1e6 if number.endswith("M") else 1)
        if not 0 <= pixels < np.inf:
            raise ValueError
        return pixels
    except ValueError:
        raise QueryError(f"min-pixels is a number such as 2000000 or 2M, not {text!r}") from None


def _milliseconds(text: str, name: str) -> tuple[int, int]:
    """Return the beginnings of a year, month or day and of the next one, in milliseconds since 1970."""
    found = _DATE.fullmatch(text)
    try:
        if found is None:
            raise ValueError
        year, month, day = (int(part) if part else 0 for part in found.groups())
        first = date(year, month or 1, day or 1)
        last = date(year, month or 12, day or monthrange(year, month or 12)[1])
    except ValueError:
        raise QueryError(f"{name} is a year, month or day, such as 2019 or 2019-05-03, not {text!r}") from None
    return _to_ms(datetime.combine(first, time())), _to_ms(datetime.combine(last, time())) + 86_400_000


def _start(text: str) -> datetime | None:
    try:
        return datetime.fromisoformat(text) if text else None
    except ValueError:
        return None


def _to_ms(moment: datetime) -> int:
    return round(moment.replace(tzinfo=UTC).timestamp() * 1000)
