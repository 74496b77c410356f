"""A model's own metrics, in Prometheus' text on the server's metrics port beside Triton's."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

Labels = tuple[tuple[str, str], ...]
"""Names and values."""


class Counters:
    """The counters of one instance of ``model``; ``descriptions`` has a text for each name.

    ``pb_utils`` is Triton's module. If Triton refuses the counters, a warning says so, and nothing is counted.
    """

    def __init__(self, pb_utils: Any, descriptions: Mapping[str, str], *, model: str) -> None:
        family = pb_utils.MetricFamily
        self._metrics: dict[tuple[str, Labels], Any] = {}
        self._families: dict[str, Any] = {}
        try:
            self._families = {
                name: family(name=name, description=description, kind=family.COUNTER)
                for name, description in descriptions.items()
            }
        except pb_utils.TritonModelException as error:
            pb_utils.Logger.log_warn(f"{model}: running without its own metrics, because Triton refused them: {error}")

    def add(self, increments: Counter[tuple[str, Labels]]) -> None:
        """Add to the counters: each is a message to the server's process, so count a whole batch first."""
        for key, count in increments.items() if self._families else ():
            metric = self._metrics.get(key)
            if metric is None:
                name, labels = key
                metric = self._metrics[key] = self._families[name].Metric(labels=dict(labels))
            metric.increment(count)

    def close(self) -> None:
        """Release the metrics, which belong to the server's process, while the server still listens."""
        self._metrics.clear()
        self._families = {}


def size_class(rows: int) -> str:
    """Return the range that a number of rows is counted in: 1, 2-4, 5-8, 9-16, ..."""
    if rows <= 1:
        return str(rows)
    most = max(4, 1 << (rows - 1).bit_length())
    least = 2 if most == 4 else most // 2 + 1
    return f"{least}-{most}"
