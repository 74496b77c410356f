"""The options of ``clip-client dedup``: parsed and checked once, before anything is read."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from clip_client.cli.errors import CommandFailed, CommandMisused, need
from clip_client.cli.options.connection import add_model_options, read_config
from clip_client.cli.options.numbers import number_type
from clip_client.cli.options.paths import WalkOptions, add_walk_options, read_walk_options, user_path
from clip_client.cli.options.store import add_store_option
from clip_client.cli.output.output_file import STDOUT, check_place
from clip_client.dedup.compare.keep_rules import DEFAULT_RULES, KeepRules
from clip_client.dedup.files.file_types import COMPANION_KINDS, PHOTO_SUFFIXES, suffix_of
from clip_client.dedup.types import EXACT

if TYPE_CHECKING:
    from clip_client import ClientConfig

_SIMILARITY: Final = number_type(float, lambda value: 0 <= value <= 1, expected="a cosine similarity between 0 and 1")


@dataclass(frozen=True, kw_only=True)
class ActionOptions:
    """What to do with the duplicates that were found."""

    tiers: tuple[str, ...] = ()
    """Tiers to move; empty for the default."""
    apply: bool = False
    dry_run: bool = False
    hard_link: bool = False
    merge_metadata: bool = False
    store: Path | None = None
    """The store that ``--store`` names, which undo has to be told."""


@dataclass(frozen=True, kw_only=True)
class DedupOptions:
    """Everything that the command line says."""

    walk: WalkOptions
    config: ClientConfig
    references: tuple[str, ...]
    keep: tuple[str, ...]
    threshold: float | None
    near_identical: float | None
    hash_bits: int
    json: Path | None
    csv: Path | None
    page: Path | None
    quiet: bool
    verbose: bool
    store: Path | None
    action: ActionOptions

    @property
    def outputs(self) -> tuple[Path, ...]:
        """The files to write."""
        return tuple(path for path in (self.json, self.csv, self.page) if path is not None)


def add_dedup_options(parser: argparse.ArgumentParser) -> None:
    """Add every option of the command."""
    add_walk_options(parser)
    add_store_option(parser)
    _add_search_options(parser.add_argument_group("search"))
    _add_output_options(parser.add_argument_group("reports"))
    _add_action_options(parser.add_argument_group("moving duplicates"))
    add_model_options(parser)


def read_dedup_options(arguments: argparse.Namespace) -> DedupOptions:
    """Check the parsed arguments.

    Raises CommandMisused for options that contradict each other, and CommandFailed for a missing package, reference
    folder or output folder.
    """
    need("rich", *(["jinja2"] if arguments.report else []))
    need("defusedxml", extra="dedup")
    options = DedupOptions(
        walk=read_walk_options(arguments),
        config=read_config(arguments),
        references=tuple(map(os.path.expanduser, arguments.reference)),
        keep=_keep_rules(arguments),
        threshold=arguments.threshold,
        near_identical=arguments.near_identical,
        hash_bits=arguments.hash_bits,
        json=arguments.json,
        csv=arguments.csv,
        quiet=arguments.quiet,
        verbose=arguments.verbose,
        page=arguments.report,
        store=arguments.store,
        action=ActionOptions(
            tiers=tuple(arguments.act_on or ()),
            apply=arguments.apply,
            dry_run=arguments.dry_run,
            hard_link=arguments.hard_link,
            merge_metadata=arguments.merge_metadata,
            store=arguments.store,
        ),
    )
    _check_outputs(options.outputs)
    if arguments.near_identical is not None and arguments.near_identical < (options.threshold or 0):
        raise CommandMisused("--near-identical must not be below --threshold")
    check_action_tiers(options.action)
    if options.action.hard_link and set(options.action.tiers) - {EXACT}:
        raise CommandMisused(
            f"--hard-link only replaces copies of the same bytes: the only tier for it is --act-on {EXACT}"
        )
    for folder in options.references:
        # A misspelt reference folder would let --apply move what should stay.
        if not os.path.exists(folder):
            raise CommandFailed(f"there is no folder {folder}: see --reference")
    return options


def _add_search_options(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--threshold",
        type=_SIMILARITY,
        metavar="T",
        help="minimum cosine similarity to the kept photo, 0 to 1 (default: depends on the model)",
    )
    group.add_argument(
        "--near-identical",
        type=_SIMILARITY,
        metavar="T",
        help="minimum cosine similarity between any two photos of a near-identical group (default: depends on the "
        "model)",
    )
    group.add_argument(
        "--hash-bits",
        type=int,
        choices=range(-1, 17),
        default=3,
        metavar="N",
        help="also match photos whose 64-bit perceptual hashes differ in at most N bits, 0 to 16; -1 turns this off "
        "(default: 3)",
    )
    group.add_argument(
        "--reference",
        action="append",
        default=[],
        metavar="DIR",
        help="also search this folder, but never move its photos and prefer to keep them; can be given several times",
    )
    group.add_argument(
        "--keep",
        action="append",
        metavar="RULE",
        help="how to choose the photo to keep; can be given several times, and the first rule that prefers one photo "
        "decides. RULE is reference, original (as a camera wrote it), companions, pixels, bytes, metadata, oldest, "
        "name (no copy mark), newest, format=A,B, path=PATTERN or not-path=PATTERN (default: the first eight, in this "
        "order; oldest and name always break ties)",
    )


def _add_output_options(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--report", type=_page_path, metavar="FILE.html", help="write an HTML page that shows each group"
    )
    group.add_argument("--json", type=user_path, metavar="FILE", help="write the groups as JSON; - is standard output")
    group.add_argument(
        "--csv",
        type=user_path,
        metavar="FILE",
        help="write a row for each photo of each group, for spreadsheets; - is standard output",
    )
    amount = group.add_mutually_exclusive_group()
    amount.add_argument("--verbose", "-v", action="store_true", help="show every group, with similarities and tests")
    amount.add_argument("--quiet", "-q", action="store_true", help="print nothing except errors and what - names")


def _add_action_options(group: argparse._ArgumentGroup) -> None:
    doing = group.add_mutually_exclusive_group()
    doing.add_argument("--apply", action="store_true", help="move the certain duplicates to the quarantine")
    doing.add_argument("--dry-run", action="store_true", help="show what --apply would move, and move nothing")
    group.add_argument(
        "--act-on",
        action="append",
        metavar="TIER",
        help="what --apply moves: exact, same-pixels, near-identical or similar; can be given several times (default: "
        "exact and same-pixels). Frames of a burst and other moments of a scene are never moved",
    )
    group.add_argument(
        "--hard-link",
        action="store_true",
        help="with --apply: replace each exact duplicate by a hard link to the kept file",
    )
    group.add_argument(
        "--merge-metadata",
        action="store_true",
        help="with --apply: if a duplicate has a date, GPS position, rating, keywords, title or caption that the kept "
        "photo lacks, write them into an XMP sidecar beside the kept photo; without this option such a duplicate stays",
    )


def _page_path(text: str) -> Path:
    if text.lower().endswith((".html", ".htm")):
        return user_path(text)
    raise argparse.ArgumentTypeError(f"the report is an HTML page: give it a name that ends in .html, not {text!r}")


def _check_outputs(outputs: Sequence[Path]) -> None:
    """Raise if a report cannot be written, or would replace a photo, as after ``--json *.jpg``."""
    for path in outputs:
        if path == STDOUT:
            continue
        check_place(path)
        if suffix_of(path.name) in PHOTO_SUFFIXES | COMPANION_KINDS.keys():
            raise CommandMisused(
                f"{path} has the name of a photo or of its companion; name another file for the report"
            )
    if len(set(map(os.path.abspath, outputs))) < len(outputs):
        raise CommandMisused("--json, --csv and --report must not write to the same file")


def _keep_rules(arguments: argparse.Namespace) -> tuple[str, ...]:
    try:
        return KeepRules(arguments.keep or DEFAULT_RULES).names
    except ValueError as error:
        raise CommandMisused(str(error)) from None


def check_action_tiers(options: ActionOptions, model: str | None = None) -> None:
    """Raise CommandMisused for an unknown tier, and for one that the model of this id cannot tell."""
    from clip_client.dedup.actions.plan import check_tiers

    try:
        check_tiers(options.tiers, model)
    except ValueError as error:
        raise CommandMisused(str(error)) from None
