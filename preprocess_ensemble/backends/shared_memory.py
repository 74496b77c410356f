"""Access rights of the shared-memory regions in which a model exchanges tensors with its server."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path


def restrict_own_regions() -> None:
    """Let only this process's user open the regions in ``/dev/shm`` that the process has mapped.

    Triton's Python backend makes its regions readable for every user of the machine, and they hold the images of
    clients. A model calls this in ``initialize``, which runs in the process that serves the model, before its first
    request and again after each restart. A region that grows stays the same file.
    """
    mapped = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace").splitlines()
    for path in {line.split(maxsplit=5)[5] for line in mapped if " /dev/shm/" in line}:
        with contextlib.suppress(FileNotFoundError, PermissionError):  # already removed, or another user's
            os.chmod(path, 0o600)
