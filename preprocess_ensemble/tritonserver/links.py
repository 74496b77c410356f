"""Links with plain names: Triton starts stubs by an unquoted command, and Python may decode their paths as ASCII."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from preprocess_ensemble.tritonserver.cleanup import LINKS_SUFFIX, OWNED, TEMPORARY, region_prefix

_PLAIN: Final = re.compile(r"[A-Za-z0-9/._+@%=-]*")
"""Paths without characters that have a meaning in a shell, or in a list of paths with colons."""

_FIRST: Final = re.compile(rf"{TEMPORARY}/{OWNED.pattern}{LINKS_SUFFIX}/1(?!\d)")
"""The links to the models of the first repository."""


def with_repository(line: str, repository: Path) -> str:
    return _FIRST.sub(lambda _: str(repository), line)


class Links:
    """The links of the server with the PID ``server``, in a folder that its guardian removes."""

    def __init__(self, server: int) -> None:
        self._folder = TEMPORARY / f"{region_prefix(server)}{LINKS_SUFFIX}"
        self._count = 0

    def plain(self, path: Path) -> Path:
        """Return ``path``, or a link to it if the path has a character that Triton's shell would take for another."""
        absolute = Path(os.path.abspath(path))
        if _PLAIN.fullmatch(str(absolute)):
            return path
        link = self._next()
        link.symlink_to(absolute)
        return link

    def models(self, repository: Path) -> Path:
        """Return a folder with links to the models of ``repository``: the folders that have a ``config.pbtxt``.

        Triton takes every folder for a model, and ends if one is a cache or a volume's ``lost+found``.
        """
        folder = self._next()
        folder.mkdir()
        for model in Path(os.path.abspath(repository)).iterdir():
            if (model / "config.pbtxt").is_file():
                (folder / model.name).symlink_to(model)
        return folder

    def repositories(self, arguments: Sequence[str], *, only_models: bool) -> list[str]:
        """Return the arguments of tritonserver with plain paths of repositories; those in a cloud stay as they are."""
        changed = list(arguments)
        for index, argument in enumerate(arguments):
            option, equals, value = argument.partition("=")
            if option not in ("--model-repository", "--model-store") or not (equals or index + 1 < len(arguments)):
                continue
            path = Path(value if equals else arguments[index + 1])
            if not path.is_dir():
                continue
            path = self.models(path) if only_models else self.plain(path)
            changed[index if equals else index + 1] = f"{option}={path}" if equals else str(path)
        return changed

    def _next(self) -> Path:
        self._folder.mkdir(mode=0o700, exist_ok=self._count > 0)  # another user's folder of this name is an error
        self._count += 1
        return self._folder / str(self._count)
