"""Puts duplicates inside an Apple Photos library into an album, by Photos on a Mac, driven by photoscript."""

from __future__ import annotations

import platform
from collections.abc import Callable, Sequence
from typing import Any, Final

from clip_client.dedup.actions.apply import Outcome
from clip_client.dedup.actions.plan import Move
from clip_client.dedup.files.reading import has_sha256
from preprocess_ensemble.errors import ReportedError, pip_install

ALBUM: Final = "Duplicates (clip-client)"


class NoAlbum(ReportedError):
    """A photo cannot go into the album, or none can; the message is one sentence for people, without its full stop."""


def check_photos() -> None:
    if platform.system() != "Darwin":
        raise NoAlbum(
            "duplicates inside an Apple Photos library go into an album, which only Photos on a Mac can fill; "
            "leave out --apply or the library"
        )
    try:
        import photoscript  # noqa: F401
    except ImportError as error:
        raise NoAlbum(
            f"photoscript, which drives Photos, cannot be imported ({error}); install it with: {pip_install('photos')}"
        ) from None


def fill_album(
    entries: Sequence[Move], *, on_progress: Callable[[str, int, int], None] | None = None
) -> tuple[Outcome, ...]:
    outcomes: list[Outcome] = []
    try:
        album = _album() if entries else None
    except NoAlbum as error:
        return tuple(Outcome(path=entry.duplicate.path, done=False, message=f"{error}.") for entry in entries)
    for done, entry in enumerate(entries, start=1):
        reason = ""
        try:
            _add(entry, album)
        except NoAlbum as error:
            reason = f"{error}."
        message = reason or f"In the album {ALBUM!r}."
        outcomes.append(Outcome(path=entry.duplicate.path, done=not reason, message=message))
        if on_progress is not None:
            on_progress("filling the album", done, len(entries))
    return tuple(outcomes)


def _album() -> Any:
    check_photos()
    import photoscript

    try:
        library = photoscript.PhotosLibrary()
        return library.album(ALBUM, top_level=True) or library.create_album(ALBUM)
    except Exception as error:  # AppleScript passes on any error of Photos
        raise NoAlbum(f"Apple Photos gave no album: {error}; allow this terminal to control it") from error


def _add(entry: Move, album: Any) -> None:
    import photoscript

    for what, photo in (("It", entry.duplicate), ("The kept photo", entry.kept)):
        if not has_sha256(photo.path, photo.sha256):
            raise NoAlbum(f"{what} has changed or disappeared since it was compared")
    known = entry.duplicate.in_library
    assert known is not None, "only photos of a library go into the album"
    try:
        album.add([photoscript.Photo(known.uuid)])
    except ValueError:
        raise NoAlbum(f"Photos does not know it: {known.library} is not the library that is open") from None
    except Exception as error:
        raise NoAlbum(f"Photos refuses: {error}") from error
