"""``clip-client review``: decide about duplicates in the browser."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import Mapping
from functools import partial

from clip_client.cli.errors import need
from clip_client.cli.options.connection import add_model_options
from clip_client.cli.options.dedup import NO_PHOTO, SearchOptions, add_search_options, read_search_options, tell_changes
from clip_client.cli.options.paths import add_store_option, need_photos, opened_store
from clip_client.cli.output import progress_bars
from clip_client.dedup import DuplicateReport, Store, find_duplicates
from clip_client.dedup.types import OnProgress
from preprocess_ensemble.command_line import number_type


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "review",
        usage="%(prog)s [options] PATH ...",
        help="decide about duplicates in the browser",
        description="Search for duplicates as clip-client dedup does, and show them in the browser: compare photos, "
        "choose which ones stay, and move the others to the quarantine. Nothing moves before you apply your choices. "
        "The photos can also be searched by words. Only browsers on this computer that have the printed address can "
        "open the pages.",
        epilog="On another computer: ssh -L 8765:127.0.0.1:8765 HOST, then clip-client review --no-browser --port 8765 "
        "there, and open the printed address here.",
    )
    add_search_options(parser)
    add_store_option(parser)
    parser.add_argument(
        "--port",
        type=number_type(int, lambda port: 0 <= port <= 65535, expected="a port from 0 to 65535"),
        default=0,
        metavar="N",
        help="port of the pages (default: a free port)",
    )
    parser.add_argument("--no-browser", action="store_true", help="only print the address")
    add_model_options(parser)


def run(arguments: argparse.Namespace) -> int:
    need("rich", "starlette", "uvicorn", "jinja2", extras="cli,dedup,review")
    options = read_search_options(arguments)
    # Open the store twice: the search and the pages work at the same time, and only one thread may use a store.
    with opened_store(arguments.store) as for_search, opened_store(arguments.store) as for_pages:
        tell_changes(for_pages, partial(print, file=sys.stderr))
        asyncio.run(_serve(options, for_search, for_pages, arguments))
    return 0


async def _serve(options: SearchOptions, for_search: Store, for_pages: Store, arguments: argparse.Namespace) -> None:
    from clip_client.review.server import serve
    from clip_client.review.state.session import Session

    with progress_bars() as show:
        # Before a model is loaded, which may need a download.
        found = options.walk.scan(options.compare_by["references"], raw=True, show=show)
    need_photos(found, NO_PHOTO)

    def tell(what: str, done: int, _: int | None) -> None:
        if not done:
            print(f"clip-client: {what}", file=sys.stderr)

    async with options.connected(tell) as clip:

        async def search(on_progress: OnProgress) -> DuplicateReport:
            return await find_duplicates(clip, found, store=for_search, on_progress=on_progress, **options.compare_by)

        session = Session(for_pages, options.walk.paths)
        opens_browser = not arguments.no_browser and has_screen(sys.platform, os.environ)
        await serve(
            session, search, clip=clip, port=arguments.port, opens_browser=opens_browser, say=partial(print, flush=True)
        )


def has_screen(platform: str, environment: Mapping[str, str]) -> bool:
    """Tell whether a browser would open a window. Otherwise a text browser could take over the terminal."""
    if platform in ("win32", "darwin"):
        return "SSH_CONNECTION" not in environment
    return "DISPLAY" in environment or "WAYLAND_DISPLAY" in environment
