"""Which photos count in a search: by date, place, camera, format, size and folder."""

from __future__ import annotations

import os
import re
from calendar import monthrange
from dataclasses import dataclass, fields
from datetime import UTC, date, datetime, time, timedelta
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from clip_client.search.query import QueryError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import pyarrow as pa
    from numpy.typing import NDArray

    from clip_client.dedup.store.store import Store
    from clip_client.search.photo_index import PhotoIndex

FACTS: Final = ("width", "height", "format", "taken_ms", "camera", "latitude", "longitude")
"""Columns of an index of a store."""

_EARTH_KM: Final = 6371.0
_DATE: Final = re.compile(r"(\d{4})(?:-(\d{1,2})(?:-(\d{1,2}))?)?")
_NAMES: Final = {"jpg": "jpeg", "tif": "tiff", "jxl": "jpeg xl", "heif": "heic", "raw": "raw file"}
"""What people call a format -> its name, without upper case."""


class Near(NamedTuple):
    """A circle on the earth."""

    latitude: float
    """Degrees; north and east are positive."""
    longitude: float
    km: float

    @classmethod
    def of(cls, text: str) -> Near:
        """Read ``"LAT,LON,KM"``. Raises ValueError."""
        latitude, longitude, km = (float(part) for part in text.split(","))
        if not (abs(latitude) <= 90 and abs(longitude) <= 180 and 0 < km < np.inf):
            raise ValueError
        return cls(latitude, longitude, km)


@dataclass(frozen=True, kw_only=True)
class Filter:
    """What all results have; an empty field demands nothing. A photo that does not say what a field asks is left out.

    The names of the fields are those of the options and of the form fields.
    """

    since: str = ""
    """A year, month or day, such as ``"2019"`` or ``"2019-05-03"``, by the camera's clock."""
    until: str = ""
    """The last year, month or day."""
    in_folder: str = ""
    camera: str = ""
    """Part of its make and model, in upper or lower case."""
    format: str = ""
    min_pixels: str = ""
    """Width times height: a number, or millions such as ``"2M"``."""
    near: str = ""
    """Degrees and kilometres, ``"LAT,LON,KM"``."""

    @property
    def is_empty(self) -> bool:
        """It demands nothing."""
        return self == Filter()

    def rows(self, index: PhotoIndex, store: Store | None = None) -> NDArray[np.bool_] | None:
        """Tell for each row of the index whether it fits; None if all do.

        Without a ``store`` the keys of the index are paths. Raises QueryError for a field that cannot be read, and for
        one that the index knows nothing about.
        """
        if self.is_empty:
            return None
        fits = np.ones(len(index.holding(())), dtype=bool)
        tests: Mapping[str, Callable[[PhotoIndex], NDArray[np.bool_]]] = {
            "since": lambda index: _numbers(index, "taken_ms") >= _milliseconds(self.since, "since")[0],
            "until": lambda index: _numbers(index, "taken_ms") < _milliseconds(self.until, "until")[1],
            "camera": lambda index: _named(index, "camera", lambda name: self.camera.casefold() in name.casefold()),
            "format": lambda index: _named(index, "format", self._is_format),
            "min_pixels": lambda index: _numbers(index, "width") * _numbers(index, "height") >= self._pixels(),
            "near": self._are_near,
        }
        for field in fields(self):
            if not getattr(self, field.name):
                continue
            if field.name == "in_folder":
                fits &= self._are_in_folder(index, store)
            elif not set(FACTS) <= set(index.column_names):
                option = field.name.replace("_", "-")
                raise QueryError(
                    f"{option} needs what a store knows of its photos, and these are vectors alone; name the folder of "
                    "the photos instead"
                )
            else:
                with np.errstate(invalid="ignore"):  # NaN is less than nothing
                    fits &= tests[field.name](index)
        return fits

    def check(self) -> None:
        """Raise QueryError for a field that cannot be read."""
        for name in ("since", "until"):
            if getattr(self, name):
                _milliseconds(getattr(self, name), name)
        if self.min_pixels:
            self._pixels()
        if self.near:
            self._near()

    def _is_format(self, name: str) -> bool:
        wanted = self.format.casefold().removeprefix(".")
        return name.casefold() == _NAMES.get(wanted, wanted)

    def _pixels(self) -> float:
        try:
            text = self.min_pixels.upper().removesuffix("P")
            return float(text.removesuffix("M")) * (1e6 if text.endswith("M") else 1)
        except ValueError:
            raise QueryError(f"min-pixels is a number such as 2000000 or 2M, not {self.min_pixels!r}") from None

    def _near(self) -> Near:
        try:
            return Near.of(self.near)
        except ValueError:
            raise QueryError(
                f"near is latitude, longitude and kilometres, such as 47.37,8.54,10, not {self.near!r}"
            ) from None

    def _are_near(self, index: PhotoIndex) -> NDArray[np.bool_]:
        near = self._near()
        latitudes, longitudes = (np.radians(_numbers(index, name)) for name in ("latitude", "longitude"))
        latitude, longitude = np.radians(near.latitude), np.radians(near.longitude)
        haversine = (
            np.sin((latitudes - latitude) / 2) ** 2
            + np.cos(latitude) * np.cos(latitudes) * np.sin((longitudes - longitude) / 2) ** 2
        )
        are_near: NDArray[np.bool_] = 2 * _EARTH_KM * np.arcsin(np.sqrt(np.minimum(1, haversine))) <= near.km
        return are_near

    def _are_in_folder(self, index: PhotoIndex, store: Store | None) -> NDArray[np.bool_]:
        folder = os.path.abspath(os.path.expanduser(self.in_folder))
        if store is not None:
            return index.holding(store.files.contents_below(folder))
        below = os.path.join(folder, "")
        return index.holding([key for key in index.keys() if os.path.abspath(key).startswith(below)])


def facts_table(features: pa.Table) -> pa.Table:
    """Return the columns :data:`FACTS` of stored features, which may have more; unknown is null."""
    import pyarrow as pa
    import pyarrow.compute as pc

    # Most photos say the time in EXIF, which alone says milliseconds; others in XMP or IPTC.
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
    """Return a column with NaN for what is unknown."""
    import pyarrow as pa

    numbers: NDArray[np.float64] = index.column(name).cast(pa.float64(), safe=False).to_numpy()
    return numbers


def _named(index: PhotoIndex, name: str, fits: Callable[[str], bool]) -> NDArray[np.bool_]:
    """Tell for each row whether its name in a column fits; each different name is looked at once."""
    import pyarrow as pa
    import pyarrow.compute as pc

    column: Any = index.column(name)
    names = pc.unique(column.cast(pa.string())).to_pylist()
    wanted = pa.array([one for one in names if one and fits(one)], pa.string())
    if not len(wanted) and name == "format":
        known = ", ".join(sorted(filter(None, names)))
        raise QueryError(f"no photo has this format; the formats there are: {known}")
    found: NDArray[np.bool_] = pc.is_in(column.cast(pa.string()), value_set=wanted).to_numpy()
    return found


def _milliseconds(text: str, name: str) -> tuple[int, int]:
    """Return when a year, month or day begins, and when the next one does."""
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
