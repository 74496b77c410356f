"""What the client knows about the model that a server serves: the part of its passport that concerns a client."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from clip_client._errors import ProtocolMismatch
from preprocess_ensemble.contract import CONTRACT_VERSION

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from preprocess_ensemble.model_repository.passport import Passport


@dataclass(frozen=True, kw_only=True, slots=True, eq=False, repr=False)
class ModelInfo:
    """The model behind a server. Two servers serve the same model if their ``fingerprint`` is equal."""

    id: str
    """``"ViT-B-32/laion2b_s34b_b79k@1a2b3c4d"``: architecture, weights, and the start of the weights' SHA-256."""
    model: str
    """Name of the architecture in open_clip."""
    pretrained: str
    """The tag of the weights; ``random:SEED`` if they were never trained."""
    preprocess_id: str
    """``"shortest-bicubic-224x224"``: how a picture becomes pixels."""
    preprocess: Mapping[str, Any]
    """All of its settings, in the form that ``PreprocessConfig.from_mapping`` takes."""
    dimension: int
    """Length of a vector."""
    precision: str
    """Of the exported weights: ``"fp32"``, ``"fp16"`` or ``"int8"``. ``runtime`` may compute in another."""
    fingerprint: tuple[int, int]
    """Returned with every vector, so that the client notices a vector of another model."""
    max_batch_size: int
    """Images that one request may carry."""
    canary_image: bytes
    """The canary image: a small encoded image that was exported with the model ..."""
    canary_vector: NDArray[np.float32]
    """... and the vector (D,) that the server must make of it."""
    transfer: str = "original"
    """How this client's images are sent, such as ``thumb-jpeg-q90-444``; the canary image is always sent unchanged."""

    runtime: str = ""
    """What runs the model, and in which precision, if it is in this process: ``"OpenVINO 2026.4.1, bf16"``. Empty for a
    server, whose log says it."""

    def __repr__(self) -> str:
        about = f"dimension={self.dimension}, precision={self.precision!r}, vector_id={self.vector_id!r}"
        return f"ModelInfo({self.id!r}, {about})"

    @property
    def is_random(self) -> bool:
        """True if the weights were never trained: such vectors only tell copies from other images."""
        return self.pretrained.startswith("random")

    @property
    def vector_id(self) -> str:
        """Model, preprocessing and transfer in one text; never compare vectors of different ids."""
        return f"{self.id}|{self.preprocess_id}|{self.transfer}"

    @classmethod
    def from_json(cls, text: str | bytes, *, max_batch_size: int) -> ModelInfo:
        """Read a passport (``model.json``) that a server has sent.

        Raises ProtocolMismatch if the text is not a complete passport, or was written for another contract version.
        """
        # Here and not above: importing this package must stay quick.
        from preprocess_ensemble.model_repository.passport import ContractMismatch, Passport, PassportError

        try:
            return cls.of(Passport.from_json(text), max_batch_size=max_batch_size)
        except ContractMismatch as error:
            raise ProtocolMismatch(
                f"The server speaks contract {error.found!r} and this client speaks {CONTRACT_VERSION}; "
                "install the same version of clip-triton on both sides."
            ) from None
        except PassportError as error:
            raise ProtocolMismatch(f"The server sent an invalid passport. {error}") from None

    @classmethod
    def of(cls, passport: Passport, *, max_batch_size: int, runtime: str = "") -> ModelInfo:
        """Make one from a passport; the other arguments are its fields."""
        canary_vector = np.asarray(passport.canary.vector, dtype=np.float32)
        canary_vector.setflags(write=False)
        return cls(
            id=passport.id,
            model=passport.model,
            pretrained=passport.pretrained,
            preprocess_id=passport.preprocess_id,
            preprocess=passport.preprocess,
            dimension=passport.dimension,
            precision=passport.precision,
            fingerprint=passport.fingerprint,
            max_batch_size=max_batch_size,
            canary_image=passport.canary.image,
            canary_vector=canary_vector,
            runtime=runtime,
        )
