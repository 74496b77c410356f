"""Replace installed files as a whole: an interrupted or rejected export leaves the installed model in place."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from filelock import FileLock, Timeout

from preprocess_ensemble.errors import ReportedError
from preprocess_ensemble.whole_file import whole_file

_PREFIX: Final = ".staging-"
_LOCK: Final = ".export-lock"  # file that a running export locks; the file stays
_NO_SPACE: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@contextmanager
def staging_directory(directory: Path, needed_bytes: int) -> Iterator[Path]:
    """Yield a new, empty directory inside ``directory``, on the same file system; remove it at the end.

    Only one export at a time may use ``directory``. Raises ReportedError if another is running, or if the disk has less
    than ``needed_bytes``, or runs full.
    """
    try:
        # The kernel releases the lock when its process ends, so each directory found here is abandoned. Refuse soft
        # locks: such a lock is a file that outlives a killed process.
        with FileLock(directory / _LOCK, timeout=0, fallback_to_soft=False):
            for abandoned in directory.glob(f"{_PREFIX}*"):
                shutil.rmtree(abandoned)
            if shutil.disk_usage(directory).free < needed_bytes:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            with tempfile.TemporaryDirectory(prefix=_PREFIX, dir=directory, ignore_cleanup_errors=True) as name:
                yield Path(name)
    except Timeout:
        raise ReportedError(f"Another export is writing to {directory}; wait until it ends.") from None
    except OSError as error:
        if error.errno not in _NO_SPACE:
            raise
        found = f"{shutil.disk_usage(directory).free / 1e6:.0f} MB are free"
        if error.errno != errno.ENOSPC:
            found = f"a limit stops it ({error.strerror})"
        raise ReportedError(
            f"The export needs {needed_bytes / 1e6:.0f} MB in {directory} and {found}; "
            "make room there, or choose another --repository."
        ) from error


def install(
    files: Mapping[Path, Path],
    texts: Mapping[Path, str],
    obsolete: Iterable[Path],
    marker: tuple[Path, Path],
    *,
    adds: bool,
) -> None:
    """Install a model: delete the folders ``obsolete``, write ``texts``, move ``files`` and then the ``marker``.

    ``files`` maps the path of each finished file to its target; ``marker`` is such a pair. Each file is on the disk
    before anything changes, and replaces its predecessor atomically. The old marker is removed first, unless the model
    only ``adds`` files, and the new one is moved last, so a marker always describes the files beside it.
    """
    finished, installed = marker
    for file in (*files, finished):
        _flush(file)
    if not adds:
        installed.unlink(missing_ok=True)
    for folder in obsolete:
        shutil.rmtree(folder)
    write(texts)
    for file, target in files.items():
        target.parent.mkdir(parents=True, exist_ok=True)
        os.replace(file, target)
    for folder in {target.parent for target in files.values()}:
        _flush(folder)
    os.replace(finished, installed)
    _flush(installed.parent)


def write(texts: Mapping[Path, str]) -> None:
    for path, text in texts.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        with whole_file(path) as file:
            file.write(text.encode())


def _flush(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
