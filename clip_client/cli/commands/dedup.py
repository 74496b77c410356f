"""``clip-client dedup``: find duplicates among photos, report them, and move them if asked to."""

from __future__ import annotations

import argparse
import asyncio
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

from clip_client.cli.errors import CommandFailed
from clip_client.cli.options.dedup import DedupOptions, add_dedup_options, check_action_tiers, read_dedup_options
from clip_client.cli.options.search import NO_PHOTO
from clip_client.cli.options.store import opened_store
from clip_client.cli.output.output_file import STDOUT, locked, output
from clip_client.cli.output.progress import ProgressBars, progress_bars
from clip_client.dedup.features.preview import can_read_raw, thumbnail
from clip_client.dedup.search import group_contents
from clip_client.dedup.types import NO_MODEL

if TYPE_CHECKING:
    from collections.abc import Sequence

    from clip_client.cli.options.engine import EngineOptions
    from clip_client.dedup import DuplicateReport, Scan, Store
    from clip_client.dedup.search import GroupContents


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command's options."""
    parser = commands.add_parser(
        "dedup",
        usage="%(prog)s [options] PATH ...",
        help="find duplicate photos",
        description="Find photos that show the same picture. Nothing changes unless you give --apply: then duplicates "
        "move to a quarantine, and clip-client undo restores them.",
        epilog="A terminal shows the ten groups whose copies take the most space. If the output goes elsewhere, it "
        "has one line for each copy, with tabs between the tier, the size in bytes, the copy, the photo for which it "
        "moves, and whether it moves by default or on request. In these paths a backslash is written twice, and each "
        "byte that cannot be printed as \\xNN; printf %b gives the path back.",
    )
    add_dedup_options(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Parse, scan, search, report, apply; return the exit code."""
    from clip_client.cli.commands.dedup_apply import apply_report

    options = read_dedup_options(arguments)
    printer = _Printer(options)
    found = _scan(options, printer)
    with opened_store(options.store) as store:
        with progress_bars(quiet=options.quiet) as show:
            if options.engine is None:
                report = asyncio.run(_search(found, options, store, show))
            else:
                report = _search_on_ray(found, options, options.engine, store, show)
            _write(report, options, show, arguments.words)
        printer.print_report(report)
        return apply_report(report, options.search.walk.paths, store, options.action, say=printer.say)


def _scan(options: DedupOptions, printer: _Printer) -> Scan:
    """Find the photos, before a server or a model is needed.

    Raises CommandFailed if there are none, or if a path on the command line names nothing; and NoAlbum if ``--apply``
    needs an album of Apple Photos that cannot be filled.
    """
    from clip_client.dedup.reporting.terminal import print_failed, print_skipped

    options.search.walk.check_named()
    with progress_bars(quiet=options.quiet) as show:
        found = options.search.scan(show)
    if not found.files:
        print_failed(found.failed, printer.notes)
        print_skipped(found.skipped, printer.notes)
        raise CommandFailed(NO_PHOTO)
    if options.action.apply and found.in_libraries:
        from clip_client.dedup.actions.apple_photos_album import check_photos

        check_photos()
    return found


async def _search(
    found: Scan,
    options: DedupOptions,
    store: Store,
    show: ProgressBars,
    group: GroupContents = group_contents,
) -> DuplicateReport:
    async with options.search.connected(quiet=options.quiet) as clip:
        check_action_tiers(options.action, NO_MODEL if clip is None else (await clip.model()).id)
        return await options.search.find(clip, found, store, show, group, options=options.action.moves)


def _search_on_ray(
    found: Scan, options: DedupOptions, engine: EngineOptions, store: Store, show: ProgressBars
) -> DuplicateReport:
    """Let a cluster read, embed and compare the photos. The search finds what was read in the store."""
    from clip_client.distributed.cluster import cluster
    from clip_client.distributed.store_search import cluster_folder, fill_store, grouping_on

    config = engine.servers(options.search.config, quiet=options.quiet)
    with locked(cluster_folder(store)), cluster(engine.address):
        model = fill_store(
            found.files,
            store,
            config,
            workers=engine.workers,
            on_progress=lambda done, total: show("embedding on Ray", done, total),
        )
        search = replace(options.search, config=config)
        return asyncio.run(_search(found, replace(options, search=search), store, show, grouping_on(model)))


def _write(report: DuplicateReport, options: DedupOptions, show: ProgressBars, words: Sequence[str]) -> None:
    if options.json is not None:
        with output(options.json) as file:
            file.write(report.to_json().encode("ascii"))
    if options.csv is not None:
        from clip_client.dedup.reporting.rows import csv_lines

        with output(options.csv) as file:
            file.writelines(lines.encode() for lines in csv_lines(report))
    if options.page is not None:
        from clip_client.dedup.reporting.html import PageCommands, write_page
        from clip_client.dedup.reporting.previews import previews_folder

        commands = PageCommands.after(words, store=options.store, tiers=options.action.moving_tiers)
        with output(options.page) as file:
            write_page(
                report,
                file,
                thumbnail=thumbnail,
                folder=previews_folder(options.page),
                commands=commands,
                on_progress=show,
            )


class _Printer:
    """Prints what people read.

    In a terminal that is everything. Otherwise standard output has a line for each copy, or what ``--json -`` or
    ``--csv -`` writes, and notes go to standard error.
    """

    def __init__(self, options: DedupOptions) -> None:
        from rich.console import Console

        self._options = options
        self._owns_stdout = STDOUT not in options.outputs and not options.quiet
        self._is_terminal = self._owns_stdout and sys.stdout.isatty()
        self.notes = Console(quiet=options.quiet, stderr=not self._is_terminal)

    def say(self, line: str) -> None:
        self.notes.print(line, markup=False, highlight=False, soft_wrap=True)

    def print_report(self, report: DuplicateReport) -> None:
        """Raises CommandFailed if there was nothing to compare."""
        from clip_client.dedup.reporting.rows import copy_lines
        from clip_client.dedup.reporting.terminal import print_groups, print_notes

        if self._is_terminal:
            print_groups(report, self.notes, verbose=self._options.verbose)
        elif self._owns_stdout:
            for line in copy_lines(report):
                print(line)
            # Notes on the same screen come after the lines.
            sys.stdout.flush()
        print_notes(report, self.notes, can_read_raw=can_read_raw(), verbose=self._options.verbose)
        if report.compared == 0 and not report.groups:
            raise CommandFailed(NO_PHOTO)
        for path in self._options.outputs:
            if path != STDOUT:
                self.say(f"written: {path}")
