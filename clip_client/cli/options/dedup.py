"""The options of ``clip-client dedup``: parsed and checked once, before anything is read."""

from __future__ import annotations

import argparse
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from clip_client.cli.errors import CommandMisused, need
from clip_client.cli.options.connection import add_engine_options, add_model_options
from clip_client.cli.options.paths import add_store_option
from clip_client.cli.options.search import add_search_options
from clip_client.cli.output import STDOUT, check_place
from clip_client.cli.parser import user_path
from clip_client.dedup.actions.verdicts import MoveOptions, check_tiers
from clip_client.dedup.files.file_types import COMPANION_KINDS, PHOTO_SUFFIXES, suffix_of
from clip_client.dedup.types import EXACT, SAFE_TIERS

CHOSEN: Final = "chosen"
"""For ``--act-on``: what a person chose, instead of tiers."""


@dataclass(frozen=True, kw_only=True)
class ActionOptions(MoveOptions):
    """What to do with the duplicates that were found."""

    tiers: tuple[str, ...] = ()
    """Tiers to move; empty for the default."""
    is_chosen: bool = False
    """Move what a person chose, and nothing else."""
    apply: bool = False
    dry_run: bool = False
    store: Path | None = None
    """The store that ``--store`` names, which undo has to be told."""

    @property
    def moving_tiers(self) -> tuple[str, ...]:
        """What ``--apply`` moves."""
        return (EXACT,) if self.hard_link else self.tiers or SAFE_TIERS


def add_dedup_options(parser: argparse.ArgumentParser) -> None:
    """Add every option of the command."""
    add_search_options(parser)
    add_store_option(parser)
    _add_output_options(parser.add_argument_group("reports"))
    _add_action_options(parser.add_argument_group("moving duplicates"))
    add_model_options(parser)
    add_engine_options(parser)


def read_action_options(arguments: argparse.Namespace) -> ActionOptions:
    """Read what to do with duplicates. Raises CommandMisused for options that contradict each other."""
    named = arguments.act_on or ()
    options = ActionOptions(
        tiers=tuple(tier for tier in named if tier != CHOSEN),
        is_chosen=CHOSEN in named,
        apply=arguments.apply,
        dry_run=arguments.dry_run,
        hard_link=arguments.hard_link,
        merge_metadata=arguments.merge_metadata,
        store=arguments.store,
    )
    check_action_tiers(options)
    if options.is_chosen and options.tiers:
        raise CommandMisused(f"--act-on {CHOSEN} moves what you chose and nothing else; leave the tiers out")
    if options.hard_link and set(options.tiers) - {EXACT}:
        raise CommandMisused(
            f"--hard-link only replaces copies of the same bytes: the only tier for it is --act-on {EXACT}"
        )
    return options


def read_outputs(arguments: argparse.Namespace) -> tuple[Path, ...]:
    """Return the reports to write.

    Raises if one cannot be written, or would replace a photo, as after ``--json *.jpg``.
    """
    need("rich", *(["jinja2"] if arguments.report else []), extras="cli,dedup")
    outputs = tuple(path for path in (arguments.json, arguments.csv, arguments.report) if path is not None)
    for path in outputs:
        if path != STDOUT:
            check_place(path)
            if suffix_of(path.name) in PHOTO_SUFFIXES | COMPANION_KINDS.keys():
                raise CommandMisused(
                    f"{path} has the name of a photo or of its companion; name another file for the report"
                )
    if len(set(map(os.path.abspath, outputs))) < len(outputs):
        raise CommandMisused("--json, --csv and --report must not write to the same file")
    return outputs


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
        help="what --apply moves instead of exact, same-pixels and re-encoded copies: one of these tiers, edited or "
        "similar; can be given several times. Altered pictures, frames of a burst and other "
        "moments of a scene are never moved. chosen moves instead what you chose in clip-client review or with "
        "clip-client decide keep, whatever it is",
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


def check_action_tiers(options: ActionOptions, model: str | None = None) -> None:
    """Raise CommandMisused for an unknown tier, and for one that the model of this id cannot tell."""
    try:
        check_tiers(options.tiers, model)
    except ValueError as error:
        raise CommandMisused(str(error)) from None
