"""Errors that end a command with one sentence and an exit code."""

from __future__ import annotations

import importlib

from preprocess_ensemble.errors import ReportedError, pip_install


class CommandFailed(ReportedError):
    """The command could not do its work; exit code 1."""


class CommandMisused(ReportedError):
    """The arguments of the command cannot work; exit code 2."""


def need(*modules: str, extras: str = "cli") -> None:
    """Import optional packages before the long work. Raises CommandFailed with the command that installs ``extras``."""
    for module in modules:
        try:
            importlib.import_module(module)
        except ImportError as error:
            raise CommandFailed(
                f"this command needs {module}, which cannot be imported ({error}); "
                f"install it with: {pip_install(extras)}"
            ) from None
