"""The one thing that is done to photos of Apple Photos: they are put into an album, where a person deletes them or not.

Photos itself does it, asked through photoscript, so this works on a Mac only, and only with the library that is open
there. An album holds references; to take it back, delete the album.
"""

from __future__ import annotations

import platform
from typing import TYPE_CHECKING, Any, Final

from clip_client.dedup.actions.apply import Outcome
from clip_client.dedup.files.hashing import Content, hash_file
from preprocess_ensemble.errors import ReportedError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from clip_client.dedup.actions.plan import AlbumEntry

ALBUM: Final = "Duplicates (clip-client)"
"""Found by this name at the top level, and made where there is none."""


class NoAlbum(ReportedError):
    """No album can be filled here; the text is one sentence for people."""


def check_photos() -> None:
    """Raise NoAlbum where this machine has no Photos, or nothing to ask it with."""
    if platform.system() != "Darwin":
        raise NoAlbum(
            "duplicates inside a library of Apple Photos are put into an album, which only Photos on a Mac can do; "
            "leave --apply out, or name no library"
        )
    try:
        import photoscript  # noqa: F401
    except ImportError as error:
        raise NoAlbum(
            f"photoscript, which asks Photos to fill an album, does not import ({error}); "
            "install it with: pip install 'clip-triton[photos]'"
        ) from None


def fill_album(
    entries: Sequence[AlbumEntry], *, on_progress: Callable[[str, int, int], None] | None = None
) -> tuple[Outcome, ...]:
    """Put each photo into the album, and say for each whether it is there; one that is in it stays in it.

    Both files are hashed again before: what has changed or gone since it was compared is left out. Raises NoAlbum
    where :func:`check_photos` does, or where Photos itself does not answer.
    """
    check_photos()
    import photoscript

    try:
        library = photoscript.PhotosLibrary()
        album = library.album(ALBUM, top_level=True) or library.create_album(ALBUM)
    except Exception as error:  # AppleScript's errors are those of Photos
        raise NoAlbum(f"Photos does not make the album: {error}; allow this terminal to control it") from error
    outcomes = []
    for done, entry in enumerate(entries, start=1):
        problem = _changed(entry) or _add(entry, album, photoscript)
        message = problem or f"In the album {ALBUM!r}."
        outcomes.append(Outcome(path=entry.victim.label, done=not problem, message=message))
        if on_progress is not None:
            on_progress("filling the album", done, len(entries))
    return tuple(outcomes)


def _changed(entry: AlbumEntry) -> str:
    for what, member in (("It", entry.victim), ("The kept photo", entry.survivor)):
        content = hash_file(member.path)
        if not isinstance(content, Content) or content.sha256 != member.sha256:
            return f"{what} has changed or gone since it was compared."
    return ""


def _add(entry: AlbumEntry, album: Any, photoscript: Any) -> str:
    """Return why it could not be added, or an empty text."""
    known = entry.victim.in_library
    if known is None:
        return "It belongs to no library of Apple Photos."
    try:
        album.add([photoscript.Photo(known.uuid)])
    except ValueError:
        return f"Photos does not know it: the library that is open there is not {known.library}."
    except Exception as error:
        return f"Photos refuses: {error}."
    return ""
