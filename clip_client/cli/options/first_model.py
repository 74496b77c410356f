"""Gets the default model for a machine that has none, so that the first command reaches a result."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

from preprocess_ensemble.model_repository.location import (
    MODEL_VARIABLE,
    default_repository,
    has_model,
    user_repository,
)

_EXPORT: Final = (sys.executable, "-m", "preprocess_ensemble.export.command")
_NOTICE: Final = """\
clip-client: there is no model on this machine yet. ViT-B-32 with the LAION-2B weights is a download of 605 MB, once;
clip-client: the model made from it takes 350 MB, in {repository}.
"""


def may_export_default_model(repository: str) -> bool:
    """Return whether the model is missing in ``repository``, of a ``local:`` URL, and may be put where it is found.

    A repository that the user has named is not filled: a wrong path would look like a missing model.
    """
    return not repository and MODEL_VARIABLE not in os.environ and not has_model(default_repository())


def export_default_model() -> bool:
    """Export the default model into the user's data directory with ``clip-export``; return whether it is there now.

    On a terminal it asks first. What happens is printed on standard error, by ``clip-export`` as well.
    """
    repository: Path = user_repository()
    sys.stderr.write(_NOTICE.format(repository=repository))
    if sys.stdin.isatty() and sys.stderr.isatty():
        sys.stderr.write("clip-client: get it now? [Y/n] ")
        sys.stderr.flush()
        if sys.stdin.readline().lower() not in ("\n", "y\n", "yes\n"):
            return False
    repository.mkdir(parents=True, exist_ok=True)
    # A process of its own returns its memory.
    return subprocess.run([*_EXPORT, "--repository", str(repository)], check=False).returncode == 0
