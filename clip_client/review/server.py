"""The web server around a review: on this computer only, until it is interrupted."""

from __future__ import annotations

import asyncio
import socket
import webbrowser
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import uvicorn
from anyio import CancelScope, to_thread

from clip_client.review.access import Access
from clip_client.review.app import review_app
from clip_client.review.state.applying import Worker
from clip_client.review.state.photo_search import PhotoSearch
from preprocess_ensemble.errors import ReportedError

if TYPE_CHECKING:
    from clip_client.review.state.session import Search, Session
    from clip_client.search.query import QueryEmbedder

HOST: Final = "127.0.0.1"
_PATIENCE_S: Final = 2
"""How long open connections may keep the server from ending."""


class CannotListen(ReportedError):
    """The port cannot be used; the message says why."""


async def serve(
    session: Session,
    search: Search,
    *,
    clip: QueryEmbedder | None = None,
    port: int = 0,
    opens_browser: bool = False,
    say: Callable[[str], None] = print,
) -> None:
    """Serve the pages, and run ``search`` for them. Returns when the process is told to end by SIGINT or SIGTERM.

    ``clip`` embeds what the pages search for; without it they cannot. ``port`` 0 takes a free one. ``say`` gets the
    address, whose path is a secret. Raises CannotListen.
    """
    worker = Worker(session)
    with _listening(port) as listener:
        port = listener.getsockname()[1]
        address = f"http://{HOST}:{port}"
        photos = None if clip is None else PhotoSearch(session, clip)
        access = Access(review_app(session, worker, photos))
        config = uvicorn.Config(
            access,
            http="h11",
            ws="none",
            lifespan="off",
            log_level="warning",
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_graceful_shutdown=_PATIENCE_S,
        )
        say(f"review: {address}{access.path}")
        searching = asyncio.create_task(session.search(search))
        if opens_browser:
            # It may start a browser and wait for it.
            asyncio.get_running_loop().run_in_executor(None, webbrowser.open, address + access.path_for_once)
        server = uvicorn.Server(config)
        try:
            await server.serve(sockets=[listener])
        finally:
            with CancelScope(shield=True):
                # uvicorn ends them only after a signal.
                for connection in list(server.server_state.connections):
                    connection.transport.abort()
                ending = [searching, *server.server_state.tasks]
                session.stop()
                for task in ending:
                    task.cancel()
                await asyncio.wait(ending)
                await to_thread.run_sync(worker.join)


def _listening(port: int) -> socket.socket:
    # asyncio turns Nagle's algorithm off, which costs 40 ms for each answer, only if the protocol is named.
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((HOST, port))
        listener.listen()
    except OSError as error:
        listener.close()
        raise CannotListen(f"port {port} cannot be used ({error.strerror}); choose another with --port") from None
    return listener
