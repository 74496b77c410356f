"""The Triton model ``clip_preprocess``: rows of encoded image files in, rows of pixels out. This adapts Triton's API.

::

    in   image   (N, 1) BYTES        one encoded image file each
    out  pixels  (N, H, W, 3) UINT8  RGB; all zero if the image failed
         status  (N, 1) INT32        the number of an ImageStatus (preprocess_ensemble.contract)
         error   (N, 1) BYTES        empty, or one sentence for people
         model   (N, 1) BYTES        the passport, the same in each row; made only on request

An image that fails never fails its request, and a malformed request never fails another one in the same batch.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import triton_python_backend_utils as pb_utils

from preprocess_ensemble.backends.counters import Counters
from preprocess_ensemble.backends.preprocess.metrics import PREPROCESS_METRICS, count_images
from preprocess_ensemble.backends.preprocess.settings import PreprocessSettings
from preprocess_ensemble.backends.rows import RowsRequest, check_dims, parse, read_passport, text_column
from preprocess_ensemble.backends.shared_memory import restrict_own_regions
from preprocess_ensemble.contract import ERROR, IMAGE, PASSPORT, PIXELS, STATUS
from preprocess_ensemble.imaging import turbojpeg_decoder
from preprocess_ensemble.imaging.formats import limit_decoder_threads
from preprocess_ensemble.imaging.preprocessor import Preprocessed, Preprocessor
from preprocess_ensemble.imaging.transform import PreprocessConfig
from preprocess_ensemble.model_repository.passport import Passport

if TYPE_CHECKING:
    import numpy.typing as npt

_DECODED_OUTPUTS: Final = frozenset({PIXELS, STATUS, ERROR})


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
        self._metrics = Counters(pb_utils, PREPROCESS_METRICS, model=name)
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
        parsed = [
            parse(request, IMAGE, pb_utils.get_input_tensor_by_name(request, IMAGE), "image file")
            for request in requests
        ]
        decoded = [request.rows if _decodes(request) else () for request in parsed]
        pixels, rows = self._preprocessor.run(decoded)
        outcomes, responses = [], []
        end = 0
        for request, files in zip(parsed, decoded, strict=True):
            start, end = end, end + len(files)
            outcomes.append(rows[start:end])
            responses.append(self._respond(request, rows[start:end], pixels[start:end]))
        counted = (images for request, images in zip(parsed, outcomes, strict=True) if _decodes(request))
        self._metrics.add(count_images(counted))
        return responses

    def finalize(self) -> None:
        """Stop the threads."""
        self._preprocessor.close()
        self._metrics.close()

    def _respond(self, request: RowsRequest, rows: Sequence[Preprocessed], pixels: npt.NDArray[np.uint8]) -> Any:
        if request.problem:
            error = pb_utils.TritonError(request.problem, pb_utils.TritonError.INVALID_ARG)
            return pb_utils.InferenceResponse(error=error)
        outputs: dict[str, npt.NDArray[Any]] = {}
        if _decodes(request):
            for number, row in enumerate(rows):
                if row.log:
                    pb_utils.Logger.log_error(
                        f"Image {number} of request {request.id} failed with an internal error.\n{row.log}"
                    )
            outputs = {
                PIXELS: pixels,
                STATUS: np.array([[row.status] for row in rows], dtype=np.int32),
                ERROR: text_column([row.message for row in rows]),
            }
        if PASSPORT in request.requested:
            outputs[PASSPORT] = text_column([self._passport_text] * len(request.rows))
        return pb_utils.InferenceResponse(
            output_tensors=[
                pb_utils.Tensor(name, array) for name, array in outputs.items() if name in request.requested
            ]
        )


def _decodes(request: RowsRequest) -> bool:
    """Whether it asks for anything that needs decoding."""
    return not request.requested.isdisjoint(_DECODED_OUTPUTS)
