"""Keep the messages of Pillow and libtiff about unusual files from the terminal."""

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
    """Suppress the messages of Pillow and libtiff about unusual files; the status says more.

    Warning filters (until Python 3.14), loggers and libtiff's handlers belong to the whole process. The first thread
    that enters the block silences them, and the last thread that leaves restores them.
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
    core: Any = vars(Image)["core"]
    with suppress(OSError, AttributeError):
        # Look libtiff up through Pillow's own library: this finds the libtiff that Pillow uses, in a wheel and in a
        # distribution.
        library = ctypes.CDLL(core.__file__)
        handlers = library.TIFFSetErrorHandler, library.TIFFSetWarningHandler
        for handler in handlers:
            handler.argtypes, handler.restype = [ctypes.c_void_p], ctypes.c_void_p
        return handlers
    return ()
