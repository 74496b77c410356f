"""``clip-client dedup``: find the duplicates among photos and report them."""

from __future__ import annotations

import argparse
import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

from clip_client.cli.connection import add_url_option, connected
from clip_client.cli.failure import CommandFailed, need
from clip_client.cli.output_file import check_place, replacing
from clip_client.cli.progress import progress_bars
from clip_client.cli.walk_options import add_walk_options

if TYPE_CHECKING:
    from collections.abc import Callable

    from clip_client.dedup import DuplicateReport


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command's options."""
    parser = commands.add_parser(
        "dedup",
        help="find photos that show the same",
        description="Find photos that show the same, and report them in groups. No photo is changed or removed.",
    )
    add_walk_options(parser)
    add_url_option(parser)
    parser.add_argument(
        "--threshold",
        type=_similarity,
        metavar="T",
        help="least cosine similarity to the kept photo, 0 to 1 (default: depends on the model)",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the groups as JSON")
    parser.add_argument("--report", type=Path, metavar="FILE.html", help="write a page that shows each group")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Search, write what was asked for, and print the groups."""
    need("rich", *(["jinja2"] if arguments.report else []))
    outputs: list[Path] = [path for path in (arguments.json, arguments.report) if path is not None]
    for path in outputs:
        check_place(path)
    from rich.console import Console

    from clip_client.dedup.table import print_report

    with progress_bars() as show:
        report = asyncio.run(_find(arguments, show))
        _write(report, arguments, show)
    console = Console()
    print_report(report, console)
    if report.compared == 0:
        raise CommandFailed("there is no photo to compare in what was named")
    for path in outputs:
        console.print(f"written: {path}", markup=False, highlight=False, soft_wrap=True)
    return 0


async def _find(arguments: argparse.Namespace, show: Callable[[str, int, int], None]) -> DuplicateReport:
    from clip_client.dedup import find_duplicates

    async with connected(arguments.url) as clip:
        return await find_duplicates(
            clip,
            arguments.paths,
            threshold=arguments.threshold,
            include_hidden=arguments.hidden,
            follow_links=arguments.follow_links,
            on_progress=show,
        )


def _write(report: DuplicateReport, arguments: argparse.Namespace, show: Callable[[str, int, int], None]) -> None:
    if arguments.json is not None:
        with replacing(arguments.json) as file:
            file.write(report.to_json().encode("ascii"))
    if arguments.report is not None:
        from clip_client.dedup.page import write_page

        with replacing(arguments.report) as file:
            write_page(report, file, on_progress=show)


def _similarity(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 1:
        raise argparse.ArgumentTypeError(f"a cosine similarity between 0 and 1 is needed, not {text!r}")
    return value
