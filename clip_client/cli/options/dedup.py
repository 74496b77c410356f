"""The options of a search for duplicates, which ``dedup`` and ``review`` share, and the options for moving them."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final

from clip_client import ClientConfig, ClipClient
from clip_client.cli.errors import CommandFailed, CommandMisused, need
from clip_client.cli.options.connection import add_engine_options, add_model_options, client_config, connected
from clip_client.cli.options.paths import (
    WalkOptions,
    add_store_option,
    add_walk_options,
    opened_store,
    read_walk_options,
)
from clip_client.cli.output import add_output_options, add_quiet_option
from clip_client.dedup import Store
from clip_client.dedup.compare.keep_rules import DEFAULT_RULES, RETIRED_RULES, KeepRules
from clip_client.dedup.compare.proofs import has_old_proofs
from clip_client.dedup.judge.verdicts import check_tiers
from clip_client.dedup.types import SAFE_TIERS, TIERS, OnProgress
from preprocess_ensemble.command_line import number_type

CHOSEN: Final = "chosen"  # the choices of a person, instead of tiers

NO_PHOTO: Final = "there is no photo to compare in the given paths"


@dataclass(frozen=True, kw_only=True)
class SearchOptions:
    walk: WalkOptions
    config: ClientConfig
    compare_by: Mapping[str, Any]
    """Arguments of :func:`clip_client.dedup.find_duplicates`: what is a duplicate, and which photo stays."""
    without_model: bool
    quiet: bool

    @asynccontextmanager
    async def connected(self, show: OnProgress) -> AsyncIterator[ClipClient | None]:
        if self.without_model:
            yield None
            return
        hint = "search without any model, by bytes, pixels and alignment, with --without-model; "
        async with connected(self.config, quiet=self.quiet, hint=hint, show=show) as clip:
            yield clip


def read_search_options(arguments: argparse.Namespace) -> SearchOptions:
    need("rich", "defusedxml", extras="cli,dedup")
    references = tuple(map(os.path.expanduser, arguments.reference))
    options = SearchOptions(
        walk=read_walk_options(arguments),
        config=client_config(arguments),
        compare_by={"references": references, "keep": _keep_rules(arguments), "threshold": arguments.threshold},
        without_model=arguments.without_model,
        quiet=vars(arguments).get("quiet", False),
    )
    if options.without_model and arguments.url:
        raise CommandMisused("--url names a server, and --without-model needs none: leave out --url or --without-model")
    if options.without_model and arguments.threshold is not None:
        raise CommandMisused(
            "--threshold is about vectors, and --without-model compares none: leave out --threshold or --without-model"
        )
    for folder in references:
        # Refuse a misspelt reference folder: photos would move that should stay.
        if not os.path.exists(folder):
            raise CommandFailed(f"there is no folder {folder}, which --reference names")
    return options


def add_search_options(parser: argparse.ArgumentParser) -> None:
    add_walk_options(parser)
    group = parser.add_argument_group("search")
    group.add_argument(
        "--threshold",
        type=number_type(float, lambda value: 0 <= value <= 1, expected="a cosine similarity between 0 and 1"),
        metavar="T",
        help="minimum cosine similarity to the kept photo, 0 to 1 (default: depends on the model)",
    )
    group.add_argument(
        "--without-model",
        action="store_true",
        help="compare only bytes, pixels, perceptual hashes and alignments: works without a model and a server, but "
        "misses most crops and heavy edits",
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
        help="rule that chooses the photo to keep; can be given several times. The first rule that prefers one photo "
        "decides. RULE is reference, companions, undoubted (not made from another of the photos), original (with the "
        "metadata of a camera), pixels, lossy (not converted from a lossy file), siblings (most files with its bytes), "
        "metadata, oldest, name (no copy mark), newest, folder=DIR, format=A,B, path=PATTERN or not-path=PATTERN "
        "(default: the first ten, in this order; oldest and name always break ties). "
        "@NAME stands for rules that clip-client rules has saved",
    )


def _keep_rules(arguments: argparse.Namespace) -> tuple[str, ...]:
    names = list(arguments.keep or DEFAULT_RULES)
    if any(name.startswith("@") for name in names):
        with opened_store(arguments.store) as store:
            names = [rule for name in names for rule in saved_or_plain(name, store)] or list(DEFAULT_RULES)
    check_keep_rules(names)
    return tuple(names)


def saved_or_plain(rule: str, store: Store) -> tuple[str, ...]:
    """Return the rules saved under ``@NAME`` that still exist, or the rule itself. Raises CommandFailed if unknown."""
    if not rule.startswith("@"):
        return (rule,)
    saved = store.settings.keep_rules()
    if rule[1:] not in saved:
        raise CommandFailed(f"no rules are saved as {rule}; clip-client rules list shows what is saved")
    if gone := [one for one in saved[rule[1:]] if one in RETIRED_RULES]:
        print(f"clip-client: {rule} is used without {' and '.join(gone)}, which no longer exists", file=sys.stderr)
    return tuple(one for one in saved[rule[1:]] if one not in RETIRED_RULES)


def tell_changes(store: Store, say: Callable[[str], object]) -> None:
    """Say once what in a store is no longer used: tuned thresholds, and proofs by an earlier rule."""
    if has_old_proofs(store):
        say("copies are proved again, because this version proves them by other rules than the last search")
    for vector_id, threshold in store.settings.take_tuned():
        model = vector_id.partition("|")[0]
        say(f"the tuned threshold of {model} is no longer used; --threshold {threshold:g} sets it")


def check_keep_rules(rules: Sequence[str]) -> None:
    """Raise CommandMisused for an unknown rule, and CommandFailed if it names a folder that does not exist."""
    try:
        KeepRules(rules)
    except ValueError as error:
        raise CommandMisused(str(error)) from None
    for name, _, folder in (rule.partition("=") for rule in rules):
        # Refuse a misspelt folder: the rule would silently prefer nothing.
        if name == "folder" and not os.path.isdir(os.path.expanduser(folder)):
            raise CommandFailed(f"there is no folder {folder}, which --keep names")


@dataclass(frozen=True, kw_only=True)
class ActionOptions:
    merge_metadata: bool = False
    tiers: tuple[str, ...] = ()  # empty for the default
    is_chosen: bool = False
    apply: bool = False
    dry_run: bool = False

    @property
    def moving_tiers(self) -> tuple[str, ...]:
        return self.tiers or SAFE_TIERS


def add_dedup_options(parser: argparse.ArgumentParser) -> None:
    add_search_options(parser)
    add_store_option(parser)
    reports = parser.add_argument_group("reports")
    add_output_options(reports, report="each group", json="the groups", csv="a row for each photo of each group")
    amount = reports.add_mutually_exclusive_group()
    amount.add_argument("--verbose", "-v", action="store_true", help="show every group, with similarities and tests")
    add_quiet_option(amount)
    group = parser.add_argument_group("moving duplicates")
    group.add_argument("--apply", action="store_true", help="move the proved copies to the quarantine")
    group.add_argument(
        "--dry-run", action="store_true", help="only show what --apply would move, even together with --apply"
    )
    group.add_argument(
        "--act-on",
        action="append",
        metavar="TIER",
        help="move only copies of this tier: exact, same-pixels or re-encoded (default: all three); can be given "
        "several times. chosen moves only the photos that you chose in clip-client review or with clip-client decide "
        "keep, of any tier",
    )
    group.add_argument(
        "--merge-metadata",
        action="store_true",
        help="with --apply: write metadata that only a duplicate has (date, GPS position, rating, keywords, title, "
        "caption, creator or the like) into an XMP sidecar beside the kept photo; without this option such a duplicate "
        "stays",
    )
    add_model_options(parser)
    add_engine_options(parser)


def read_action_options(arguments: argparse.Namespace) -> ActionOptions:
    named = arguments.act_on or ()
    options = ActionOptions(
        tiers=tuple(tier for tier in named if tier != CHOSEN),
        is_chosen=CHOSEN in named,
        apply=arguments.apply and not arguments.dry_run,
        dry_run=arguments.dry_run,
        merge_metadata=arguments.merge_metadata,
    )
    if unknown := [tier for tier in options.tiers if tier not in TIERS]:
        raise CommandMisused(f"--act-on takes {', '.join(SAFE_TIERS)} or {CHOSEN}, not {unknown[0]!r}")
    try:
        check_tiers(options.tiers)
    except ValueError as error:
        raise CommandMisused(str(error)) from None
    if options.is_chosen and options.tiers:
        tier = options.tiers[0]
        raise CommandMisused(f"--act-on {CHOSEN} moves only the photos that you chose: leave out --act-on {tier}")
    return options
