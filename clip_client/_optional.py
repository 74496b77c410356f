"""Packages that only some functions need."""

from __future__ import annotations

import importlib


def require(package: str, install: str) -> None:
    """Import ``package``; raise ImportError with the command that installs it if that fails."""
    try:
        importlib.import_module(package)
    except ImportError as error:
        message = f"this needs {package} ({error}); install it with: pip install '{install}'"
        raise ImportError(message, name=package) from error
