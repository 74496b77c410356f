"""Reads libraries of Apple Photos through osxphotos, on any system, and never writes to them."""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from clip_client._files import FailedFile
from clip_client.dedup.files.file_types import EDITED, FILM
from clip_client.dedup.types import RAW, Companion, LibraryPhoto
from preprocess_ensemble.errors import pip_install

_NOT_INSTALLED: Final = (
    "This is a library of Apple Photos, and nothing in it was compared. osxphotos can read it: "
    f"{pip_install('photos')}."
)
_IN_ICLOUD: Final = (
    "Its original is only in iCloud: in Photos choose Settings, iCloud, Download Originals to this Mac, wait, "
    "and search again."
)
_IS_MISSING: Final = "Its original is missing: open it in Photos and locate the file, or import it again."


def is_library(path: str) -> bool:
    return path.lower().rstrip(os.sep).endswith(".photoslibrary")


def read_library(library: str, *, include_hidden: bool = False) -> tuple[list[LibraryPhoto], list[FailedFile]]:
    """List the photos of a library by path. Failures are returned, not raised.

    Films, the trash, unselected frames of a burst, photos that other people share, and, without ``include_hidden``,
    the Hidden album are left out. A photo whose original is not on this machine is a failure that names the remedy.
    """
    if find_spec("osxphotos") is None:
        return [], [FailedFile(path=library, code="UNREADABLE", message=_NOT_INSTALLED)]
    try:
        with _opened(library) as database:
            outcomes = [
                _library_photo(photo, library)
                for photo in database.photos(movies=False)
                if (include_hidden or not photo.hidden)
                # What other people share belongs to them.
                and not (photo.shared or (photo.syndicated and not photo.saved_to_library))
            ]
    except Exception as error:  # the database may be of any version and damaged
        reason = " ".join(str(error).split()) or type(error).__name__
        message = f"This library of Apple Photos cannot be read: {reason}; on a Mac, allow Full Disk Access."
        return [], [FailedFile(path=library, code="UNREADABLE", message=message)]
    # osxphotos returns a set, in another order in each process, and two photos may have one path.
    return (
        sorted((one for one in outcomes if isinstance(one, LibraryPhoto)), key=lambda one: (one.path, one.uuid)),
        sorted((one for one in outcomes if isinstance(one, FailedFile)), key=lambda one: (one.path, one.message)),
    )


@contextmanager
def _opened(library: str) -> Iterator[Any]:
    # Open a copy of its database, because SQLite writes beside what it reads.
    import osxphotos

    # Its warnings are about labels and untested versions, not about files.
    logging.getLogger("osxphotos").setLevel(logging.ERROR)
    database = Path(library, "database", "Photos.sqlite")
    with tempfile.TemporaryDirectory(prefix="clip-client-photos-") as folder:
        if database.exists():
            for part in database.parent.glob("Photos.sqlite*"):
                if part.suffix in (".sqlite", ".sqlite-wal", ".sqlite-shm"):
                    shutil.copy(part, folder)
            opened = osxphotos.PhotosDB(str(Path(folder, database.name)), library_path=library)
        else:  # of macOS 10.14 and before
            opened = osxphotos.PhotosDB(library)
        try:
            yield opened
        finally:
            # It leaves its folder of copies to the garbage collector.
            opened._tempdir.cleanup()


def _library_photo(photo: Any, library: str) -> LibraryPhoto | FailedFile:
    name = str(photo.original_filename)
    if photo.path is None:
        message = _IN_ICLOUD if photo.ismissing else _IS_MISSING
        return FailedFile(path=os.path.join(library, name), code="UNREADABLE", message=message)
    beside = ((RAW, photo.path_raw), (FILM, photo.path_live_photo), (EDITED, photo.path_edited))
    return LibraryPhoto(
        path=str(photo.path),
        library=library,
        uuid=str(photo.uuid),
        name=name,
        taken_ns=None if photo.date is None else round(photo.date.timestamp() * 1e6) * 1000,
        companions=tuple(Companion(path=str(path), kind=kind) for kind, path in beside if path is not None),
    )
