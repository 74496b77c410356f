"""The preprocessor's own metrics, in Prometheus' text on the server's metrics port beside Triton's::

    clip_preprocess_images_total{status}          images by their status: OK, TRUNCATED, ...
    clip_preprocess_decoded_total{route,decoder}  good images by decode path, and by decoder
    clip_preprocess_requests_total{rows}          requests by their number of images: 1, 2-4, 5-8, 9-16, ...

Each update is a message to the server's process, so a batch is counted first and sent once per label.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from preprocess_ensemble.imaging.preprocessor import Preprocessed

_IMAGES: Final = "clip_preprocess_images_total"
_DECODED: Final = "clip_preprocess_decoded_total"
_REQUESTS: Final = "clip_preprocess_requests_total"
_DESCRIPTIONS: Final = {
    _IMAGES: "Images by their status",
    _DECODED: "Good images by how they were decoded: scaled, or else the reason why not",
    _REQUESTS: "Requests by their number of images",
}

_Labels = tuple[tuple[str, str], ...]


class PreprocessMetrics:
    """The metrics of one model instance; ``family`` is ``MetricFamily`` of Triton's Python backend."""

    def __init__(self, family: Any) -> None:
        self._families = {
            name: family(name=name, description=description, kind=family.COUNTER)
            for name, description in _DESCRIPTIONS.items()
        }
        self._metrics: dict[tuple[str, _Labels], Any] = {}

    def add(self, requests: Iterable[Sequence[Preprocessed]]) -> None:
        """Add a batch: the outcomes of the images of each request."""
        increments: Counter[tuple[str, _Labels]] = Counter()
        for images in requests:
            increments[_REQUESTS, (("rows", _size_class(len(images))),)] += 1
            for image in images:
                increments[_IMAGES, (("status", image.status.name),)] += 1
                if image.decode_path is not None and image.decoder is not None:
                    path = (("route", image.decode_path.value), ("decoder", image.decoder.value))
                    increments[_DECODED, path] += 1
        for key, count in increments.items():
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
