"""The ``parameters`` of ``clip_preprocess`` in config.pbtxt."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from preprocess_ensemble.cores import usable_cores
from preprocess_ensemble.imaging.limits import DecodeLimits


@dataclass(frozen=True, kw_only=True)
class PreprocessSettings:
    passport: str  # path of model.json, relative to the model's folder
    decode_threads: int
    fast_decode: bool
    limits: DecodeLimits

    @classmethod
    def from_parameters(cls, parameters: Mapping[str, str], instances: int) -> PreprocessSettings:
        # Names in capitals are Triton's own, such as EXECUTION_ENV_PATH.
        unknown = sorted(name for name in parameters if name not in _PARAMETERS and not name.isupper())
        if unknown:
            raise ValueError(f"unknown parameters {unknown}; the known ones are {sorted(_PARAMETERS)}")
        values: dict[str, Any] = {}
        for name in parameters.keys() & _PARAMETERS.keys():
            field, read = _PARAMETERS[name]
            try:
                values[field] = read(parameters[name])
            except (ValueError, KeyError, OverflowError):
                raise ValueError(f"parameter {name} cannot be {parameters[name]!r}") from None
        if "passport" not in values:
            raise ValueError('parameter passport is missing; it should be "../clip_encoder/1/model.json"')
        return cls(
            passport=values.pop("passport"),
            decode_threads=values.pop("decode_threads", 0) or math.ceil(usable_cores() / instances),
            fast_decode=values.pop("fast_decode", True),
            limits=DecodeLimits(**values),
        )


def _number(convert: Callable[[str], float], accept: Callable[[float], bool]) -> Callable[[str], float]:
    def read(text: str) -> float:
        if accept(number := convert(text)):
            return number
        raise ValueError(text)

    return read


def _read_switch(text: str) -> bool:
    return {"true": True, "1": True, "false": False, "0": False}[text.lower()]


_PARAMETERS: Final[dict[str, tuple[str, Callable[[str], Any]]]] = {  # name in config.pbtxt -> field
    "passport": ("passport", str),
    "decode_threads": ("decode_threads", _number(int, lambda threads: 0 <= threads <= 1024)),
    "fast_decode": ("fast_decode", _read_switch),
    "max_decode_seconds": ("max_decode_s", _number(float, lambda seconds: 0 < seconds < math.inf)),
    "max_image_bytes": ("max_bytes", int),
    "max_megapixels": ("max_pixels", lambda text: round(float(text) * 1_000_000)),
    "max_side_ratio": ("max_side_ratio", float),
    "max_frames": ("max_frames", int),
    "max_metadata_bytes": ("max_metadata_bytes", int),
    "allow_truncated": ("allow_truncated", _read_switch),
}
