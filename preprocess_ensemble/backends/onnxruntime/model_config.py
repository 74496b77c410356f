"""The parameters of a model configuration, checked as NVIDIA's C++ ONNX Runtime backend (r24.10) checks them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from preprocess_ensemble.errors import ReportedError

ModelConfig = Mapping[str, Any]
"""A model configuration as Triton passes it, in JSON: the field names of ``model_config.proto``."""

Value = TypeVar("Value")
Default = TypeVar("Default")


class ModelLoadError(ReportedError):
    """The model cannot be served with this configuration; the message is one sentence."""


def checked(parameters: Mapping[str, str], key: str, read: Callable[[str], Value], default: Default) -> Value | Default:
    """Return ``read(parameters[key])``, or ``default`` if the key is missing.

    Raises ``ModelLoadError`` that names the key, its value and what it may be.
    """
    if key not in parameters:
        return default
    try:
        return read(parameters[key])
    except ValueError as error:
        raise ModelLoadError(f"The parameter {key} must be {error}, not {parameters[key]!r}.") from None


def switch(text: str) -> bool:
    """Read a boolean as Triton does."""
    if text.lower() in ("1", "true", "on"):
        return True
    if text.lower() in ("0", "false", "off"):
        return False
    raise ValueError("a boolean (true, false, on, off, 1 or 0)")


def boolean(text: str) -> str:
    """Check a boolean for an execution provider, which does not know ``on`` and ``off``; return ``"1"`` or ``"0"``."""
    if text.lower() in ("on", "off"):
        raise ValueError("a boolean (true, false, 1 or 0)")
    return "1" if switch(text) else "0"


def integer(text: str) -> int:
    """Read a whole number."""
    try:
        return int(text)
    except ValueError:
        raise ValueError("an integer") from None


def int32(text: str) -> int:
    """Read a whole number that Triton keeps in a C++ ``int``."""
    number = integer(text)
    if not -(2**31) <= number < 2**31:
        raise ValueError("an integer of 32 bits")
    return number


def thread_count(parameters: Mapping[str, str], key: str) -> int:
    """Return a number of threads; 0 if the configuration does not say, or says a negative one."""
    return max(0, checked(parameters, key, int32, 0))


def one_of(*values: str) -> Callable[[str], str]:
    """Return a check for the position of one of ``values``; the check returns the value."""

    def check(text: str) -> str:
        if text not in map(str, range(len(values))):
            raise ValueError(f"a number from 0 to {len(values) - 1}")
        return values[int(text)]

    return check
