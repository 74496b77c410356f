"""``clip-client dedup``: find the duplicates among photos and report them."""

from __future__ import annotations

import argparse
import asyncio
import os
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final

from clip_client.cli.commands.dedup_apply import act, check_action, check_asked_for
from clip_client.cli.errors import CommandFailed, CommandMisused, need
from clip_client.cli.options.connection import add_model_options, connected
from clip_client.cli.options.paths import add_walk_options, named_paths, scan_named
from clip_client.cli.options.store import add_store_option, opened_store
from clip_client.cli.output.output_file import check_place, replacing
from clip_client.cli.output.progress import progress_bars

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from clip_client.dedup import DuplicateReport, Scan, Store

_NOTHING: Final = "there is no photo to compare in what was named"


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command's options."""
    parser = commands.add_parser(
        "dedup",
        help="find photos that show the same",
        description="Find photos that show the same, and report them in groups. Nothing is changed unless --apply is "
        "given, and then copies move to a quarantine from where clip-client undo brings them back.",
    )
    add_walk_options(parser)
    add_model_options(parser)
    parser.add_argument(
        "--threshold",
        type=_similarity,
        metavar="T",
        help="least cosine similarity to the kept photo, 0 to 1 (default: depends on the model)",
    )
    parser.add_argument(
        "--near-identical",
        type=_similarity,
        metavar="T",
        help="least cosine similarity between any two photos of a group of that tier (default: depends on the model)",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the groups as JSON")
    parser.add_argument("--report", type=Path, metavar="FILE.html", help="write a page that shows each group")
    add_store_option(parser)
    _add_choice_options(parser)
    parser.set_defaults(run=run)


def _add_choice_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--hash-bits",
        type=int,
        choices=range(-1, 17),
        default=3,
        metavar="N",
        help="photos are also alike where at most N of 64 bits of their perceptual hashes differ; -1 turns this off "
        "(default: 3)",
    )
    parser.add_argument(
        "--reference",
        action="append",
        default=[],
        metavar="DIR",
        help="a folder that is searched, too, whose photos are kept and never moved; may be given again",
    )
    parser.add_argument(
        "--keep",
        action="append",
        metavar="RULE",
        help="which photo of a group is kept; may be given again, the first rule that tells two photos apart decides. "
        "RULE is reference, original (as a camera wrote it), companions, pixels, bytes, metadata, oldest, name (no "
        "copy mark), newest, format=A,B, path=PATTERN or not-path=PATTERN (default: the first eight, in this order; "
        "oldest and name decide in the end anyway)",
    )
    doing = parser.add_mutually_exclusive_group()
    doing.add_argument("--apply", action="store_true", help="move the copies that are sure to the quarantine")
    doing.add_argument("--dry-run", action="store_true", help="say what --apply would move, and move nothing")
    parser.add_argument(
        "--act-on",
        action="append",
        metavar="TIER",
        help="what --apply moves: exact, same-pixels, near-identical or similar; may be given again (default: exact "
        "and same-pixels). Frames of a burst and other moments of a scene are never moved",
    )
    parser.add_argument(
        "--hard-link",
        action="store_true",
        help="with --apply: leave a hard link to the kept file where an exact copy was",
    )
    parser.add_argument(
        "--merge-metadata",
        action="store_true",
        help="with --apply: write the date, GPS position, rating, keywords, title and caption that a copy has and the "
        "kept photo lacks into an XMP sidecar beside the kept photo; without it such a copy stays",
    )


def run(arguments: argparse.Namespace) -> int:
    """Search, write what was asked for, print the groups, and act."""
    need("rich", *(["jinja2"] if arguments.report else []))
    if find_spec("imagehash") is None:  # only looked for: it loads SciPy, which a second search does without
        need("imagehash", extra="dedup")
    need("defusedxml", extra="dedup")
    outputs: list[Path] = [path for path in (arguments.json, arguments.report) if path is not None]
    _check_outputs(outputs)
    rules = _keep_rules(arguments)
    _check_thresholds(arguments)
    check_asked_for(arguments)
    _check_references(arguments)
    paths = named_paths(arguments)
    from rich.console import Console

    from clip_client.dedup.reporting.terminal import print_failed, print_report, print_skipped

    console = Console()
    with progress_bars() as show:
        show("looking for photos", 0, None)
        found = scan_named(arguments, [*paths, *arguments.reference], raw=True, show=show)
    if not found.files:
        # Said before a server is looked for or a model is loaded: there is nothing for them to do.
        print_failed(found.failed, console)
        print_skipped(found.skipped, console)
        raise CommandFailed(_NOTHING)
    check_action(arguments, found)
    with opened_store(arguments.store) as store:
        with progress_bars() as show:
            report = asyncio.run(_find(found, arguments, rules, store, show))
            _write(report, arguments, show)
        print_report(report, console)
        if report.compared == 0 and not report.groups:
            raise CommandFailed(_NOTHING)
        for path in outputs:
            console.print(f"written: {path}", markup=False, highlight=False, soft_wrap=True)
        return act(report, paths, store, arguments)


def _check_outputs(outputs: Sequence[Path]) -> None:
    """Raise where a report cannot be written, or must not: a shell makes ``--json a.jpg b.jpg`` of ``--json *.jpg``."""
    from clip_client.dedup.files.file_types import COMPANION_KINDS, PHOTO_SUFFIXES, suffix_of

    for path in outputs:
        check_place(path)
        if suffix_of(path.name) in PHOTO_SUFFIXES | COMPANION_KINDS.keys():
            raise CommandMisused(
                f"{path} would be replaced by a report, and has the name of a photo or what belongs to one"
            )
    if len(set(map(os.path.abspath, outputs))) < len(outputs):
        raise CommandMisused(f"--json and --report would both write {outputs[0]}")


def _keep_rules(arguments: argparse.Namespace) -> tuple[str, ...]:
    from clip_client.dedup.compare.keep_rules import DEFAULT_RULES, KeepRules

    try:
        return KeepRules(arguments.keep or DEFAULT_RULES).names
    except ValueError as error:
        raise CommandMisused(str(error)) from None


def _check_thresholds(arguments: argparse.Namespace) -> None:
    if None not in (arguments.threshold, arguments.near_identical) and arguments.near_identical < arguments.threshold:
        raise CommandMisused("--near-identical is the stricter of the two, and is below --threshold")


def _check_references(arguments: argparse.Namespace) -> None:
    """Raise CommandFailed for a folder that is not there: misspelt, --apply would move what should stay."""
    for folder in arguments.reference:
        if not os.path.exists(folder):
            raise CommandFailed(f"there is no folder {folder}: see --reference")


async def _find(
    found: Scan,
    arguments: argparse.Namespace,
    rules: tuple[str, ...],
    store: Store,
    show: Callable[[str, int, int | None], None],
) -> DuplicateReport:
    from clip_client.dedup import find_duplicates

    async with connected(arguments) as clip:
        check_asked_for(arguments, (await clip.model()).id)
        return await find_duplicates(
            clip,
            found,
            threshold=arguments.threshold,
            near_identical=arguments.near_identical,
            hash_bits=arguments.hash_bits,
            references=arguments.reference,
            keep=rules,
            store=store,
            on_progress=show,
        )


def _write(
    report: DuplicateReport, arguments: argparse.Namespace, show: Callable[[str, int, int | None], None]
) -> None:
    if arguments.json is not None:
        with replacing(arguments.json) as file:
            file.write(report.to_json().encode("ascii"))
    if arguments.report is not None:
        from clip_client.dedup.reporting.html import write_page

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
