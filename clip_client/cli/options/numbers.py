"""Numbers on the command line."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

Number = TypeVar("Number", int, float)


def number_type(
    convert: Callable[[str], Number], accept: Callable[[Number], bool], *, expected: str
) -> Callable[[str], Number]:
    """Return the ``type`` of an option whose number ``accept`` must hold for; ``expected`` tells the user which."""

    def parse(text: str) -> Number:
        with suppress(ValueError):
            number = convert(text)
            if accept(number):
                return number
        raise argparse.ArgumentTypeError(f"expected {expected}, got {text!r}")

    return parse


count = number_type(int, lambda number: number >= 1, expected="a whole number of at least 1")
