"""The web server of a review, for this computer only."""

from __future__ import annotations

import asyncio
import socket
import webbrowser
from collections.abc import Callable
from typing import Final

import uvicorn
from anyio import CancelScope, to_thread

from clip_client.review.access import Access
from clip_client.review.app import review_app
from clip_client.review.state.applying import Worker
from clip_client.review.state.photo_search import PhotoSearch
from clip_client.review.state.session import Search, Session
from clip_client.search.query import QueryEmbedder
from preprocess_ensemble.errors import ReportedError

_HOST: Final = "127.0.0.1"


async def serve(
    session: Session,
    search: Search,
    *,
    clip: QueryEmbedder | None = None,
    port: int = 0,
    opens_browser: bool = False,
    say: Callable[[str], None] = print,
) -> None:
    """Serve the pages, and run ``search`` for them. Returns after SIGINT or SIGTERM.

    ``clip`` embeds the queries of the pages; without it the pages cannot search by words. ``port`` 0 takes a free port.
    ``say`` gets the address, whose path is a secret. Raises ReportedError if the port cannot be used.
    """
    worker = Worker(session)
    access = Access(review_app(session, worker, None if clip is None else PhotoSearch(session, clip)))
    with _listening(port) as listener:
        address = f"http://{_HOST}:{listener.getsockname()[1]}"
        config = uvicorn.Config(
            access,
            http="h11",
            ws="none",
            lifespan="off",
            log_level="warning",
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_graceful_shutdown=2,
        )
        say(f"review: {address}{access.path}")
        search_scope = CancelScope()

        async def search_in_scope() -> None:
            # Cancelling a scope waits for its thread, which may use a store of the caller.
            with search_scope:
                await session.search(search)

        searching = asyncio.create_task(search_in_scope())
        if opens_browser:
            # Open it in a thread: the call may start a browser and wait for it.
            asyncio.get_running_loop().run_in_executor(None, webbrowser.open, address + access.path_for_once)
        server = uvicorn.Server(config)
        try:
            await server.serve(sockets=[listener])
        finally:
            with CancelScope(shield=True):
                # uvicorn cleans up only after a signal, so end everything here.
                for listening in server.servers if server.started else ():
                    listening.close()
                session.stop()
                search_scope.cancel()
                requests = list(server.server_state.tasks)
                for task in requests:
                    task.cancel()
                await asyncio.wait([searching, *requests])
                await to_thread.run_sync(worker.join)
                # By now connections that asyncio was still accepting are open, too.
                for connection in list(server.server_state.connections):
                    connection.transport.abort()


def _listening(port: int) -> socket.socket:
    # Name the protocol, so that asyncio turns Nagle's algorithm off, which costs 40 ms for each answer.
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((_HOST, port))
        listener.listen()
    except OSError as error:
        listener.close()
        raise ReportedError(f"port {port} cannot be used ({error.strerror}); choose another with --port") from None
    return listener
