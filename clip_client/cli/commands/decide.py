"""``clip-client decide``: record that photos are different or all wanted."""

from __future__ import annotations

import argparse
import os

from clip_client.cli.errors import CommandFailed, CommandMisused
from clip_client.cli.options.store import add_store_option, opened_store
from clip_client.dedup.files.hashing import hash_files
from clip_client.dedup.text import counted


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command's options."""
    parser = commands.add_parser(
        "decide",
        usage="%(prog)s [options] {different,keep-all,forget} PHOTO ...",
        help="record that photos are different, or all wanted",
        description="Record that photos are different pictures, or that you want to keep all of them. They are never "
        "grouped with each other again, wherever you move them. New copies of any of them are still found.",
    )
    parser.add_argument(
        "what",
        choices=("different", "keep-all", "forget"),
        help="the decision; forget removes every decision about the photos",
    )
    parser.add_argument("paths", nargs="+", metavar="PHOTO", help="two or more photos (forget: one or more)")
    add_store_option(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Record the decision."""
    try:
        contents = set(hash_files(map(os.path.expanduser, arguments.paths)).values())
    except OSError as error:
        raise CommandFailed(str(error)) from None
    with opened_store(arguments.store) as store:
        if arguments.what == "forget":
            print(f"{counted(store.decisions.forget(contents), 'decision')} forgotten")
            return 0
        try:
            decision = store.decisions.add(arguments.what, contents)
        except ValueError as error:
            raise CommandMisused(str(error)) from None
    print(f"recorded: {counted(len(decision.contents), 'photo')}, {decision.what}")
    return 0
