"""The Triton model ``clip_preprocess``: rows of encoded image files in, rows of ready pixels out.

===========  ==================  =======================================================================
in           shape and type
===========  ==================  =======================================================================
``image``    (N, 1) BYTES        one encoded image file each
===========  ==================  =======================================================================

===========  ==================  =======================================================================
out          shape and type
===========  ==================  =======================================================================
``pixels``   (N, H, W, 3) UINT8  RGB; all zero where the image failed
``status``   (N, 1) INT32        the number of an :class:`~preprocess_ensemble.imaging.decode.ImageStatus`
``error``    (N, 1) BYTES        empty, or one sentence for people
``model``    (N, 1) BYTES        the passport, the same in each row; made only when it is asked for
===========  ==================  =======================================================================

An image that fails never fails its request, and a request that is malformed never fails its neighbours.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import triton_python_backend_utils as pb_utils
from PIL import AvifImagePlugin

from preprocess_ensemble.backends.preprocess.metrics import BatchCounts, PreprocessMetrics
from preprocess_ensemble.backends.shared_memory import close_own_regions
from preprocess_ensemble.imaging import turbojpeg_decoder
from preprocess_ensemble.imaging.decode import DecodeLimits
from preprocess_ensemble.imaging.preprocessor import Preprocessed, Preprocessor
from preprocess_ensemble.imaging.time_budget import MAX_DECODE_S
from preprocess_ensemble.imaging.transform import PreprocessConfig
from preprocess_ensemble.imaging.worker_pool import usable_cores
from preprocess_ensemble.model_repository.passport import Passport, PassportError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import numpy.typing as npt

__all__ = ("TritonPythonModel",)

_DECODED_OUTPUTS: Final = frozenset({"pixels", "status", "error"})


class _BadRequest(ValueError):
    """The request, not an image in it, is malformed; the message goes to the client."""


@dataclass(frozen=True, kw_only=True)
class _Settings:
    """What config.pbtxt sets in its ``parameters``."""

    passport: str
    """Path of model.json, relative to the model's folder."""
    decode_threads: int
    fast_decode: bool
    """Decode large JPEG files smaller than they are, as far as the model's input allows."""
    max_decode_s: float
    """Processor time that the images of one request may take together."""
    limits: DecodeLimits

    @classmethod
    def from_parameters(cls, parameters: Mapping[str, str], instances: int) -> _Settings:
        """Read the parameters of a model of so many instances.

        Raises ``ValueError`` that names the parameter, its value and what it may be.
        """
        # Names in capitals are Triton's own, such as EXECUTION_ENV_PATH.
        unknown = sorted(name for name in parameters if name not in _PARAMETERS and not name.isupper())
        if unknown:
            raise ValueError(f"unknown parameters {unknown}; the known ones are {sorted(_PARAMETERS)}")
        values: dict[str, Any] = {}
        for name in parameters.keys() & _PARAMETERS.keys():
            field, read = _PARAMETERS[name]
            try:
                values[field] = read(parameters[name])
            except (ValueError, OverflowError):
                raise ValueError(f"parameter {name} cannot be {parameters[name]!r}") from None
        if "passport" not in values:
            raise ValueError('parameter passport is missing; it should be "../clip_encoder/1/model.json"')
        return cls(
            passport=values.pop("passport"),
            decode_threads=values.pop("decode_threads", 0) or math.ceil(usable_cores() / instances),
            fast_decode=values.pop("fast_decode", True),
            max_decode_s=values.pop("max_decode_s", MAX_DECODE_S),
            limits=DecodeLimits(**values),
        )


def _read_threads(text: str) -> int:
    threads = int(text)
    if not 0 <= threads <= 1024:
        raise ValueError(text)
    return threads


def _read_seconds(text: str) -> float:
    seconds = float(text)
    if not 0 < seconds < math.inf:
        raise ValueError(text)
    return seconds


def _read_switch(text: str) -> bool:
    switch = {"true": True, "1": True, "false": False, "0": False}.get(text.lower())
    if switch is None:
        raise ValueError(text)
    return switch


def _read_pixels(text: str) -> int:
    return round(float(text) * 1_000_000)


_PARAMETERS: Final[dict[str, tuple[str, Callable[[str], Any]]]] = {
    "passport": ("passport", str),
    "decode_threads": ("decode_threads", _read_threads),
    "fast_decode": ("fast_decode", _read_switch),
    "max_decode_seconds": ("max_decode_s", _read_seconds),
    "max_image_bytes": ("max_bytes", int),
    "max_megapixels": ("max_pixels", _read_pixels),
    "max_side_ratio": ("max_side_ratio", float),
    "max_frames": ("max_frames", int),
    "max_metadata_bytes": ("max_metadata_bytes", int),
    "allow_truncated": ("allow_truncated", _read_switch),
}
"""Name in config.pbtxt -> field of the settings or of DecodeLimits, and how to read its text."""


class _Work(NamedTuple):
    """One request."""

    id: str
    """As the client named it; what it is told of a failure has the same."""
    requested: frozenset[str]
    files: Sequence[bytes]
    """N of them."""

    @property
    def decodes(self) -> bool:
        """Whether anything decoded was asked for."""
        return not self.requested.isdisjoint(_DECODED_OUTPUTS)


class TritonPythonModel:
    """Called by Triton's Python backend: ``initialize`` once, ``execute`` for each batch of requests, ``finalize``."""

    def initialize(self, args: Mapping[str, str]) -> None:
        """Read the settings and the passport; a failure is one sentence in Triton's log and in the load's error."""
        close_own_regions()
        config = json.loads(args["model_config"])
        name = config["name"]
        try:
            settings = _Settings.from_parameters(
                {key: value["string_value"] for key, value in config.get("parameters", {}).items()},
                instances=max(1, sum(group.get("count", 1) for group in config.get("instance_group", []))),
            )
            self._passport_text = _read_passport(Path(args["model_repository"]) / settings.passport)
            preprocess = PreprocessConfig.from_mapping(Passport.from_json(self._passport_text).preprocess)
            _check_dims(config, preprocess)
        except ValueError as error:
            raise pb_utils.TritonModelException(f"{name}: {error}") from None
        self._metrics = _make_metrics(name)
        # Rows are what is spread over the cores; a decoder with threads of its own would only get in the way.
        AvifImagePlugin.DEFAULT_MAX_THREADS = 1
        at_least = preprocess.decode_at_least if settings.fast_decode else None
        pb_utils.Logger.log_info(
            f"{name}: {settings.decode_threads} decode threads; large JPEG files are decoded "
            + (f"at reduced size, to {' x '.join(map(str, at_least))} or more" if at_least else "in full")
            + f", by {turbojpeg_decoder.library() or 'Pillow, because PyTurboJPEG or libturbojpeg is not installed'}."
        )
        self._preprocessor = Preprocessor(
            preprocess,
            threads=settings.decode_threads,
            fast_decode=settings.fast_decode,
            limits=settings.limits,
            max_decode_s=settings.max_decode_s,
        )

    def execute(self, requests: Sequence[Any]) -> list[Any]:
        """Answer each request, in order; the rows of all of them share the threads."""
        counts = BatchCounts()
        begun = [self._begin(request) for request in requests]
        pixels, rows = self._preprocessor.run(
            [work.files for work in begun if isinstance(work, _Work) and work.decodes]
        )
        responses = []
        end = 0
        for work in begun:
            start = end
            end += len(work.files) if isinstance(work, _Work) and work.decodes else 0
            responses.append(self._finish(work, rows[start:end], pixels[start:end], counts))
        if self._metrics is not None:
            self._metrics.add(counts)
        return responses

    def finalize(self) -> None:
        """Stop the threads."""
        self._preprocessor.close()
        if self._metrics is not None:
            self._metrics.close()

    def _begin(self, request: Any) -> _Work | _BadRequest:
        try:
            files = _image_files(request)
        except _BadRequest as error:
            return error
        requested = frozenset(request.requested_output_names())
        return _Work(request.request_id(), requested, files)

    def _finish(
        self,
        work: _Work | _BadRequest,
        rows: Sequence[Preprocessed],
        pixels: npt.NDArray[np.uint8],
        counts: BatchCounts,
    ) -> Any:
        if isinstance(work, _BadRequest):
            return pb_utils.InferenceResponse(error=pb_utils.TritonError(str(work), pb_utils.TritonError.INVALID_ARG))
        outputs: dict[str, npt.NDArray[Any]] = {}
        if work.decodes:
            counts.request([(row.status, row.decode_path, row.decoder) for row in rows])
            for number, row in enumerate(rows):
                if row.log:
                    pb_utils.Logger.log_error(
                        f"Image {number} of request {work.id} failed with an internal error.\n{row.log}"
                    )
            outputs = {
                "pixels": pixels,
                "status": np.array([[row.status] for row in rows], dtype=np.int32),
                "error": _text_column([row.message for row in rows]),
            }
        if "model" in work.requested:
            outputs["model"] = _text_column([self._passport_text] * len(work.files))
        return pb_utils.InferenceResponse(
            output_tensors=[pb_utils.Tensor(name, array) for name, array in outputs.items() if name in work.requested]
        )


def _make_metrics(model: str) -> PreprocessMetrics | None:
    try:
        return PreprocessMetrics(pb_utils.MetricFamily)
    except pb_utils.TritonModelException as error:
        pb_utils.Logger.log_warn(f"{model}: no metrics of its own: {error}")
        return None


def _image_files(request: Any) -> list[bytes]:
    """The request's encoded files."""
    tensor = pb_utils.get_input_tensor_by_name(request, "image")
    if tensor is None:
        raise _BadRequest("The request lacks the input image: a BYTES tensor of shape [N, 1], one image file a row.")
    files: npt.NDArray[np.object_] = tensor.as_numpy()
    if files.dtype != np.object_ or files.ndim != 2 or files.shape[1] != 1:
        raise _BadRequest(
            f"The input image has shape {list(files.shape)} and type {files.dtype}; "
            "it must be a BYTES tensor of shape [N, 1], one image file a row."
        )
    column: list[bytes] = files[:, 0].tolist()
    return column


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
        if output["name"] == "pixels" and dims != expected:
            raise ValueError(
                f"config.pbtxt says dims {dims} for the output pixels and the exported model needs {expected}; "
                "run clip-export with this repository again to update it"
            )
