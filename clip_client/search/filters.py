"""Filters that select the photos of a search: one table for the options, the fields of the page, and the checks."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from clip_client.dedup.text import counted
from clip_client.dedup.types import RAW
from clip_client.search.query import QueryError
from clip_client.search.space import SearchSpace, is_below

if TYPE_CHECKING:
    import pyarrow as pa

FACTS: Final = ("width", "height", "format", "taken_ms", "camera", "latitude", "longitude")

_EARTH_KM: Final = 6371.0
_DATE: Final = re.compile(r"\d{4}(-\d{1,2}(-\d{1,2})?)?")
_DATE_FORM: Final = "a year, month or day, such as 2019 or 2019-05-03"
_NAMES: Final = {"jpg": "jpeg", "tif": "tiff", "jxl": "jpeg xl", "heif": "heic", "raw": "raw file"}
"""Common name of a format -> its name in :data:`FORMATS`, case-folded."""


class Filter(NamedTuple):
    metavar: str
    meaning: str
    """Help of the option, after the words "only photos that were"."""
    label: str
    example: str
    read: Callable[[str], Any]
    fits: Callable[[SearchSpace, Any], NDArray[np.bool_]]
    form: str = ""
    fact: str = ""
    has_fact: Callable[[SearchSpace], NDArray[np.bool_]] | None = None


class LeftOut(NamedTuple):
    """Rows that a filter leaves out of those that all filters before it keep."""

    filter: str
    rows: int
    without_fact: int

    def in_words(self, noun: str) -> str:
        """Say what is left out, such as ``"13 photos left out by --since: 4 have no date"``."""
        fact = FILTERS[self.filter].fact
        have = "has" if self.without_fact == 1 else "have"
        why = f": {self.without_fact:,} {have} no {fact}" if self.without_fact else ""
        return f"{counted(self.rows, noun)} left out by --{self.filter.replace('_', '-')}{why}"


@dataclass(frozen=True)
class Wanted:
    conditions: Mapping[str, Any] = field(default_factory=dict)
    """Name in :data:`FILTERS` -> the value that its ``read`` returned."""

    @classmethod
    def of(cls, texts: Mapping[str, str], *, prefix: str = "") -> Wanted:
        """Read the text of each filter. Raises QueryError; its message has ``prefix`` before the names of filters."""
        conditions = {}
        for name, text in texts.items():
            try:
                if text:
                    conditions[name] = FILTERS[name].read(text)
            except ValueError as error:
                form = FILTERS[name].form or error
                raise QueryError(f"{prefix}{name.replace('_', '-')} must be {form}, not {text!r}") from None
        if conditions.get("since", -np.inf) >= conditions.get("until", np.inf):
            since, until = (f"{prefix}{name} {texts[name]}" for name in ("since", "until"))
            raise QueryError(f"{since} is later than {until}, so no photo can fit")
        return cls(conditions)

    @property
    def folders(self) -> tuple[str, ...]:
        return tuple(self.conditions.get("in_folder", ()))

    def select(self, space: SearchSpace) -> tuple[NDArray[np.bool_] | None, tuple[LeftOut, ...]]:
        """Return the mask of the rows to search (None for all), and what each filter leaves out. Raises QueryError."""
        rows, left_out = space.inside, []
        if not len(space.index):
            return rows, ()
        if space.store is None and self.conditions.keys() - {"in_folder"}:
            raise QueryError(
                "files of vectors can be filtered only by --in-folder, because they do not say when, where and how "
                "photos were taken: name the folder of the photos instead"
            )
        for name, value in self.conditions.items():
            one = FILTERS[name]
            with np.errstate(invalid="ignore"):  # comparisons with NaN, which stands for an unknown value, are False
                fits = one.fits(space, value)
            out = ~fits if rows is None else rows & ~fits
            if out.any():
                lacking = 0 if one.has_fact is None else np.count_nonzero(out & ~one.has_fact(space))
                left_out.append(LeftOut(name, int(np.count_nonzero(out)), int(lacking)))
            rows = fits if rows is None else rows & fits
        return rows, tuple(left_out)


def facts_table(features: pa.Table) -> pa.Table:
    import pyarrow as pa
    import pyarrow.compute as pc

    # Most photos have their time in EXIF, the only block with milliseconds. Other photos have it in XMP or IPTC.
    told = pa.array([_told_ms(text or "") for text in features.column("taken").to_pylist()], pa.int64())
    columns = {name: features.column(name) for name in FACTS}
    columns["taken_ms"] = pc.coalesce(columns["taken_ms"], told)
    for name in ("camera", "format"):
        columns[name] = columns[name].combine_chunks().dictionary_encode()
    return pa.table(columns)


def taken_text(taken_ms: int | None) -> str:
    return "" if taken_ms is None else str(np.datetime64(taken_ms // 1000, "s")).replace("T", " ")


def _told_ms(text: str) -> int | None:
    try:
        return round(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp() * 1000)
    except ValueError:
        return None


def _numbers(space: SearchSpace, name: str) -> NDArray[np.float64]:
    import pyarrow as pa

    return cast("NDArray[np.float64]", space.index.column(name).cast(pa.float64(), safe=False).to_numpy())


def _has_date(space: SearchSpace) -> NDArray[np.bool_]:
    return ~np.isnan(_numbers(space, "taken_ms"))


def _named(space: SearchSpace, name: str, fits: Callable[[str], bool]) -> NDArray[np.bool_]:
    import pyarrow as pa
    import pyarrow.compute as pc

    column: Any = space.index.column(name).cast(pa.string())
    wanted = pa.array([one for one in pc.unique(column).to_pylist() if one and fits(one)], pa.string())
    return cast("NDArray[np.bool_]", pc.is_in(column, value_set=wanted).to_numpy())


def _first_ms(text: str, after: int = 0) -> int:
    """Return the beginning of a year, month or day, or of the one ``after`` it, in milliseconds since 1970."""
    if _DATE.fullmatch(text) is None:
        raise ValueError
    period = np.datetime64("-".join(part.zfill(2) for part in text.split("-")))  # its unit is a year, month or day
    return int((period + after).astype("datetime64[ms]").astype(np.int64))


def _format_name(text: str) -> str:
    from preprocess_ensemble.imaging.formats import FORMATS

    names = {name.casefold(): name for name in (RAW, *(one.name for one in FORMATS if one.opener is not None))}
    wanted = text.casefold().removeprefix(".")
    found = names.get(_NAMES.get(wanted, wanted))
    if found is None:
        raise ValueError(f"one of {', '.join(names.values())}")
    return found


def _pixels(text: str) -> float:
    number = text.upper().removesuffix("P")
    pixels = float(number.removesuffix("M")) * (1e6 if number.endswith("M") else 1)
    if not 0 <= pixels < np.inf:
        raise ValueError
    return pixels


def _circle(text: str) -> tuple[float, float, float]:
    latitude, longitude, km = map(float, text.split(","))
    if not (abs(latitude) <= 90 and abs(longitude) <= 180 and 0 < km < np.inf):
        raise ValueError
    return latitude, longitude, km


def _in_circle(space: SearchSpace, circle: tuple[float, float, float]) -> NDArray[np.bool_]:
    north, east = np.radians(_numbers(space, "latitude")), np.radians(_numbers(space, "longitude"))
    latitude, longitude = np.radians(circle[:2])
    across = np.cos(latitude) * np.cos(north) * np.sin((east - longitude) / 2) ** 2
    angles = 2 * np.arcsin(np.sqrt(np.minimum(1, np.sin((north - latitude) / 2) ** 2 + across)))
    return cast("NDArray[np.bool_]", _EARTH_KM * angles <= circle[2])


def _folders(text: str) -> tuple[str, ...]:
    folder = os.path.abspath(os.path.expanduser(text))
    return tuple(dict.fromkeys((folder, os.path.realpath(folder))))


def _in_folders(space: SearchSpace, folders: tuple[str, ...]) -> NDArray[np.bool_]:
    if space.store is None:
        return space.index.holding(path for path in space.index.keys() if is_below(path, folders))
    return space.index.holding(set[str]().union(*map(space.store.files.contents_below, folders)))


FILTERS: Final = {
    "since": Filter(
        "DATE", "taken in this year, month or day, or later: 2019, 2019-05 or 2019-05-03", "Taken since", "2019-05",
        _first_ms, lambda space, first_ms: _numbers(space, "taken_ms") >= first_ms,
        form=_DATE_FORM, fact="date", has_fact=_has_date,
    ),
    "until": Filter(
        "DATE", "taken in this year, month or day, or earlier", "Taken until", "2021",
        lambda text: _first_ms(text, after=1), lambda space, end_ms: _numbers(space, "taken_ms") < end_ms,
        form=_DATE_FORM, fact="date", has_fact=_has_date,
    ),
    "camera": Filter(
        "NAME", "taken with a camera whose make and model contain NAME", "Camera", "Canon",
        str.casefold, lambda space, part: _named(space, "camera", lambda name: part in name.casefold()),
        fact="camera", has_fact=lambda space: _named(space, "camera", bool),
    ),
    "format": Filter(
        "NAME", "in this format: JPEG, PNG, HEIC, RAW, ...", "Format", "HEIC",
        _format_name, lambda space, wanted: _named(space, "format", lambda name: name == wanted),
    ),
    "min_pixels": Filter(
        "N", "with at least N pixels: 2000000 or 2M", "Pixels at least", "2M",
        _pixels, lambda space, least: _numbers(space, "width") * _numbers(space, "height") >= least,
        form="a number such as 2000000 or 2M",
    ),
    "near": Filter(
        "LAT,LON,KM", "taken within KM kilometres of this place: 47.37,8.54,10",
        "Near (latitude, longitude, km)", "47.37,8.54,10",
        _circle, _in_circle, form="latitude, longitude and km, such as 47.37,8.54,10",
        fact="place", has_fact=lambda space: ~np.isnan(_numbers(space, "latitude")),
    ),
    "in_folder": Filter(
        "DIR", "in this folder or below it", "In folder", "~/Pictures/2021", _folders, _in_folders,
    ),
}  # fmt: skip
"""Name of a filter -> the filter. The name is that of the field; the option has dashes instead of underscores."""
