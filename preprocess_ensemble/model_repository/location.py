"""Where the model repository is if a command or a client names none."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from preprocess_ensemble import contract

MODEL_VARIABLE: Final = "CLIP_MODEL"
"""Environment variable that names the model repository."""
HERE: Final = Path("triton_models")
"""The repository of a checkout, or of a server's working directory."""


def default_repository() -> Path:
    """Return the repository to read: that of ``CLIP_MODEL``, else ``./triton_models`` if it is there, else the user's.

    If ``./triton_models`` has no model and the user's repository has one, it is the user's.
    """
    if named := os.environ.get(MODEL_VARIABLE):
        return Path(named)
    own = user_repository()
    return HERE if HERE.is_dir() and (has_model(HERE) or not has_model(own)) else own


def repository_to_fill() -> Path:
    """Return the repository to export into: that of ``CLIP_MODEL``, else ``./triton_models`` if it is there, else the
    user's."""
    if named := os.environ.get(MODEL_VARIABLE):
        return Path(named)
    return HERE if HERE.is_dir() else user_repository()


def user_repository() -> Path:
    """Return the repository in the user's data directory."""
    from platformdirs import user_data_path

    return user_data_path("clip-client", appauthor=False) / "models"


def has_model(repository: Path, names: contract.ModelNames = contract.DEFAULT_NAMES) -> bool:
    """Return whether an export of the model with these names into ``repository`` has been finished."""
    return (repository / names.encoder / "1" / "model.json").exists()


def model_names(repository: Path) -> list[str]:
    """Return the names of the exported models in ``repository``, sorted; none if no export has been finished."""
    suffix = contract.ENCODER.removeprefix(contract.DEFAULT_NAME)
    files = repository.glob(f"*{suffix}/1/model.json")
    return sorted(file.parents[1].name.removesuffix(suffix) for file in files)
