"""The Triton model ``clip_preprocess``: image files in, pixels out, which are zero for an image that failed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import triton_python_backend_utils as pb_utils

from preprocess_ensemble.backends import rows
from preprocess_ensemble.backends.preprocess_settings import PreprocessSettings
from preprocess_ensemble.backends.rows import Increments, Outputs, RowsModel, RowsRequest
from preprocess_ensemble.contract import ERROR, IMAGE, PASSPORT, PIXELS, STATUS
from preprocess_ensemble.imaging import turbojpeg_decoder
from preprocess_ensemble.imaging.formats import limit_decoder_threads
from preprocess_ensemble.imaging.preprocessor import Preprocessor
from preprocess_ensemble.imaging.transform import PreprocessConfig
from preprocess_ensemble.model_repository.passport import Passport

_DECODED: Final = "clip_preprocess_decoded_total"


class TritonPythonModel(RowsModel):
    """Decodes, resizes and crops; the rows of all requests of a batch share the threads."""

    input = IMAGE
    row = "image file"
    requests_metric = "clip_preprocess_requests_total"
    rows_metric = "clip_preprocess_images_total"
    metrics = {  # noqa: RUF012
        rows_metric: "Images by their status",
        _DECODED: "Good images by how they were decoded: scaled, or else the reason why not",
        requests_metric: "Requests by their number of images",
    }

    def load(self, config: Mapping[str, Any], parameters: Mapping[str, str], folder: Path, version: Path) -> None:
        instances = max(1, sum(group.get("count", 1) for group in config.get("instance_group", [])))
        settings = PreprocessSettings.from_parameters(parameters, instances)
        self._passport_text = rows.read_passport(folder / settings.passport)
        preprocess = PreprocessConfig.from_mapping(Passport.from_json(self._passport_text).preprocess)
        rows.check_dims(config, PIXELS, [*preprocess.size, 3])
        # The rows are already spread over the cores, so a decoder's own threads would only compete with them.
        limit_decoder_threads()
        at_least = preprocess.decode_at_least if settings.fast_decode else None
        decoder = "libjpeg-turbo" if turbojpeg_decoder.installed() else "Pillow, because libturbojpeg is not installed"
        pb_utils.Logger.log_info(
            f"{self.name}: {settings.decode_threads} decode threads; large JPEG files are decoded "
            + (f"at reduced size, to {' x '.join(map(str, at_least))} or more" if at_least else "in full")
            + f", by {decoder}."
        )
        self._preprocessor = Preprocessor(
            preprocess, threads=settings.decode_threads, fast_decode=settings.fast_decode, limits=settings.limits
        )

    def answer(self, requests: Sequence[RowsRequest], increments: Increments) -> Iterator[Outputs]:
        # A request for the passport alone decodes nothing.
        decodes = [not request.requested.isdisjoint({PIXELS, STATUS, ERROR}) for request in requests]
        files = [request.rows if decoded else () for request, decoded in zip(requests, decodes, strict=True)]
        pixels, images = self._preprocessor.run(files)
        start = 0
        for request, decoded in zip(requests, decodes, strict=True):
            outputs: Outputs = {}
            if decoded:
                end = start + len(request.rows)
                outputs = {PIXELS: pixels[start:end], **self.described(request, images[start:end], increments)}
                start = end
            if PASSPORT in request.requested:
                outputs = {**outputs, PASSPORT: rows.text_column([self._passport_text] * len(request.rows))}
            yield outputs
        for image in images:
            if image.decode_path and image.decoder:
                increments[_DECODED, (("route", image.decode_path.value), ("decoder", image.decoder.value))] += 1

    def finalize(self) -> None:
        self._preprocessor.close()
        super().finalize()
