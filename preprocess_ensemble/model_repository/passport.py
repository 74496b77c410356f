"""The passport of an exported model, the file ``model.json`` beside it. Only this module writes and reads it."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Final

from preprocess_ensemble.contract import CONTRACT_VERSION
from preprocess_ensemble.errors import ReportedError

_GRAPH_VERSION: Final = 1
_TEXT_GRAPH_VERSION: Final = 1
"""Raise these if an exported graph computes other vectors from the same weights: the fingerprint then changes."""
GRAPH_REVISION: Final = 2
"""Raise it if exported graphs compute the same vectors in another way: clip-export then replaces installed graphs."""


class PassportError(ReportedError, ValueError):
    """The text is not a complete passport."""


class ContractMismatch(PassportError):
    """The passport was written for another version of the wire contract."""

    def __init__(self, found: object) -> None:
        super().__init__(
            f"The model was exported for contract {found!r} and this package supports contract {CONTRACT_VERSION}; "
            "export the model again."
        )
        self.found = found


@dataclass(frozen=True, kw_only=True)
class Parity:
    images: int
    """Pictures or texts compared with PyTorch's vectors for these weights; 0 if only other weights were compared."""
    min_cosine: float  # lowest of all pictures or texts, between their two vectors
    required: float  # lowest ``min_cosine`` with which an export succeeds


def rounded(vector: Iterable[float]) -> tuple[float, ...]:
    """Return the numbers with nine digits each, enough to distinguish any two float32 numbers."""
    return tuple(float(f"{number:.9g}") for number in vector)


@dataclass(frozen=True, kw_only=True)
class Canary:
    image: bytes
    vector: tuple[float, ...]  # embedding of the image: D float32 numbers, :func:`rounded`, of length 1


@dataclass(frozen=True, kw_only=True)
class TextTower:
    tokenizer: Mapping[str, Any]  # fields of ``TokenizerConfig``, with ``context_length``
    tokenizer_sha256: Mapping[str, str]  # file name -> SHA-256
    fingerprint: tuple[int, int]  # returned by the graph with every embedding; not that of the image tower
    parity: Parity
    canary: str
    canary_vector: tuple[float, ...]  # D float32 numbers; the vector has unit length
    logit_scale: float  # factor of a cosine in a logit: the inverse of the temperature
    logit_bias: float | None
    """A model with a bias (SigLIP) was trained with a sigmoid for each pair; others, with a softmax over the texts."""
    graph_revision: int = GRAPH_REVISION


@dataclass(frozen=True, kw_only=True)
class Passport:
    """The identity of one exported model. The server sends it to clients in the handshake."""

    model: str  # open_clip's name of the architecture
    pretrained: str  # open_clip's tag, ``file:NAME`` for a checkpoint, or ``random:SEED``
    weights_sha256: str  # over the sorted fp32 state dict (name, shape and bytes of each tensor)
    preprocess: Mapping[str, Any]  # size (height, width), interpolation, resize_mode, fill_color, mean and std
    preprocess_id: str  # short name of ``preprocess``, such as ``shortest-bicubic-224x224``
    dimension: int
    weights_dtype: str  # ``"fp32"``, ``"fp16"`` or ``"int8"``; ``precision`` in JSON
    fingerprint: tuple[int, int]  # two int32 numbers; the graph returns them with every embedding
    parity: Parity
    canary: Canary
    opset: int
    ir_version: int
    text: TextTower | None = None
    exported_at: int = field(default=0, compare=False)  # seconds since 1970 in UTC; 0 in older exports
    graph_revision: int = GRAPH_REVISION  # 1 if the export is older than this field
    contract: int = CONTRACT_VERSION

    @property
    def id(self) -> str:
        """The model's part of a vector's id, such as ``ViT-B-32/laion2b_s34b_b79k@1a2b3c4d``."""
        suffix = "" if self.weights_dtype == "fp32" else f"+{self.weights_dtype}"
        return f"{self.model}/{self.pretrained}@{self.weights_sha256[:8]}{suffix}"

    def to_json(self) -> str:
        document = {"id": self.id, **_with_keys_of_json(asdict(self))}
        if self.text is None:
            del document["text"]
        else:
            document["text"] = _with_keys_of_json(document["text"])
        document["canary"]["image"] = base64.b64encode(self.canary.image).decode("ascii")
        document["onnx"] = {"opset": document.pop("opset"), "ir": document.pop("ir_version")}
        return json.dumps(document, allow_nan=False) + "\n"

    @classmethod
    def from_json(cls, text: str | bytes) -> Passport:
        """Read what :meth:`to_json` wrote. Raises PassportError, or ContractMismatch for another contract version."""
        try:
            document = json.loads(text)
            contract = document["contract"]
        except (ValueError, TypeError, KeyError):
            raise PassportError("The text is not a model's passport; export the model again.") from None
        if contract != CONTRACT_VERSION:
            raise ContractMismatch(contract)
        try:
            onnx, first = document["onnx"], {"graph_revision": 1}
            has_text = document.get("text") is not None
            tower = _record(TextTower, {**first, **document["text"]}) if has_text else None
            renamed = {"opset": onnx["opset"], "ir_version": onnx["ir"], "text": tower}
            passport: Passport = _record(cls, {"exported_at": 0, **first, **document, **renamed})
            for canary in (passport.canary.vector, *([tower.canary_vector] if tower else [])):
                if len(canary) != passport.dimension:
                    raise ValueError(f"a canary has {len(canary)} numbers, not {passport.dimension}")
        except (KeyError, TypeError, ValueError) as error:
            raise PassportError(
                f"The model's passport is incomplete ({type(error).__name__}: {error}); export the model again."
            ) from None
        return passport


_KEYS_OF_JSON: Final = {"weights_dtype": "precision", "parity": "gate"}  # keys that differ since the first version


def _with_keys_of_json(record: Mapping[str, Any]) -> dict[str, Any]:
    return {_KEYS_OF_JSON.get(name, name): value for name, value in record.items()}


def _pair(numbers: Iterable[Any]) -> tuple[int, int]:
    first, second = map(int, numbers)
    return first, second


_CONVERTERS: Final[Mapping[str, Callable[[Any], Any]]] = {  # annotation of a field -> reader of its JSON value
    "int": int,
    "float": float,
    "float | None": lambda number: None if number is None else float(number),
    "bytes": lambda text: base64.b64decode(text, validate=True),
    "tuple[int, int]": _pair,
    "tuple[float, ...]": lambda numbers: tuple(map(float, numbers)),
    "Mapping[str, Any]": dict,
    "Mapping[str, str]": lambda texts: {str(name): str(text) for name, text in texts.items()},
    "Parity": lambda document: _record(Parity, document),
    "Canary": lambda document: _record(Canary, document),
}


def _record(kind: type[Any], document: Mapping[str, Any]) -> Any:
    """Make a record from a JSON object, which may have further members. Raises KeyError, TypeError and ValueError."""
    values = {}
    for one in fields(kind):
        key = _KEYS_OF_JSON.get(one.name, one.name)
        value = document[key]
        if one.type == "str" and not (isinstance(value, str) and value):
            raise ValueError(f"{key} must be a text that is not empty")
        values[one.name] = _CONVERTERS.get(str(one.type), lambda value: value)(value)
    return kind(**values)


def compute_fingerprint(
    *, model: str, weights_sha256: str, preprocess: Mapping[str, Any], weights_dtype: str
) -> tuple[int, int]:
    """Return two int32 numbers, a digest of all that decides a vector. Two tags may name the same weights."""
    return _fingerprint([CONTRACT_VERSION, _GRAPH_VERSION, model, weights_sha256, dict(preprocess), weights_dtype])


def compute_text_fingerprint(
    *,
    model: str,
    weights_sha256: str,
    tokenizer: Mapping[str, Any],
    tokenizer_sha256: Mapping[str, str],
    weights_dtype: str,
) -> tuple[int, int]:
    """Return two int32 numbers, a digest of everything that decides a text's vector."""
    tokens = [dict(tokenizer), dict(tokenizer_sha256)]
    return _fingerprint(["text", CONTRACT_VERSION, _TEXT_GRAPH_VERSION, model, weights_sha256, *tokens, weights_dtype])


def _fingerprint(identity: list[Any]) -> tuple[int, int]:
    digest = hashlib.sha256(json.dumps(identity, sort_keys=True).encode("ascii")).digest()
    return int.from_bytes(digest[:4], "little", signed=True), int.from_bytes(digest[4:8], "little", signed=True)
