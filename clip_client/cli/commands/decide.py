"""``clip-client decide``: tell, for good, that photos are different or all wanted."""

from __future__ import annotations

from typing import TYPE_CHECKING

from clip_client.cli.errors import CommandFailed, CommandMisused
from clip_client.cli.options.store import add_store_option, opened_store

if TYPE_CHECKING:
    import argparse


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command's options."""
    parser = commands.add_parser(
        "decide",
        help="remember that photos are different, or all wanted",
        description="Remember that photos are different pictures, or all wanted: no two of them are ever grouped "
        "again, wherever they move. A new copy of any of them is still found.",
    )
    parser.add_argument("what", choices=("different", "keep-all", "forget"), help="forget takes back what was said")
    parser.add_argument("paths", nargs="+", metavar="PHOTO", help="the photos, two or more (forget: one or more)")
    add_store_option(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Write the decision down."""
    from clip_client.dedup.files.hashing import hash_files
    from clip_client.dedup.text import counted

    try:
        contents = set(hash_files(arguments.paths).values())
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
    print(f"remembered: {counted(len(decision.contents), 'photo')}, {decision.what}")
    return 0
