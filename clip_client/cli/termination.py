"""SIGTERM behaves like Ctrl-C: the work ends, what is finished is kept, and the exit code says which it was."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Termination:
    """Whether SIGTERM has arrived."""

    def __init__(self) -> None:
        self.requested = False

    @property
    def exit_code(self) -> int:
        """128 + the number of the signal, as shells have it."""
        return 128 + (signal.SIGTERM if self.requested else signal.SIGINT)

    def _interrupt(self, _number: int, frame: FrameType | None) -> None:
        self.requested = True
        # The handler of a running event loop cancels its task. In the background of a script SIGINT is ignored.
        on_interrupt = signal.getsignal(signal.SIGINT)
        if not callable(on_interrupt):
            raise KeyboardInterrupt
        on_interrupt(signal.SIGINT, frame)


@contextmanager
def interruptible() -> Iterator[Termination]:
    """Turn SIGTERM into a KeyboardInterrupt inside the block, unless the caller of this process ignores SIGTERM."""
    termination = Termination()
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield termination
        return
    signal.signal(signal.SIGTERM, termination._interrupt)
    try:
        yield termination
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
