"""``local:``, the model in this very process: the same ONNX file, the same preprocessing, the same results."""

from __future__ import annotations

import asyncio
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from clip_client import _contract as contract
from clip_client._errors import ClipError, DeadlineExceeded, ModelNotReady, Unavailable
from clip_client._transport_types import Answer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from preprocess_ensemble.decode import DecodeError

MODEL_VARIABLE: Final = "CLIP_MODEL"
"""Environment variable that names the model repository of ``local:``."""
DEFAULT_REPOSITORY: Final = "triton_models"

_MAX_BATCH_SIZE: Final = 32
"""As in ``clip_image``: more rows at once make ONNX Runtime no faster, only larger."""


class LocalTransport:
    """Decodes on threads and runs ONNX Runtime where otherwise a server would.

    Nothing is loaded before the first call. The limits on images are :class:`DecodeLimits`' defaults, which are those
    of the tracked ``config.pbtxt``.
    """

    def __init__(self, repository: str | os.PathLike[str] | None = None) -> None:
        self.repository = Path(repository or os.environ.get(MODEL_VARIABLE) or DEFAULT_REPOSITORY)
        # One image a thread; ONNX Runtime has threads of its own, which wait while these work.
        self._decoders = ThreadPoolExecutor(os.cpu_count(), thread_name_prefix="clip decode")
        # One batch at a time: a second one would fight for the same cores.
        self._runner = ThreadPoolExecutor(1, thread_name_prefix="clip encode")
        self._loaded: tuple[Any, str] | None = None

    async def infer(self, images: Sequence[bytes], *, request_id: str, timeout_s: float) -> Answer:
        """Embed encoded images; see :class:`Transport`."""
        return await self._in_thread(lambda: self._infer(images), timeout_s, request_id)

    async def passport(self, *, request_id: str, timeout_s: float) -> str:
        """The text of ``model.json``."""
        return await self._in_thread(lambda: self._load()[1], timeout_s, request_id)

    async def max_batch_size(self, *, timeout_s: float) -> int:
        """Rows to a batch."""
        return _MAX_BATCH_SIZE

    async def server_live(self, *, timeout_s: float) -> bool:
        """There is no server that could be dead."""
        return True

    async def models_ready(self, *, timeout_s: float) -> None:
        """Load the model, or raise ModelNotReady."""
        await self._in_thread(self._load, timeout_s, None)

    async def close(self) -> None:
        """Let the threads end; a batch that is under way ends first, for it cannot be broken off."""
        self._runner.shutdown(wait=False, cancel_futures=True)
        self._decoders.shutdown(wait=False, cancel_futures=True)

    async def _in_thread(self, work: Any, timeout_s: float, request_id: str | None) -> Any:
        try:
            future = asyncio.get_running_loop().run_in_executor(self._runner, work)
        except RuntimeError:
            raise Unavailable("The client was closed.", request_id=request_id) from None
        try:
            return await asyncio.wait_for(future, timeout_s)
        except asyncio.TimeoutError:
            raise DeadlineExceeded("This machine did not embed the images in time.", request_id=request_id) from None

    def _load(self) -> tuple[Any, str]:
        if self._loaded is None:
            self._loaded = _open_model(self.repository)
        return self._loaded

    def _infer(self, images: Sequence[bytes]) -> Answer:
        from clip_client._model import ModelInfo
        from preprocess_ensemble.transform import PreprocessConfig

        session, passport = self._load()
        model = ModelInfo.from_json(passport, max_batch_size=_MAX_BATCH_SIZE)
        config = PreprocessConfig.from_mapping(model.preprocess)
        pixels = np.zeros((len(images), *config.size, 3), np.uint8)  # (N, H, W, 3)
        failures = list(self._decoders.map(lambda row: _decode_row(images[row], config, pixels[row]), range(len(images))))
        statuses = np.array([0 if failure is None else failure.status for failure in failures], np.int32)
        vectors, fingerprints = session.run(
            [contract.EMBEDDING, contract.FINGERPRINT], {contract.PIXELS: pixels, contract.STATUS: statuses[:, None]}
        )
        return Answer(
            vectors=vectors,
            statuses=statuses,
            errors=tuple("" if failure is None else failure.message for failure in failures),
            fingerprints=fingerprints,
        )


def _decode_row(image: bytes, config: Any, row: NDArray[np.uint8]) -> DecodeError | None:
    """Fill one row of pixels, or return why it stays black."""
    from preprocess_ensemble.decode import DecodeError, decode
    from preprocess_ensemble.transform import preprocess

    try:
        row[:] = preprocess(decode(image, at_least=config.decode_at_least), config)
    except DecodeError as error:
        return error
    return None


def _open_model(repository: Path) -> tuple[Any, str]:
    directory = repository / contract.ENCODER / "1"
    try:
        import onnxruntime
    except ModuleNotFoundError:
        raise ClipError('local: needs onnxruntime: pip install "clip-triton[local]"') from None
    try:
        passport = (directory / "model.json").read_text()
    except OSError:
        raise ModelNotReady(
            f"There is no exported model in {repository}: run `clip-export --repository {repository}`, or name another "
            f"repository by local:DIR or {MODEL_VARIABLE}."
        ) from None
    try:
        session = onnxruntime.InferenceSession(
            str(directory / "model.onnx"), providers=onnxruntime.get_available_providers()
        )
    except Exception as error:
        # ONNX Runtime has no public root of its errors.
        raise ModelNotReady(f"{directory / 'model.onnx'} cannot be loaded ({type(error).__name__}); export it again.") from error
    return session, passport
