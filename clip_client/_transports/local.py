"""``local:``, the model in this process, with the same ONNX file, preprocessing and vectors as a server."""

from __future__ import annotations

import asyncio
import importlib
import logging
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from clip_client._endpoint import no_model
from clip_client._errors import ClipError, DeadlineExceeded, ModelNotReady, ProtocolMismatch, Unavailable
from clip_client._model import ModelInfo, Tower
from clip_client._transports.base import Answer, Transport
from preprocess_ensemble import contract
from preprocess_ensemble.errors import Outcome, ReportedError, pip_install
from preprocess_ensemble.model_repository.location import default_repository

if TYPE_CHECKING:
    from preprocess_ensemble.contract import Precision
    from preprocess_ensemble.imaging.preprocessor import Preprocessor
    from preprocess_ensemble.model_repository.passport import Passport
    from preprocess_ensemble.runtimes.model import OpenModel, Session
    from preprocess_ensemble.text.tokenizer import Tokenizer

_MAX_BATCH_SIZE: Final = 32  # that of ``clip_image``: larger batches use more memory without being faster
_logger = logging.getLogger("clip_client")

T = TypeVar("T")


class _ImageTower(NamedTuple):
    runtime: OpenModel
    passport: Passport
    preprocessor: Preprocessor


class _TextTower(NamedTuple):
    runtime: OpenModel
    tokenizer: Tokenizer


class LocalTransport(Transport):
    """Decodes images in threads and runs the model, in place of a server.

    The first call loads the model, and the first text the text tower. Images are decoded by the code of
    ``clip_preprocess`` with its default settings. ``threads`` is the number for decoding and for the model; None means
    one for each core that the process may use, or, for the model on a hybrid processor, for each performance core. If
    ``compute_precision`` is None, the environment names the precision, else it is ``"auto"``. A call that is cancelled
    or out of time returns at once; its batch runs to its end.
    """

    def __init__(
        self,
        repository: str | os.PathLike[str] | None = None,
        *,
        names: contract.ModelNames = contract.DEFAULT_NAMES,
        threads: int | None = None,
        compute_precision: Precision | None = None,
    ) -> None:
        self.repository = default_repository() if repository is None else Path(repository)
        self._names = names
        self._threads = threads
        self._compute_precision = compute_precision
        # Run one batch at a time, because a second batch would compete for the same cores.
        self._runner = ThreadPoolExecutor(1, thread_name_prefix="clip encode")

    async def infer(
        self, items: Sequence[bytes], *, tower: Tower = Tower.IMAGE, request_id: str, timeout_s: float
    ) -> Answer:
        embed = self._embed_images if tower is Tower.IMAGE else self._embed_texts
        return await self._in_thread(partial(embed, items), timeout_s, request_id)

    async def model(self, *, timeout_s: float) -> ModelInfo:
        tower = await self._in_thread(lambda: self._image_tower, timeout_s, None)
        return ModelInfo.of(tower.passport, max_batch_size=_MAX_BATCH_SIZE, runtime=str(tower.runtime))

    async def server_live(self, *, timeout_s: float) -> bool:
        return True

    async def models_ready(self, *, timeout_s: float) -> None:
        await self._in_thread(lambda: self._image_tower, timeout_s, None)

    async def close(self) -> None:
        """Refuse further calls. A running batch cannot be cancelled; its thread ends after it."""
        self._runner.shutdown(wait=False, cancel_futures=True)
        if "_image_tower" in vars(self):  # it was loaded
            self._image_tower.preprocessor.close(wait=False)

    async def _in_thread(self, work: Callable[[], T], timeout_s: float, request_id: str | None) -> T:
        try:
            future = asyncio.get_running_loop().run_in_executor(self._runner, work)
        except RuntimeError:
            raise Unavailable("This client is closed.", request_id=request_id) from None
        try:
            # On Python 3.11, ``asyncio.wait_for`` would drop a cancellation that comes with the answer.
            async with asyncio.timeout(timeout_s):
                return await future
        except TimeoutError:
            raise DeadlineExceeded("This machine did not answer in time.", request_id=request_id) from None
        except ClipError:
            raise
        except Exception as error:
            # Catch everything: ONNX Runtime's exceptions share no public base class, and closing the client during a
            # batch ends its decoders.
            raise ClipError(
                f"The model failed in this process ({type(error).__name__}).", request_id=request_id
            ) from error

    @cached_property
    def _image_tower(self) -> _ImageTower:
        from preprocess_ensemble.imaging.preprocessor import Preprocessor
        from preprocess_ensemble.imaging.transform import PreprocessConfig
        from preprocess_ensemble.model_repository.passport import Passport

        file = self.repository / self._names.encoder / "1" / "model.json"
        try:
            passport = Passport.from_json(file.read_bytes())
            preprocess = PreprocessConfig.from_mapping(passport.preprocess)
        except OSError:
            raise no_model(self.repository, self._names.name) from None
        except ValueError as error:
            raise ProtocolMismatch(f"{file} does not describe a model ({error}); export the model again.") from None
        _need("onnxruntime")  # after the look for the model: without one, this package would not help
        runtime = self._select(file.with_name("model.onnx"), passport)
        return _ImageTower(runtime, passport, Preprocessor(preprocess, threads=self._threads))

    @cached_property
    def _text_tower(self) -> _TextTower:
        """The text tower. Its passport exists, because texts are refused before they get here without it."""
        passport = self._image_tower.passport
        assert passport.text is not None
        _need("tokenizers", "ftfy")
        from preprocess_ensemble.text.tokenizer import Tokenizer, TokenizerConfig, TokenizerError

        folder = self.repository / self._names.tokenize / "1"
        try:
            config = TokenizerConfig.from_mapping(passport.text.tokenizer)
            tokenizer = Tokenizer.load(folder, config, passport.text.tokenizer_sha256)
        except TokenizerError as error:
            raise ModelNotReady(str(error)) from None
        file = self.repository / self._names.text_encoder / "1" / "model.onnx"
        return _TextTower(self._select(file, passport, folder), tokenizer)

    def _select(self, file: Path, passport: Passport, tokenizer: Path | None = None) -> OpenModel:
        """Open the image tower, or with ``tokenizer`` the text tower; select and log its runtime. Raises ClipError."""
        import onnxruntime

        from preprocess_ensemble.runtimes import onnx_session as ort
        from preprocess_ensemble.runtimes.model import RuntimeUnusable, precision_of_environment
        from preprocess_ensemble.runtimes.openvino_model import open_openvino
        from preprocess_ensemble.runtimes.selection import select

        options = ort.session_options(self._threads, weights_dtype=passport.weights_dtype)
        # Use the providers of Triton's C++ backend, except TensorRT, which takes minutes to build an engine.
        available = onnxruntime.get_available_providers()
        ort.load_gpu_libraries(available)
        try:
            compute_precision = self._compute_precision or precision_of_environment() or "auto"
            # ONNX Runtime's default on CUDA is TF32, which rounds the inputs of products to ten bits.
            cuda = (ort.CUDA, {"use_tf32": "0"} if compute_precision == "fp32" else {})
            providers = [provider for provider in (cuda, (ort.CPU, {})) if provider[0] in available]
            try:
                session = ort.open_session(file, options, providers)
            except RuntimeUnusable as error:
                raise ModelNotReady(f"{error}; export the model again.") from error
            openvino = partial(open_openvino, file, threads=options.intra_op_num_threads)
            model = ort.open_model(session, passport)
            selection = select(model, passport, compute_precision, openvino, tokenizer=tokenizer)
        except ClipError:
            raise
        except ReportedError as error:
            raise ClipError(f"The model in {self.repository} cannot run as asked: {error}") from None
        level = logging.WARNING if selection.disagrees else logging.INFO
        tower = "model" if tokenizer is None else "text tower"
        _logger.log(level, "The %s in %s runs on %s.", tower, self.repository, selection)
        return selection.model

    def _embed_images(self, images: Sequence[bytes]) -> Answer:
        tower = self._image_tower
        pixels, outcomes = tower.preprocessor.run([images])  # uint8 (N, H, W, 3)
        return _run(tower.runtime.session, contract.PIXELS, pixels, outcomes)

    def _embed_texts(self, texts: Sequence[bytes]) -> Answer:
        from preprocess_ensemble.text.text_input import tokenize_rows

        tower = self._text_tower
        tokens, outcomes = tokenize_rows(tower.tokenizer, texts)
        answer = _run(tower.runtime.session, contract.TOKENS, tokens, outcomes)
        return answer._replace(truncated=[outcome.truncated for outcome in outcomes])


def _need(*packages: str) -> None:
    for package in packages:
        try:
            importlib.import_module(package)
        except ImportError as error:
            raise ClipError(
                f"Embedding in this process needs {package} ({error}): {pip_install('local')}, or start a "
                "server with clip-serve."
            ) from None


def _run(session: Session, tensor: str, inputs: NDArray[Any], outcomes: Sequence[Outcome]) -> Answer:
    """Run a tower's model on the rows of ``inputs``; ``outcomes`` says which rows have already failed."""
    for outcome in outcomes:
        if outcome.log:
            _logger.error("An internal error while an item was prepared.\n%s", outcome.log)
    statuses = [int(outcome.status) for outcome in outcomes]
    vectors, fingerprints = session.run(
        [contract.EMBEDDING, contract.FINGERPRINT],
        {tensor: inputs, contract.STATUS: np.array(statuses, np.int32)[:, None]},
    )
    return Answer(
        vectors=vectors,
        statuses=statuses,
        errors=[outcome.message for outcome in outcomes],
        fingerprints=[tuple(row) for row in fingerprints.tolist()],
        truncated=[False] * len(outcomes),
    )
