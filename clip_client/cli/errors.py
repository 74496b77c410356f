"""How a command ends early: with one sentence and an exit code."""

from __future__ import annotations

import importlib

from preprocess_ensemble.errors import ReportedError


class CommandFailed(ReportedError):
    """The command could not do its work; exit code 1."""


class CommandMisused(ReportedError):
    """The command was called in a way that cannot work; exit code 2."""


def need(*modules: str, extra: str = "cli") -> None:
    """Import optional packages now, so that a missing one ends the command before the long work, not after it.

    ``extra`` is the package's own extra that brings them. Raises CommandFailed with the command that installs them.
    """
    for module in modules:
        try:
            importlib.import_module(module)
        except ImportError as error:
            raise CommandFailed(
                f"this command needs {module}, which does not import ({error}); "
                f"install it with: pip install 'clip-triton[{extra}]'"
            ) from None
