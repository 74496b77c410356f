"""The preprocessor's own metrics, in Prometheus' text on the server's metrics port beside Triton's::

    clip_preprocess_images_total{status}          images by their status: OK, TRUNCATED, ...
    clip_preprocess_decoded_total{route,decoder}  good images by decode path, and by decoder
    clip_preprocess_requests_total{rows}          requests by their number of images: 1, 2-4, 5-8, 9-16, ...

Each update is a message to the server's process, so a batch is counted first and sent once per label.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from preprocess_ensemble.contract import ImageStatus
    from preprocess_ensemble.imaging.decode import DecodePath, Decoder

    _Outcome = tuple[ImageStatus, DecodePath | None, Decoder | None]
    """The status of one image and, if it is good, how it was decoded."""

_DESCRIPTIONS: Final = {
    "clip_preprocess_images_total": "Images by their status",
    "clip_preprocess_decoded_total": "Good images by how they were decoded: scaled, or else the reason why not",
    "clip_preprocess_requests_total": "Requests by their number of images",
}

_Labels = tuple[tuple[str, str], ...]


class BatchCounts:
    """Images and requests of one batch, counted by the labels of the metrics."""

    def __init__(self) -> None:
        self._outcomes: Counter[_Outcome] = Counter()
        self._requests: Counter[int] = Counter()

    def add_request(self, outcomes: Sequence[_Outcome]) -> None:
        """Count one request and each of its images."""
        self._outcomes.update(outcomes)
        self._requests[len(outcomes)] += 1

    @property
    def increments(self) -> Counter[tuple[str, _Labels]]:
        """(name, labels) of a metric -> by how much to increment it."""
        increments: Counter[tuple[str, _Labels]] = Counter()
        for (status, decode_path, decoder), images in self._outcomes.items():
            increments["clip_preprocess_images_total", (("status", status.name),)] += images
            if decode_path is not None and decoder is not None:
                labels = (("route", decode_path.value), ("decoder", decoder.value))
                increments["clip_preprocess_decoded_total", labels] += images
        for rows, requests in self._requests.items():
            increments["clip_preprocess_requests_total", (("rows", _size_class(rows)),)] += requests
        return increments


class PreprocessMetrics:
    """The metrics of one model instance; ``family`` is ``MetricFamily`` of Triton's Python backend."""

    def __init__(self, family: Any) -> None:
        self._families: Mapping[str, Any] = {
            name: family(name=name, description=description, kind=family.COUNTER)
            for name, description in _DESCRIPTIONS.items()
        }
        self._metrics: dict[tuple[str, _Labels], Any] = {}

    def add(self, counts: BatchCounts) -> None:
        """Add the counts of one batch."""
        for key, count in counts.increments.items():
            metric = self._metrics.get(key)
            if metric is None:
                name, labels = key
                metric = self._metrics[key] = self._families[name].Metric(labels=dict(labels))
            metric.increment(count)

    def close(self) -> None:
        """Release the metrics, which belong to the server's process, while the server still listens."""
        self._metrics.clear()
        self._families = {}


def _size_class(rows: int) -> str:
    if rows <= 1:
        return str(rows)
    most = max(4, 1 << (rows - 1).bit_length())
    least = 2 if most == 4 else most // 2 + 1
    return f"{least}-{most}"
