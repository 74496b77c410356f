"""The models that are worth a look: ``clip-export --list`` prints this table, and docs/models.md repeats it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

LANGUAGES: Final = ("en", "de", "zh", "hu", "hr", "he", "cs", "hi")
"""Of the recall figures."""
RECALL_SOURCE: Final = "https://docs.immich.app/features/searching"


@dataclass(frozen=True, kw_only=True)
class Model:
    """A model of open_clip with one of its pretrained weights."""

    name: str
    pretrained: str
    dimension: int
    preprocess_id: str
    context_length: int
    """Number of token ids of a text."""
    image_mb: int
    text_mb: int
    """Sizes of the towers in fp32, in MB of 1,000,000 bytes."""
    languages: str
    licence: str
    needs_pytorch: bool = False
    """Whether the export needs PyTorch."""
    image_ms: int
    text_ms: int
    """Milliseconds of one thread in fp32, in batches of 8: ``python -m benchmarks towers``."""
    recall: Mapping[str, int] = field(default_factory=dict)
    """Language -> percent, as Immich measured: the mean of recall at 1, 5 and 10 on Crossmodal-3600."""


class Table(NamedTuple):
    """Headings, and rows of as many cells."""

    headings: Sequence[str]
    rows: Sequence[Sequence[str]]


MODELS: Final = (
    Model(
        name="ViT-B-32",
        pretrained="laion2b_s34b_b79k",
        dimension=512,
        preprocess_id="shortest-bicubic-224x224",
        context_length=77,
        image_mb=351,
        text_mb=254,
        languages="English",
        licence="MIT",
        image_ms=43,
        text_ms=32,
        recall={"en": 69},
    ),
    Model(
        name="ViT-B-32-quickgelu",
        pretrained="openai",
        dimension=512,
        preprocess_id="shortest-bicubic-224x224",
        context_length=77,
        image_mb=351,
        text_mb=254,
        languages="English",
        licence="MIT",
        image_ms=43,
        text_ms=31,
        recall={"en": 59},
    ),
    Model(
        name="ViT-B-16",
        pretrained="laion2b_s34b_b88k",
        dimension=512,
        preprocess_id="shortest-bicubic-224x224",
        context_length=77,
        image_mb=345,
        text_mb=254,
        languages="English",
        licence="MIT",
        image_ms=189,
        text_ms=32,
    ),
    Model(
        name="ViT-L-14",
        pretrained="laion2b_s32b_b82k",
        dimension=768,
        preprocess_id="shortest-bicubic-224x224",
        context_length=77,
        image_mb=1216,
        text_mb=495,
        languages="English",
        licence="MIT",
        image_ms=943,
        text_ms=69,
        recall={"en": 70},
    ),
    Model(
        name="ViT-B-32-SigLIP2-256",
        pretrained="webli",
        dimension=768,
        preprocess_id="squash-bicubic-256x256",
        context_length=64,
        image_mb=378,
        text_mb=1129,
        languages="109",
        licence="Apache-2.0",
        image_ms=59,
        text_ms=59,
        recall=dict(zip(LANGUAGES, (73, 84, 63, 57, 53, 58, 54, 27), strict=True)),
    ),
    Model(
        name="xlm-roberta-base-ViT-B-32",
        pretrained="laion5b_s13b_b90k",
        dimension=512,
        preprocess_id="shortest-bicubic-224x224",
        context_length=77,
        image_mb=351,
        text_mb=1113,
        languages="100",
        licence="MIT",
        needs_pytorch=True,
        image_ms=44,
        text_ms=74,
        recall=dict(zip(LANGUAGES, (68, 82, 73, 73, 73, 73, 61, 32), strict=True)),
    ),
)
"""The first is the default."""


def facts() -> Table:
    """Return what is known of each model but its recall."""
    headings = (
        "`--model`",
        "`--pretrained`",
        "dimension",
        "preprocessing",
        "tokens",
        "MB, image + text",
        "ms, image + text",
        "languages",
        "licence",
        "PyTorch",
    )
    rows = [
        (
            model.name,
            model.pretrained,
            str(model.dimension),
            model.preprocess_id,
            str(model.context_length),
            f"{model.image_mb} + {model.text_mb}",
            f"{model.image_ms} + {model.text_ms}",
            model.languages,
            model.licence,
            "needed" if model.needs_pytorch else "",
        )
        for model in MODELS
    ]
    return Table(headings, rows)


def recall() -> Table:
    """Return the recall of each model by language, as far as it is published."""
    rows = [
        (model.name, model.pretrained, *(str(model.recall.get(language, "")) for language in LANGUAGES))
        for model in MODELS
        if model.recall
    ]
    return Table(("`--model`", "`--pretrained`", *LANGUAGES), rows)


def listing() -> str:
    """Return both tables as lines for a terminal."""
    note = f"Recall in percent by language, text to image on Crossmodal-3600, measured by Immich ({RECALL_SOURCE}):"
    return f"{_aligned(facts())}\n\n{note}\n\n{_aligned(recall())}\n"


def _aligned(table: Table) -> str:
    rows = [[heading.replace("`", "") for heading in table.headings], *table.rows]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ("  ".join(map(str.ljust, row, widths)) for row in rows)
    return "\n".join(line.rstrip() for line in lines)
