"""``clip-client dedup``: find duplicates among photos, report them, and move them if asked to."""

from __future__ import annotations

import argparse
import asyncio
import io
import sys
from contextlib import redirect_stdout
from dataclasses import replace

from clip_client.cli.commands.dedup_apply import apply_report
from clip_client.cli.errors import CommandFailed, CommandMisused, need
from clip_client.cli.options.connection import cluster_config, uses_ray
from clip_client.cli.options.dedup import (
    NO_PHOTO,
    ActionOptions,
    SearchOptions,
    add_dedup_options,
    read_action_options,
    read_search_options,
    tell_changes,
)
from clip_client.cli.options.paths import need_photos, opened_store
from clip_client.cli.output import STDOUT, ProgressBars, locked, output, progress_bars, write_json, write_text
from clip_client.dedup import DuplicateReport, Scan, Store, find_duplicates
from clip_client.dedup.actions.apple_photos_album import check_photos
from clip_client.dedup.features.preview import can_read_raw, thumbnail
from clip_client.dedup.pages.html import apply_command, write_page
from clip_client.dedup.pages.rows import copy_lines, csv_lines


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "dedup",
        usage="%(prog)s [options] PATH ...",
        help="find duplicate photos",
        description="Find photos that show the same picture. With --apply, duplicates move to a quarantine, and "
        "clip-client undo restores them; without it, all files stay as they are.",
        epilog="A terminal shows the ten groups whose copies take the most space. Other outputs have one line for "
        "each copy, with tabs between these columns: the tier, the size in bytes, the copy, the photo it is a copy of, "
        "and whether it moves by default or on request. In paths a backslash is written twice, and each byte that "
        "cannot be printed as \\xNN; printf %b gives the path back.",
    )
    add_dedup_options(parser)


def run(arguments: argparse.Namespace) -> int:
    on_ray = uses_ray(arguments)
    need("rich", *(["jinja2"] if arguments.report else []), extras="cli,dedup")
    options, action = read_search_options(arguments), read_action_options(arguments)
    options = replace(options, compare_by={**options.compare_by, "merge_metadata": action.merge_metadata})
    if on_ray and options.without_model:
        raise CommandMisused(
            "--engine ray embeds on a cluster, and --without-model embeds nothing: leave out --engine or "
            "--without-model"
        )
    printer = _Printer(arguments)
    with progress_bars(quiet=options.quiet) as show:
        found = options.walk.scan(options.compare_by["references"], raw=True, show=show)
    need_photos(found, NO_PHOTO, printer.notes)
    if action.apply and found.in_libraries:
        check_photos()
    with opened_store(arguments.store) as store:
        if not options.quiet:
            tell_changes(store, printer.say)
        with progress_bars(quiet=options.quiet) as show:
            if on_ray:
                report = _search_on_ray(found, options, store, show, arguments)
            else:
                report = asyncio.run(_search(found, options, store, show))
            _write(report, arguments, action, show)
        explained = printer.print_report(report, lists_groups=not action.is_chosen)
        return apply_report(
            report, options.walk.paths, store, action, say=printer.say, verbose=arguments.verbose, explained=explained
        )


async def _search(found: Scan, options: SearchOptions, store: Store, show: ProgressBars) -> DuplicateReport:
    async with options.connected(show) as clip:
        return await find_duplicates(clip, found, store=store, on_progress=show, **options.compare_by)


def _search_on_ray(
    found: Scan, options: SearchOptions, store: Store, show: ProgressBars, arguments: argparse.Namespace
) -> DuplicateReport:
    from clip_client.distributed.cluster import cluster
    from clip_client.distributed.store_search import cluster_folder, fill_store, find_on_cluster

    options = replace(options, config=cluster_config(arguments, options.config))

    async def search() -> DuplicateReport:
        async with options.connected(show) as clip:
            return await find_on_cluster(clip, model, found, store, on_progress=show, **options.compare_by)

    # Silence the thread of Ray that prints messages of its daemons, because standard output is for the report.
    with redirect_stdout(io.StringIO()), locked(cluster_folder(store)), cluster(arguments.address):
        model = fill_store(
            found.files,
            store,
            options.config,
            workers=arguments.workers,
            on_progress=lambda done, total: show("embedding on Ray", done, total),
        )
        return asyncio.run(search())


def _write(report: DuplicateReport, arguments: argparse.Namespace, action: ActionOptions, show: ProgressBars) -> None:
    if arguments.json is not None:
        write_json(arguments.json, report.to_mapping())
    if arguments.csv is not None:
        write_text(arguments.csv, csv_lines(report))
    if arguments.report is not None:
        offered = {"apply": apply_command(arguments.words), "tiers": action.moving_tiers, "store": arguments.store}
        offered["is_applied"] = action.apply and not action.is_chosen
        with output(arguments.report) as file:
            write_page(report, file, thumbnail=thumbnail, page=arguments.report, on_progress=show, **offered)


class _Printer:
    """Prints to a terminal groups and notes; elsewhere one line for each copy, with the notes on standard error.

    If a report goes to ``-``, that is, to standard output, it prints no lines.
    """

    def __init__(self, arguments: argparse.Namespace) -> None:
        from rich.console import Console

        self._arguments = arguments
        self._owns_stdout = STDOUT not in arguments.outputs and not arguments.quiet
        self._is_terminal = self._owns_stdout and sys.stdout.isatty()
        self.notes = Console(quiet=arguments.quiet, stderr=not self._is_terminal)

    def say(self, line: str) -> None:
        self.notes.print(line, markup=False, highlight=False, soft_wrap=True)

    def print_report(self, report: DuplicateReport, *, lists_groups: bool) -> dict[str, str]:
        """Print the results; return path -> printed reason to stay. Raises CommandFailed if nothing was compared.

        Without ``lists_groups`` a terminal shows no groups, because a person may have chosen another photo to keep.
        """
        from clip_client.dedup.pages.terminal import print_groups, print_notes

        explained = {}
        if self._is_terminal:
            explained = print_groups(report, self.notes, verbose=self._arguments.verbose) if lists_groups else {}
        elif self._owns_stdout:
            for line in copy_lines(report):
                print(line)
            # Flush, so that notes on the same screen come after the lines.
            sys.stdout.flush()
        print_notes(report, self.notes, can_read_raw=can_read_raw(), verbose=self._arguments.verbose)
        if report.compared == 0 and not report.groups:
            raise CommandFailed(NO_PHOTO)
        for path in self._arguments.outputs:
            if path != STDOUT:
                self.say(f"written: {path}")
        return explained
