"""What a page asks for and cannot have; the message is one sentence for people."""

from __future__ import annotations

from typing import ClassVar

from preprocess_ensemble.errors import ReportedError


class CannotChoose(ReportedError):
    """A choice makes no sense for its groups."""

    status: ClassVar[int] = 400
    """Of the HTTP answer."""


class Busy(CannotChoose):
    """Something else is being done, or what was shown is out of date."""

    status: ClassVar[int] = 409
