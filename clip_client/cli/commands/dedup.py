"""``clip-client dedup``: find duplicates among photos, report them, and move them if asked to."""

from __future__ import annotations

import argparse
import asyncio
from typing import TYPE_CHECKING, Final

from clip_client.cli.errors import CommandFailed
from clip_client.cli.options.connection import connected
from clip_client.cli.options.dedup import DedupOptions, add_dedup_options, check_action_tiers, read_dedup_options
from clip_client.cli.options.store import opened_store
from clip_client.cli.output.output_file import replacing
from clip_client.cli.output.progress import ProgressBars, progress_bars
from clip_client.dedup import DuplicateReport, Scan, Store, find_duplicates
from clip_client.dedup.features.preview import can_read_raw, thumbnail

if TYPE_CHECKING:
    from rich.console import Console

_NOTHING: Final = "there is no photo to compare in the given paths"


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command's options."""
    parser = commands.add_parser(
        "dedup",
        help="find duplicate photos",
        description="Find photos that show the same picture and report them in groups. Nothing changes unless you give "
        "--apply: then duplicates move to a quarantine, and clip-client undo restores them.",
    )
    add_dedup_options(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Parse, scan, search, report, apply; return the exit code."""
    from rich.console import Console

    from clip_client.cli.commands.dedup_apply import apply_report

    options = read_dedup_options(arguments)
    console = Console()
    found = _scan(options, console)
    with opened_store(options.store) as store:
        with progress_bars() as show:
            report = asyncio.run(_search(found, options, store, show))
            _write(report, options, show)
        _print(report, options, console)
        return apply_report(report, options.walk.paths, store, options.action)


def _scan(options: DedupOptions, console: Console) -> Scan:
    """Find the photos, before a server or a model is needed.

    Raises CommandFailed if there are none, and NoAlbum if ``--apply`` needs an album of Apple Photos that cannot be
    filled.
    """
    from clip_client.dedup.reporting.terminal import print_failed, print_skipped

    with progress_bars() as show:
        found = options.walk.scan(options.references, raw=True, show=show)
    if not found.files:
        print_failed(found.failed, console)
        print_skipped(found.skipped, console)
        raise CommandFailed(_NOTHING)
    if options.action.apply and found.in_libraries:
        from clip_client.dedup.actions.apple_photos_album import check_photos

        check_photos()
    return found


async def _search(found: Scan, options: DedupOptions, store: Store, show: ProgressBars) -> DuplicateReport:
    async with connected(options.config) as clip:
        check_action_tiers(options.action, (await clip.model()).id)
        return await find_duplicates(
            clip,
            found,
            threshold=options.threshold,
            near_identical=options.near_identical,
            hash_bits=options.hash_bits,
            references=options.references,
            keep=options.keep,
            store=store,
            on_progress=show,
        )


def _write(report: DuplicateReport, options: DedupOptions, show: ProgressBars) -> None:
    if options.json is not None:
        with replacing(options.json) as file:
            file.write(report.to_json().encode("ascii"))
    if options.page is not None:
        from clip_client.dedup.reporting.html import write_page

        with replacing(options.page) as file:
            write_page(report, file, thumbnail=thumbnail, on_progress=show)


def _print(report: DuplicateReport, options: DedupOptions, console: Console) -> None:
    from clip_client.dedup.reporting.terminal import print_report

    print_report(report, console, can_read_raw=can_read_raw())
    if report.compared == 0 and not report.groups:
        raise CommandFailed(_NOTHING)
    for path in options.outputs:
        console.print(f"written: {path}", markup=False, highlight=False, soft_wrap=True)
