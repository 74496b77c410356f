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
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import triton_python_backend_utils as pb_utils

from preprocess_ensemble.backends.preprocess.metrics import PreprocessMetrics
from preprocess_ensemble.backends.preprocess.settings import PreprocessSettings
from preprocess_ensemble.backends.shared_memory import restrict_own_regions
from preprocess_ensemble.contract import ERROR, IMAGE, PASSPORT, PIXELS, STATUS
from preprocess_ensemble.imaging import turbojpeg_decoder
from preprocess_ensemble.imaging.formats import limit_decoder_threads
from preprocess_ensemble.imaging.preprocessor import Preprocessed, Preprocessor
from preprocess_ensemble.imaging.transform import PreprocessConfig
from preprocess_ensemble.model_repository.passport import Passport, PassportError

if TYPE_CHECKING:
    import numpy.typing as npt

_DECODED_OUTPUTS: Final = frozenset({PIXELS, STATUS, ERROR})


class _Request(NamedTuple):
    """What one request asks for; a malformed one asks for nothing."""

    id: str
    """The client's own, which its error messages repeat."""
    requested: frozenset[str] = frozenset()
    files: Sequence[bytes] = ()
    problem: str = ""
    """What is wrong with a malformed request, in one sentence for the client."""

    @property
    def decodes(self) -> bool:
        """Whether it asks for anything that needs decoding."""
        return not self.requested.isdisjoint(_DECODED_OUTPUTS)


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
            self._passport_text = _read_passport(Path(args["model_repository"]) / settings.passport)
            preprocess = PreprocessConfig.from_mapping(Passport.from_json(self._passport_text).preprocess)
            _check_dims(config, preprocess)
        except ValueError as error:
            raise pb_utils.TritonModelException(f"{name}: {error}") from None
        self._metrics: PreprocessMetrics | None = None
        try:
            self._metrics = PreprocessMetrics(pb_utils.MetricFamily)
        except pb_utils.TritonModelException as error:
            pb_utils.Logger.log_warn(f"{name}: running without its own metrics, because Triton refused them: {error}")
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
        parsed = [_parse(request) for request in requests]
        decoded = [request.files if request.decodes else () for request in parsed]
        pixels, rows = self._preprocessor.run(decoded)
        outcomes, responses = [], []
        end = 0
        for request, files in zip(parsed, decoded, strict=True):
            start, end = end, end + len(files)
            outcomes.append(rows[start:end])
            responses.append(self._respond(request, rows[start:end], pixels[start:end]))
        if self._metrics is not None:
            self._metrics.add(images for request, images in zip(parsed, outcomes, strict=True) if request.decodes)
        return responses

    def finalize(self) -> None:
        """Stop the threads."""
        self._preprocessor.close()
        if self._metrics is not None:
            self._metrics.close()

    def _respond(self, request: _Request, rows: Sequence[Preprocessed], pixels: npt.NDArray[np.uint8]) -> Any:
        if request.problem:
            error = pb_utils.TritonError(request.problem, pb_utils.TritonError.INVALID_ARG)
            return pb_utils.InferenceResponse(error=error)
        outputs: dict[str, npt.NDArray[Any]] = {}
        if request.decodes:
            for number, row in enumerate(rows):
                if row.log:
                    pb_utils.Logger.log_error(
                        f"Image {number} of request {request.id} failed with an internal error.\n{row.log}"
                    )
            outputs = {
                PIXELS: pixels,
                STATUS: np.array([[row.status] for row in rows], dtype=np.int32),
                ERROR: _text_column([row.message for row in rows]),
            }
        if PASSPORT in request.requested:
            outputs[PASSPORT] = _text_column([self._passport_text] * len(request.files))
        return pb_utils.InferenceResponse(
            output_tensors=[
                pb_utils.Tensor(name, array) for name, array in outputs.items() if name in request.requested
            ]
        )


def _parse(request: Any) -> _Request:
    tensor = pb_utils.get_input_tensor_by_name(request, IMAGE)
    if tensor is None:
        problem = f"The request lacks the input {IMAGE}: a BYTES tensor of shape [N, 1], one image file per row."
        return _Request(request.request_id(), problem=problem)
    files: npt.NDArray[np.object_] = tensor.as_numpy()
    if files.dtype != np.object_ or files.ndim != 2 or files.shape[1] != 1:
        problem = (
            f"The input {IMAGE} has shape {list(files.shape)} and type {files.dtype}; "
            "it must be a BYTES tensor of shape [N, 1], one image file per row."
        )
        return _Request(request.request_id(), problem=problem)
    return _Request(request.request_id(), frozenset(request.requested_output_names()), files[:, 0].tolist())


def _text_column(texts: Sequence[str]) -> npt.NDArray[np.object_]:
    column = np.empty((len(texts), 1), dtype=np.object_)
    column[:, 0] = [text.encode() for text in texts]
    return column


def _read_passport(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii")
    except FileNotFoundError:
        raise PassportError(
            "the model's passport, model.json, is missing; run clip-export with this repository to make the model"
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise PassportError(f"the model's passport, model.json, cannot be read ({type(error).__name__})") from None


def _check_dims(config: Mapping[str, Any], preprocess_config: PreprocessConfig) -> None:
    expected = [*preprocess_config.size, 3]
    for output in config["output"]:
        dims = [int(side) for side in output["dims"]]
        if output["name"] == PIXELS and dims != expected:
            raise ValueError(
                f"config.pbtxt says dims {dims} for the output {PIXELS} and the exported model needs {expected}; "
                "run clip-export with this repository again to update it"
            )
