"""A client and a scripted server in one event loop whose time passes only while nobody has anything to do.

Seconds of sleep then cost nothing, and a machine that is busy with other things takes no time from anybody: what comes
out is what the rules of client and server make of each other, in every run the same.
"""

from __future__ import annotations

import asyncio
import selectors
import socket
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Coroutine, Mapping, Sequence


class _Clock(selectors.DefaultSelector):
    """Does not wait for a timer, but says that it has."""

    def __init__(self) -> None:
        super().__init__()
        self.passed_s = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        events = super().select(timeout and 0)
        if timeout is not None and not events:
            self.passed_s += max(0.0, timeout)
        return events


class _SimulatedLoop(asyncio.SelectorEventLoop):
    def __init__(self, names: Mapping[str, Sequence[str]]) -> None:
        self._clock = _Clock()
        self._names = names
        super().__init__(self._clock)

    def time(self) -> float:
        return self._clock.passed_s

    async def getaddrinfo(self, host: Any, port: Any, **_: Any) -> Any:
        """The addresses of ``names``, or the error of a name server that does not answer."""
        if host not in self._names:
            raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")
        families = {True: socket.AF_INET6, False: socket.AF_INET}
        return [
            (families[":" in address], socket.SOCK_STREAM, socket.IPPROTO_TCP, "", (address, port))
            for address in self._names[host]
        ]


def simulate(work: Coroutine[Any, Any, None], *, names: Mapping[str, Sequence[str]] | None = None) -> None:
    """Run to the end what uses nothing but timers, and looks names up in ``names``, which may change meanwhile."""
    loop = _SimulatedLoop(names or {})
    try:
        loop.run_until_complete(work)
    finally:
        loop.close()
