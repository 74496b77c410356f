"""What a search for duplicates compares, and how: the options that ``dedup`` and ``review`` share."""

from __future__ import annotations

import argparse
import os
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from clip_client.cli.errors import CommandFailed, CommandMisused, need
from clip_client.cli.options.connection import client_config, connected
from clip_client.cli.options.paths import WalkOptions, add_walk_options, opened_store, read_walk_options
from clip_client.cli.parser import number_type
from clip_client.dedup import DuplicateReport, Scan, Store, find_duplicates
from clip_client.dedup.compare.keep_rules import DEFAULT_RULES, KeepRules
from clip_client.dedup.search import CANDIDATES, VERIFY_MODES, group_contents

if TYPE_CHECKING:
    from clip_client import ClientConfig, ClipClient
    from clip_client.dedup.actions.verdicts import MoveOptions
    from clip_client.dedup.search import GroupContents

_SIMILARITY: Final = number_type(float, lambda value: 0 <= value <= 1, expected="a cosine similarity between 0 and 1")

_COMPARE_BY: Final = ("threshold", "hash_bits", "verify")
"""Options that :func:`find_duplicates` takes as they are."""

NO_PHOTO: Final = "there is no photo to compare in the given paths"


@dataclass(frozen=True, kw_only=True)
class SearchOptions:
    """What to search, on which server, and what counts as a duplicate."""

    walk: WalkOptions
    config: ClientConfig
    references: tuple[str, ...]
    compare_by: Mapping[str, Any]
    """What counts as a duplicate, and which one stays: arguments of :func:`find_duplicates`."""
    without_model: bool
    """Compare bytes, pixels, perceptual hashes and alignments, and no vectors."""
    quiet: bool

    @asynccontextmanager
    async def connected(self) -> AsyncIterator[ClipClient | None]:
        """Give a client whose model is known, or None for a search without a model; see :func:`connected`."""
        if self.without_model:
            yield None
            return
        hint = " To search by bytes, pixels and alignment alone, without any model: --without-model"
        async with connected(self.config, quiet=self.quiet, hint=hint) as clip:
            yield clip

    def scan(self, show: Callable[[str, int, int | None], None]) -> Scan:
        """Find the photos."""
        return self.walk.scan(self.references, raw=True, show=show)

    async def find(
        self,
        clip: ClipClient | None,
        found: Scan,
        store: Store,
        show: Callable[[str, int, int | None], None],
        group: GroupContents = group_contents,
        *,
        options: MoveOptions | None = None,
    ) -> DuplicateReport:
        """Search the photos that :meth:`scan` found, and judge which of them may move with ``options``."""
        more: dict[str, Any] = {"references": self.references, **self.compare_by}
        return await find_duplicates(clip, found, store=store, options=options, on_progress=show, group=group, **more)


def read_search_options(arguments: argparse.Namespace) -> SearchOptions:
    """Check the parsed arguments.

    Raises CommandMisused for options that contradict each other, and CommandFailed for a missing package or reference
    folder.
    """
    need("rich", "defusedxml", extras="cli,dedup")
    options = SearchOptions(
        walk=read_walk_options(arguments),
        config=client_config(arguments),
        references=tuple(map(os.path.expanduser, arguments.reference)),
        compare_by={"keep": _keep_rules(arguments), **{name: getattr(arguments, name) for name in _COMPARE_BY}},
        without_model=arguments.without_model,
        quiet=vars(arguments).get("quiet", False),
    )
    if options.without_model and arguments.url:
        raise CommandMisused("--without-model asks no server: leave out --url, or --without-model")
    if options.without_model and arguments.threshold is not None:
        raise CommandMisused("--threshold is about vectors, and --without-model compares none: leave out one of them")
    for folder in options.references:
        # A misspelt reference folder would let photos move that should stay.
        if not os.path.exists(folder):
            raise CommandFailed(f"there is no folder {folder}: see --reference")
    return options


def add_search_options(parser: argparse.ArgumentParser) -> None:
    """Add the paths and the options of the search; ``add_model_options`` adds the rest."""
    add_walk_options(parser)
    group = parser.add_argument_group("search")
    group.add_argument(
        "--threshold",
        type=_SIMILARITY,
        metavar="T",
        help="minimum cosine similarity to the kept photo, 0 to 1 (default: depends on the model)",
    )
    group.add_argument(
        "--without-model",
        action="store_true",
        help="compare bytes, pixels, perceptual hashes and alignments only: needs no model and no server, and misses "
        "strong crops and edits",
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
        "--verify",
        choices=VERIFY_MODES,
        default=CANDIDATES,
        help="candidates: align the photos that may show the same, which proves copies and says what was done to them; "
        "off: compare by bytes, pixels, hashes and vectors only (default: candidates)",
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
        "decides. RULE is reference, original (as a camera wrote it), companions, undoubted (not made from another of "
        "the photos), pixels, lossy (no lossless conversion), siblings (most files with its bytes), metadata, oldest, "
        "name (no copy mark), newest, bytes, smallest, folder=DIR, format=A,B, path=PATTERN or not-path=PATTERN "
        "(default: the first ten, in this order; oldest and name always break ties), "
        "or @NAME for rules that clip-client rules has saved",
    )


def _keep_rules(arguments: argparse.Namespace) -> tuple[str, ...]:
    """Return the rules that ``--keep`` names, saved ones in the place of their names.

    Raises CommandMisused for an unknown rule, and CommandFailed for an unknown name or folder.
    """
    names = list(arguments.keep or DEFAULT_RULES)
    if any(name.startswith("@") for name in names):
        with opened_store(arguments.store) as store:
            names = [rule for name in names for rule in saved_or_plain(name, store)]
    check_keep_rules(names)
    return tuple(names)


def saved_or_plain(rule: str, store: Store) -> tuple[str, ...]:
    """Return the rules that are saved under ``@NAME``, or the rule itself. Raises CommandFailed for an unknown name."""
    if not rule.startswith("@"):
        return (rule,)
    saved = store.settings.keep_rules()
    if rule[1:] not in saved:
        raise CommandFailed(f"no rules are saved as {rule}: see clip-client rules list")
    return saved[rule[1:]]


def check_keep_rules(rules: Sequence[str]) -> None:
    """Raise CommandMisused for an unknown rule, and CommandFailed if it names a folder that does not exist."""
    try:
        KeepRules(rules)
    except ValueError as error:
        raise CommandMisused(str(error)) from None
    for name, _, folder in (rule.partition("=") for rule in rules):
        # A misspelt folder would silently prefer nothing.
        if name == "folder" and not os.path.isdir(os.path.expanduser(folder)):
            raise CommandFailed(f"there is no folder {folder}: see --keep")
