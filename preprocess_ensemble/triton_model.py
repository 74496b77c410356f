"""The Triton model ``clip_preprocess``: rows of encoded image files in, rows of pixels out. This adapts Triton's API.

::

    in   image   (N, 1) BYTES        one encoded image file each
    out  pixels  (N, H, W, 3) UINT8  RGB; all zero if the image failed
         status  (N, 1) INT32        the number of an ImageStatus (preprocess_ensemble.contract)
         error   (N, 1) BYTES        empty, or one sentence for people
         model   (N, 1) BYTES        the passport, the same in each row; made only on request

An image that fails never fails its request, and a malformed request never fails another one in the same batch. Its
metrics are::

    clip_preprocess_images_total{status}          images by their status: OK, TRUNCATED, ...
    clip_preprocess_decoded_total{route,decoder}  good images by decode path, and by decoder
    clip_preprocess_requests_total{rows}          requests by their number of images: 1, 2-4, 5-8, 9-16, ...
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import triton_python_backend_utils as pb_utils

from preprocess_ensemble.backends.preprocess_settings import PreprocessSettings
from preprocess_ensemble.backends.rows import (
    Counters,
    Increments,
    RowsRequest,
    check_dims,
    log_defects,
    parse,
    read_passport,
    respond,
    size_class,
    text_column,
)
from preprocess_ensemble.backends.shared_memory import restrict_own_regions
from preprocess_ensemble.contract import ERROR, IMAGE, PASSPORT, PIXELS, STATUS
from preprocess_ensemble.imaging import turbojpeg_decoder
from preprocess_ensemble.imaging.formats import limit_decoder_threads
from preprocess_ensemble.imaging.preprocessor import Preprocessed, Preprocessor
from preprocess_ensemble.imaging.transform import PreprocessConfig
from preprocess_ensemble.model_repository.passport import Passport

_DECODED_OUTPUTS: Final = frozenset({PIXELS, STATUS, ERROR})

_IMAGES: Final = "clip_preprocess_images_total"
_DECODED: Final = "clip_preprocess_decoded_total"
_REQUESTS: Final = "clip_preprocess_requests_total"
_METRICS: Final = {
    _IMAGES: "Images by their status",
    _DECODED: "Good images by how they were decoded: scaled, or else the reason why not",
    _REQUESTS: "Requests by their number of images",
}


class TritonPythonModel:
    """Triton's Python backend calls ``initialize`` once, ``execute`` for each batch of requests, then ``finalize``."""

    def initialize(self, args: Mapping[str, str]) -> None:
        """Read settings and passport. Raises ``TritonModelException`` with one sentence if the load fails."""
        restrict_own_regions()
        config = json.loads(args["model_config"])
        name = config["name"]
        try:
            settings = PreprocessSettings.from_parameters(
                {key: value["string_value"] for key, value in config.get("parameters", {}).items()},
                instances=max(1, sum(group.get("count", 1) for group in config.get("instance_group", []))),
            )
            self._passport_text = read_passport(Path(args["model_repository"]) / settings.passport)
            preprocess = PreprocessConfig.from_mapping(Passport.from_json(self._passport_text).preprocess)
            check_dims(config, PIXELS, [*preprocess.size, 3])
        except ValueError as error:
            raise pb_utils.TritonModelException(f"{name}: {error}") from None
        self._counters = Counters(name, _METRICS)
        # The rows are spread over the cores already; a decoder's own threads would only compete with them.
        limit_decoder_threads()
        at_least = preprocess.decode_at_least if settings.fast_decode else None
        pb_utils.Logger.log_info(
            f"{name}: {settings.decode_threads} decode threads; large JPEG files are decoded "
            + (f"at reduced size, to {' x '.join(map(str, at_least))} or more" if at_least else "in full")
            + f", by {turbojpeg_decoder.library() or 'Pillow, because PyTurboJPEG or libturbojpeg is not installed'}."
        )
        self._preprocessor = Preprocessor(
            preprocess, threads=settings.decode_threads, fast_decode=settings.fast_decode, limits=settings.limits
        )

    def execute(self, requests: Sequence[Any]) -> list[Any]:
        """Return a response for each request, in order; the rows of all requests share the threads."""
        parsed = [parse(request, IMAGE, "image file") for request in requests]
        pixels, rows = self._preprocessor.run([request.rows if _decodes(request) else () for request in parsed])
        increments = Increments()
        responses = []
        start = 0
        for request in parsed:
            outputs: dict[str, npt.NDArray[Any]] = {}
            if _decodes(request):
                end = start + len(request.rows)
                outputs = _decoded(request, rows[start:end], increments) | {PIXELS: pixels[start:end]}
                start = end
            if PASSPORT in request.requested:
                outputs[PASSPORT] = text_column([self._passport_text] * len(request.rows))
            responses.append(respond(request, outputs))
        self._counters.add(increments)
        return responses

    def finalize(self) -> None:
        """Stop the threads."""
        self._preprocessor.close()
        self._counters.close()


def _decodes(request: RowsRequest) -> bool:
    """Whether it asks for anything that needs decoding."""
    return not request.requested.isdisjoint(_DECODED_OUTPUTS)


def _decoded(
    request: RowsRequest, images: Sequence[Preprocessed], increments: Increments
) -> dict[str, npt.NDArray[Any]]:
    """Return status and error of the images of one request, which are counted, and logged if they are defects."""
    increments[_REQUESTS, (("rows", size_class(len(images))),)] += 1
    for image in images:
        increments[_IMAGES, (("status", image.status.name),)] += 1
        if image.decode_path is not None and image.decoder is not None:
            increments[_DECODED, (("route", image.decode_path.value), ("decoder", image.decoder.value))] += 1
    log_defects(request, "Image", [image.log for image in images])
    return {
        STATUS: np.array([[image.status] for image in images], dtype=np.int32),
        ERROR: text_column([image.message for image in images]),
    }
