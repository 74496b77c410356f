"""What Pillow and libtiff say about unusual files, kept from the terminal."""

from __future__ import annotations

import ctypes
import logging
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from typing import Any, Final

from PIL import Image

_lock: Final = threading.Lock()
_threads = 0
_silence: ExitStack | None = None


@contextmanager
def quiet_libraries() -> Iterator[None]:
    """Suppress what Pillow and libtiff say about unusual files; the status says more.

    Warning filters (until Python 3.14), loggers and libtiff's handlers belong to the whole process. So the first thread
    to enter silences them, and the last one to leave puts back what it found.
    """
    global _threads, _silence
    with _lock:
        if _threads == 0:
            _silence = _silenced()
        _threads += 1
    try:
        yield
    finally:
        with _lock:
            _threads -= 1
            if _threads == 0 and _silence is not None:
                _silence.close()


def _silenced() -> ExitStack:
    stack = ExitStack()
    stack.enter_context(warnings.catch_warnings())
    warnings.filterwarnings("ignore", module=r"PIL\.")
    logger = logging.getLogger("PIL")
    stack.callback(logger.setLevel, logger.level)
    logger.setLevel(logging.CRITICAL)
    for set_handler in _libtiff_handlers():
        stack.callback(set_handler, set_handler(None))
    return stack


@cache
def _libtiff_handlers() -> tuple[Callable[[Any], Any], ...]:
    """Return the functions of Pillow's libtiff that set who prints its messages; none where they cannot be reached."""
    core: Any = vars(Image)["core"]
    with suppress(OSError, AttributeError):
        # A library that is found through another one is the one that Pillow uses, in a wheel and in a distribution.
        library = ctypes.CDLL(core.__file__)
        handlers = library.TIFFSetErrorHandler, library.TIFFSetWarningHandler
        for handler in handlers:
            handler.argtypes, handler.restype = [ctypes.c_void_p], ctypes.c_void_p
        return handlers
    return ()
