"""``clip-client index``: copy the vectors of photos into a collection of Qdrant."""

from __future__ import annotations

import argparse
import asyncio
import json
from typing import TYPE_CHECKING

from anyio import to_thread

from clip_client.cli.errors import CommandMisused, need
from clip_client.cli.options.connection import add_model_options, client_config, connected
from clip_client.cli.options.place import Where, add_place_options
from clip_client.cli.output import ProgressBars, progress_bars
from clip_client.dedup.text import counted

if TYPE_CHECKING:
    from clip_client.dedup import Store
    from clip_client.search.qdrant import QdrantCollection


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command's options."""
    parser = commands.add_parser(
        "index",
        usage="%(prog)s [options] --to qdrant://HOST/COLLECTION",
        help="copy vectors into Qdrant, for photos that are too many for one machine",
        description="Copy the vectors of photos, with what is known of the photos, into a collection of Qdrant; photos "
        "in folders that you name are embedded first. clip-client search --in qdrant://HOST/COLLECTION searches it.",
        epilog="The environment variable QDRANT_API_KEY holds the key of the server, if it needs one.",
    )
    parser.add_argument(
        "--to",
        required=True,
        metavar="ADDRESS",
        help="qdrant://HOST:PORT/COLLECTION, or qdrants:// with TLS (default port: 6333)",
    )
    add_place_options(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")
    add_model_options(parser)


def run(arguments: argparse.Namespace) -> int:
    """Copy, and say how many photos there are."""
    need("rich", "pyarrow", "faiss", "defusedxml", "qdrant_client", extras="cli,dedup,qdrant")
    from clip_client.search.qdrant import QdrantCollection

    places = Where.of(arguments.places, arguments.store)
    if places.qdrant:
        raise CommandMisused(
            "--in names what to copy from: a folder of photos, a store, or what clip-client embed wrote"
        )
    with QdrantCollection(arguments.to) as collection, places.opened_store() as store, progress_bars() as show:
        photos = asyncio.run(_fill(arguments, collection, places, store, show))
    print(
        json.dumps({"to": arguments.to, "photos": photos}) if arguments.json else f"{counted(photos, 'photo')} copied"
    )
    return 0


async def _fill(
    arguments: argparse.Namespace, collection: QdrantCollection, places: Where, store: Store | None, show: ProgressBars
) -> int:
    async with connected(client_config(arguments)) as clip:
        place = await places.opened(clip, store, show)
    return await to_thread.run_sync(collection.fill, place, show)
