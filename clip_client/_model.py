"""The client's description of the model that a server serves: the part of the model's passport that a client needs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from clip_client._errors import ImageError, ItemError, ModelNotReady, ProtocolMismatch, TextError
from preprocess_ensemble.contract import CONTRACT_VERSION

if TYPE_CHECKING:
    from preprocess_ensemble.model_repository.passport import Passport, TextTower

_TEXT: Final = "text-"
"""Start of the last part of a text vector's id. The id of an image's vector never has it there."""


class Tower(Enum):
    """The two halves of a CLIP model, which embed into one space. The value is the word for one item."""

    IMAGE = "image"
    TEXT = "text"

    @property
    def error(self) -> type[ItemError]:
        return ImageError if self is Tower.IMAGE else TextError


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class TextInfo:
    """The text tower of a model."""

    id: str
    """Id of the way from a text to tokens, such as ``"text-clip-bpe/lower-77"``."""
    context_length: int
    """Tokens that the model reads; the rest of a longer text is left out."""
    fingerprint: tuple[int, int]
    """Returned with every vector of a text; differs from the fingerprint of the image tower."""
    canary: str
    """A text that was exported with the model."""
    canary_vector: NDArray[np.float32] = field(repr=False)
    """Vector (D,) that the server must make of ``canary``."""
    logit_scale: float
    """Factor of the cosine in a logit."""
    logit_bias: float | None
    """Added to the logit if the model was trained with a sigmoid for each pair; None for training with a softmax."""

    @classmethod
    def of(cls, tower: TextTower) -> TextInfo:
        """Read a passport. Raises KeyError if the tokenizer lacks a setting that the id needs."""
        tokenizer = tower.tokenizer
        length = int(tokenizer["context_length"])
        return cls(
            id=f"{_TEXT}{tokenizer['kind']}/{tokenizer['clean']}-{length}",
            context_length=length,
            fingerprint=tower.fingerprint,
            canary=tower.canary,
            canary_vector=_read_only(tower.canary_vector),
            logit_scale=tower.logit_scale,
            logit_bias=tower.logit_bias,
        )


@dataclass(frozen=True, kw_only=True, slots=True, eq=False, repr=False)
class ModelInfo:
    """The model behind a server. Two servers serve the same model if their ``fingerprint`` is equal."""

    id: str
    """``"ViT-B-32/laion2b_s34b_b79k@1a2b3c4d"``: architecture, weights, and the start of the weights' SHA-256."""
    model: str
    """Name of the architecture in open_clip."""
    pretrained: str
    """Tag of the weights; ``random:SEED`` if they were never trained."""
    preprocess_id: str
    """Id of the preprocessing, such as ``"shortest-bicubic-224x224"``."""
    preprocess: Mapping[str, Any]
    """Its settings, as ``PreprocessConfig.from_mapping`` takes them."""
    dimension: int
    weights_dtype: str
    """Precision of the exported weights: ``"fp32"``, ``"fp16"`` or ``"int8"``. ``runtime`` may compute in another."""
    fingerprint: tuple[int, int]
    """Returned with every vector, so that the client notices a vector of another model."""
    max_batch_size: int
    """Most images or texts in one request."""
    canary_image: bytes
    """A small encoded image that was exported with the model."""
    canary_vector: NDArray[np.float32]
    """Vector (D,) that the server must make of ``canary_image``."""
    transfer: str = "original"
    """Form in which this client sends images, such as ``thumb-jpeg-q90-444``; the canary image is sent unchanged."""
    runtime: str = ""
    """Engine and precision of a model in this process: ``"OpenVINO 2026.4.1, bf16"``. Empty for a server."""
    text: TextInfo | None = None
    """None if only the image tower was exported."""
    exported_at: int = 0
    """Time of the export, in seconds since 1970; 0 if the passport does not have it."""

    def __repr__(self) -> str:
        about = f"dimension={self.dimension}, weights_dtype={self.weights_dtype!r}, vector_id={self.vector_id!r}"
        return f"ModelInfo({self.id!r}, {about})"

    @property
    def is_random(self) -> bool:
        """True if the weights were never trained: such vectors can only separate copies from other images."""
        return self.pretrained.startswith("random")

    @property
    def vector_id(self) -> str:
        """Model, preprocessing and transfer in one text; :func:`may_be_compared` says which ids fit together."""
        return f"{self.id}|{self.preprocess_id}|{self.transfer}"

    @property
    def text_vector_id(self) -> str | None:
        """Id of the vectors of texts: model and tokenizer. None without a text tower."""
        return None if self.text is None else self.vector_id_of(Tower.TEXT)

    @property
    def text_tower(self) -> TextInfo:
        """``text``; raises ModelNotReady with the remedy if there is none."""
        if self.text is None:
            raise ModelNotReady(
                f"The model {self.id} has no text tower; export both with clip-export --towers image,text and the "
                "model's own --name, --model and --pretrained, and start the server again."
            )
        return self.text

    def check_tower(self, tower: Tower) -> None:
        """Raise ModelNotReady with the remedy if the model has no such tower."""
        self.fingerprint_of(tower)

    def fingerprint_of(self, tower: Tower) -> tuple[int, int]:
        """Return the fingerprint of this tower's vectors. Raises ModelNotReady if there is no such tower."""
        return self.fingerprint if tower is Tower.IMAGE else self.text_tower.fingerprint

    def vector_id_of(self, tower: Tower) -> str:
        """Return the id of this tower's vectors. Raises ModelNotReady if there is no such tower."""
        return self.vector_id if tower is Tower.IMAGE else f"{self.id}|{self.text_tower.id}"

    @classmethod
    def from_json(cls, text: str | bytes, *, max_batch_size: int) -> ModelInfo:
        """Read the passport of a server. Raises ProtocolMismatch if it is incomplete or of another contract version."""
        # This import stays here, because importing clip_client must be quick.
        from preprocess_ensemble.model_repository.passport import ContractMismatch, Passport, PassportError

        try:
            return cls.of(Passport.from_json(text), max_batch_size=max_batch_size)
        except ContractMismatch as error:
            raise ProtocolMismatch(
                f"The server speaks contract {error.found!r} and this client speaks {CONTRACT_VERSION}; "
                "install the same version of clip-triton on both sides."
            ) from None
        except (PassportError, KeyError) as error:
            raise ProtocolMismatch(f"The server sent an invalid description of its model. {error}") from None

    @classmethod
    def of(cls, passport: Passport, *, max_batch_size: int, runtime: str = "") -> ModelInfo:
        """Make a ModelInfo from a passport; the other arguments are fields of the ModelInfo."""
        return cls(
            id=passport.id,
            model=passport.model,
            pretrained=passport.pretrained,
            preprocess_id=passport.preprocess_id,
            preprocess=passport.preprocess,
            dimension=passport.dimension,
            weights_dtype=passport.weights_dtype,
            fingerprint=passport.fingerprint,
            max_batch_size=max_batch_size,
            canary_image=passport.canary.image,
            canary_vector=_read_only(passport.canary.vector),
            runtime=runtime,
            text=None if passport.text is None else TextInfo.of(passport.text),
            exported_at=passport.exported_at,
        )


def may_be_compared(first: str, second: str) -> bool:
    """Return whether vectors may be compared: their ids are equal, or of a text and an image of one model."""
    return first == second or (tower_of(first) is not tower_of(second) and _model_of(first) == _model_of(second))


def tower_of(vector_id: str) -> Tower:
    return Tower.TEXT if vector_id.rpartition("|")[2].startswith(_TEXT) else Tower.IMAGE


def _model_of(vector_id: str) -> str:
    # Split from the right, because the name of a file of weights may have a bar.
    return vector_id.rsplit("|", 1 if tower_of(vector_id) is Tower.TEXT else 2)[0]


def _read_only(vector: Sequence[float]) -> NDArray[np.float32]:
    array = np.asarray(vector, dtype=np.float32)
    array.setflags(write=False)
    return array
