"""The preprocessor's own metrics::

clip_preprocess_images_total{status}          images by their status: OK, TRUNCATED, ...
clip_preprocess_decoded_total{route,decoder}  good images by decode path, and by decoder
clip_preprocess_requests_total{rows}          requests by their number of images: 1, 2-4, 5-8, 9-16, ...
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final

from preprocess_ensemble.backends.counters import Labels, size_class

if TYPE_CHECKING:
    from preprocess_ensemble.imaging.preprocessor import Preprocessed

_IMAGES: Final = "clip_preprocess_images_total"
_DECODED: Final = "clip_preprocess_decoded_total"
_REQUESTS: Final = "clip_preprocess_requests_total"
PREPROCESS_METRICS: Final = {
    _IMAGES: "Images by their status",
    _DECODED: "Good images by how they were decoded: scaled, or else the reason why not",
    _REQUESTS: "Requests by their number of images",
}
"""Name -> description."""


def count_images(requests: Iterable[Sequence[Preprocessed]]) -> Counter[tuple[str, Labels]]:
    """Return what a batch adds to the metrics: the outcomes of the images of each request."""
    increments: Counter[tuple[str, Labels]] = Counter()
    for images in requests:
        increments[_REQUESTS, (("rows", size_class(len(images))),)] += 1
        for image in images:
            increments[_IMAGES, (("status", image.status.name),)] += 1
            if image.decode_path is not None and image.decoder is not None:
                path = (("route", image.decode_path.value), ("decoder", image.decoder.value))
                increments[_DECODED, path] += 1
    return increments
