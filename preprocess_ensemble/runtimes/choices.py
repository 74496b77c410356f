"""What was fastest when it was timed, remembered in the user's cache folder, so that later loads time nothing.

Every process of the user may read and write there at the same time. A file that cannot be read, is damaged, or was
written by another version counts as absent; a folder that cannot be written only makes every load time again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from preprocess_ensemble.runtimes.processor import processor_id
from preprocess_ensemble.whole_file import whole_file

_VERSION: Final = 2
"""Raise it if the same measurement would lead to another choice, or if the file has another form."""

_LOCK_TIMEOUT_S: Final = 60.0
"""A process that waits for another's measurement this long measures, too. One takes 3 to 10 s with ViT-B-32."""


@dataclass(frozen=True, kw_only=True)
class Choice:
    """The result of one measurement."""

    name: str
    """The candidate that was chosen; empty if it is the reference."""
    speeds: Mapping[str, float]
    """Candidate -> how many times as fast as the reference it was."""
    refused: Mapping[str, str] = field(default_factory=dict)
    """Candidate -> why it cannot be used, as a clause."""
    disagrees: bool = False
    """Whether one of them was refused because it computed other vectors."""
    day: str
    """Such as ``"2026-11-23"``."""

    def __str__(self) -> str:
        speeds = ", ".join(f"{name} {speed:.2f}" for name, speed in self.speeds.items())
        timed = f"speed relative to ONNX Runtime in fp32, timed on {self.day}: {speeds}" if speeds else ""
        return "; ".join(filter(None, (timed, *(f"{name}: {reason}" for name, reason in self.refused.items()))))


class Choices:
    """The remembered choices: a small JSON file for each processor, model, set of runtimes and number of threads.

    ``folder`` is by default ``clip-triton/runtimes`` in the user's cache folder, and ``processor`` the name of this
    one.
    """

    def __init__(self, folder: Path | None = None, *, processor: str | None = None) -> None:
        if folder is None:
            from platformdirs import user_cache_path

            folder = user_cache_path("clip-triton", appauthor=False) / "runtimes"
        self.folder = folder
        self._processor = processor or processor_id()

    def get(self, about: Mapping[str, str]) -> Choice | None:
        """Return the choice for ``about``, which names what it depends on besides the processor; None without one."""
        choice: Choice | None = _read(self._file(about)).get("choice")
        return choice

    def keep(self, about: Mapping[str, str], choice: Choice) -> None:
        """Remember ``choice``. Raises OSError if the folder cannot be written."""
        record = {"version": _VERSION, "processor": self._processor, "about": dict(about), "choice": asdict(choice)}
        self._make_folder()
        with whole_file(self._file(about)) as file:
            file.write(json.dumps(record, indent=1).encode("ascii"))

    def on_this_processor(self) -> Iterator[str]:
        """Yield one clause for each choice that was measured here: which model runs on what, and why."""
        for path in sorted(self.folder.glob("*.json")):
            record = _read(path)
            if record.get("processor") == self._processor:
                about, choice = record["about"], record["choice"]
                yield f"{about['model']} runs on {choice.name or about['reference']} ({choice})"

    @contextmanager
    def measuring(self) -> Iterator[None]:
        """Keep other processes of this user from measuring at the same time, whatever their model.

        Without filelock, or in a folder that cannot be written, they are not kept from it.
        """
        with ExitStack() as stack:
            with suppress(ImportError, OSError, NotImplementedError):  # filelock's Timeout is an OSError
                from filelock import FileLock

                self._make_folder()
                stack.enter_context(FileLock(self.folder / "measuring.lock", timeout=_LOCK_TIMEOUT_S))
            yield

    def _make_folder(self) -> None:
        # Without a home, the path begins with a "~" that is not replaced.
        if not self.folder.is_absolute():
            raise FileNotFoundError(f"{self.folder} is not an absolute path")
        self.folder.mkdir(parents=True, exist_ok=True)

    def _file(self, about: Mapping[str, str]) -> Path:
        text = json.dumps([_VERSION, self._processor, dict(about)], sort_keys=True)
        return self.folder / f"{hashlib.sha256(text.encode()).hexdigest()[:16]}.json"


def _read(path: Path) -> dict[str, Any]:
    """Return what :meth:`Choices.keep` wrote, with the Choice; empty if there is no such file of this version."""
    try:
        record = json.loads(path.read_text(encoding="ascii"))
        if record["version"] != _VERSION:
            return {}
        return {**record, "choice": Choice(**record["choice"])}
    except (OSError, ValueError, RecursionError, KeyError, TypeError):
        return {}
