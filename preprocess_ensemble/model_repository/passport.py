"""``model.json``: what an exported model is, who measured it, and how to recognise its vectors."""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from preprocess_ensemble.contract import CONTRACT_VERSION

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ("Canary", "Gate", "Passport", "PassportError", "fingerprint")

_GRAPH: Final = 1
"""Raise it when the exported graph computes something else from the same weights: the fingerprint then changes."""


class PassportError(ValueError):
    """The text is no passport, or one of another contract; the message is one sentence with the remedy."""


@dataclass(frozen=True, kw_only=True)
class Gate:
    """What the check after the export measured against PyTorch fp32."""

    images: int
    min_cosine: float
    """The lowest cosine of any image's two vectors."""
    required: float


@dataclass(frozen=True, kw_only=True)
class Canary:
    """A picture and its vector, by which anyone can tell that a server still computes what was exported."""

    image: bytes
    """An encoded image file."""
    vector: tuple[float, ...]
    """Its embedding: D numbers, each exact to float32, of unit length together."""


@dataclass(frozen=True, kw_only=True)
class Passport:
    """The identity of one exported model; it lies beside ``model.onnx`` and travels to clients as text."""

    model: str
    """open_clip's name of the architecture."""
    pretrained: str
    """open_clip's tag, ``file:NAME`` for a checkpoint, or ``random:SEED``."""
    weights_sha256: str
    """SHA-256 over the sorted fp32 state dict: name, shape and bytes of each tensor."""
    preprocess: Mapping[str, Any]
    """size (height, width), interpolation, resize_mode, fill_color, mean and std."""
    preprocess_id: str
    dimension: int
    precision: str
    fingerprint: tuple[int, int]
    """Two int32 numbers; the graph gives them back with every embedding."""
    gate: Gate
    canary: Canary
    opset: int
    ir_version: int
    contract: int = CONTRACT_VERSION

    @property
    def id(self) -> str:
        """The model's part of a vector's id, such as ``ViT-B-32/laion2b_s34b_b79k@1a2b3c4d``."""
        suffix = "" if self.precision == "fp32" else f"+{self.precision}"
        return f"{self.model}/{self.pretrained}@{self.weights_sha256[:8]}{suffix}"

    def to_json(self) -> str:
        """Return the passport as one JSON object in ASCII, ended by a newline."""
        document = {
            "contract": self.contract,
            "id": self.id,
            "model": self.model,
            "pretrained": self.pretrained,
            "weights_sha256": self.weights_sha256,
            "preprocess": dict(self.preprocess),
            "preprocess_id": self.preprocess_id,
            "dimension": self.dimension,
            "precision": self.precision,
            "fingerprint": self.fingerprint,
            "gate": {"images": self.gate.images, "min_cosine": self.gate.min_cosine, "required": self.gate.required},
            "canary": {"image": base64.b64encode(self.canary.image).decode("ascii"), "vector": self.canary.vector},
            "onnx": {"opset": self.opset, "ir": self.ir_version},
        }
        return json.dumps(document, allow_nan=False) + "\n"

    @classmethod
    def from_json(cls, text: str | bytes) -> Passport:
        """Read what :meth:`to_json` wrote; raises PassportError."""
        try:
            document = json.loads(text)
            contract = document["contract"]
        except (ValueError, TypeError, KeyError):
            raise PassportError("The file is not a model's passport; export the model again.") from None
        if contract != CONTRACT_VERSION:
            raise PassportError(
                f"The model was exported for contract {contract!r} and this package keeps {CONTRACT_VERSION}; "
                "export the model again."
            )
        try:
            return cls._from_document(document)
        except (KeyError, TypeError, ValueError, binascii.Error) as error:
            raise PassportError(
                f"The model's passport is incomplete ({type(error).__name__}: {error}); export the model again."
            ) from None

    @classmethod
    def _from_document(cls, document: Mapping[str, Any]) -> Passport:
        first, second = document["fingerprint"]
        gate, canary, onnx = document["gate"], document["canary"], document["onnx"]
        passport = cls(
            model=str(document["model"]),
            pretrained=str(document["pretrained"]),
            weights_sha256=str(document["weights_sha256"]),
            preprocess=dict(document["preprocess"]),
            preprocess_id=str(document["preprocess_id"]),
            dimension=int(document["dimension"]),
            precision=str(document["precision"]),
            fingerprint=(int(first), int(second)),
            gate=Gate(
                images=int(gate["images"]), min_cosine=float(gate["min_cosine"]), required=float(gate["required"])
            ),
            canary=Canary(
                image=base64.b64decode(canary["image"], validate=True),
                vector=tuple(float(number) for number in canary["vector"]),
            ),
            opset=int(onnx["opset"]),
            ir_version=int(onnx["ir"]),
        )
        if len(passport.canary.vector) != passport.dimension:
            raise ValueError(f"the canary has {len(passport.canary.vector)} numbers, not {passport.dimension}")
        return passport


def fingerprint(*, model: str, weights_sha256: str, preprocess: Mapping[str, Any], precision: str) -> tuple[int, int]:
    """Return two int32 numbers that follow from all that decides a vector, and from nothing else.

    The pretrained tag is not part of it: the same weights from a tag and from a file give the same vectors.
    """
    identity = json.dumps(
        [CONTRACT_VERSION, _GRAPH, model, weights_sha256, dict(preprocess), precision], sort_keys=True
    )
    digest = hashlib.sha256(identity.encode("ascii")).digest()
    return int.from_bytes(digest[:4], "little", signed=True), int.from_bytes(digest[4:8], "little", signed=True)
