"""The default model repository, and the default model to export into it, for commands and clients that name none."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from preprocess_ensemble import contract
from preprocess_ensemble.errors import ReportedError

REPOSITORY_VARIABLE: Final = "CLIP_REPOSITORY"
MODEL_VARIABLE: Final = "CLIP_MODEL"  # the model to export, as ``clip-export --model`` takes it
PRETRAINED_VARIABLE: Final = "CLIP_PRETRAINED"  # weights of the model, as ``clip-export --pretrained`` takes them
HERE: Final = Path("triton_models")  # the repository of a checkout, or of a server's working directory


class MisnamedModel(ReportedError, ValueError):
    """``CLIP_MODEL`` holds a path that belongs into ``CLIP_REPOSITORY``."""


def model_to_export() -> tuple[str | None, str | None]:
    model = os.environ.get(MODEL_VARIABLE) or None
    if model and os.path.isdir(model) and (os.sep in model or any(Path(model).glob("*/config.pbtxt"))):
        raise MisnamedModel(
            f"{MODEL_VARIABLE} is the folder {model}, and names a model such as ViT-B-32: put the path of a model "
            f"repository into {REPOSITORY_VARIABLE}."
        )
    return model, os.environ.get(PRETRAINED_VARIABLE) or None


def default_repository() -> Path:
    """Return ``CLIP_REPOSITORY``, else the one to fill, or the user's if only that has a model."""
    chosen = repository_to_fill()
    return user_repository() if chosen is HERE and not has_model(HERE) and has_model(user_repository()) else chosen


def repository_to_fill() -> Path:
    """Return ``CLIP_REPOSITORY``, else ``./triton_models`` if it exists, else the user's. Raises MisnamedModel."""
    if named := os.environ.get(REPOSITORY_VARIABLE):
        return Path(named)
    model_to_export()  # raises MisnamedModel
    return HERE if HERE.is_dir() else user_repository()


def user_repository() -> Path:
    from platformdirs import user_data_path

    try:
        return user_data_path("clip-client", appauthor=False) / "models"
    except RuntimeError:
        raise ReportedError(
            f"This user has no home folder for a model repository: set HOME or {MODEL_VARIABLE}, or use --repository."
        ) from None


def has_model(repository: Path, names: contract.ModelNames = contract.DEFAULT_NAMES) -> bool:
    return (repository / names.encoder / "1" / "model.json").exists()


def model_names(repository: Path) -> list[str]:
    """Return the names of the exported models in ``repository``, sorted; none if no export has been finished."""
    suffix = contract.DEFAULT_NAMES.encoder.removeprefix(contract.DEFAULT_NAME)
    return sorted(file.parents[1].name.removesuffix(suffix) for file in repository.glob(f"*{suffix}/1/model.json"))
