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
        search_scope = CancelScope()
        searching = asyncio.create_task(_search(session, search, search_scope))
        if opens_browser:
            # It may start a browser and wait for it.
            asyncio.get_running_loop().run_in_executor(None, webbrowser.open, address + access.path_for_once)
        server = uvicorn.Server(config)
        try:
            await server.serve(sockets=[listener])
        finally:
            with CancelScope(shield=True):
                # uvicorn ends all of it only after a signal.
                for listening in server.servers if server.started else ():
                    listening.close()
                session.stop()
                search_scope.cancel()
                requests = list(server.server_state.tasks)
                for task in requests:
                    task.cancel()
                await asyncio.wait([searching, *requests])
                await to_thread.run_sync(worker.join)
                # Only now are those open that asyncio was accepting.
                for connection in list(server.server_state.connections):
                    connection.transport.abort()


async def _search(session: Session, search: Search, scope: CancelScope) -> None:
    """Unlike the cancelling of a task, that of a scope waits for a thread, which may use a store of the caller."""
    with scope:
        await session.search(search)


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
