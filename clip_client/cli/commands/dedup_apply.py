"""The last part of ``clip-client dedup``: say what could leave and what could not, and move it where asked to."""

from __future__ import annotations

import shlex
import sys
from collections import Counter
from typing import TYPE_CHECKING

from clip_client.cli.commands.undo import print_failures
from clip_client.cli.errors import CommandFailed, CommandMisused
from clip_client.cli.output.progress import progress_bars

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from clip_client.dedup import DuplicateReport, Scan, Store
    from clip_client.dedup.actions.plan import Plan


def check_asked_for(arguments: argparse.Namespace, model: str | None = None) -> None:
    """Raise CommandMisused for a tier that is none, that the model of this id cannot tell, or that no link can hold."""
    from clip_client.dedup.actions.plan import check_tiers
    from clip_client.dedup.types import EXACT

    try:
        check_tiers(arguments.act_on or (), model)
    except ValueError as error:
        raise CommandMisused(str(error)) from None
    if arguments.hard_link and set(arguments.act_on or ()) - {EXACT}:
        raise CommandMisused(f"--hard-link is for copies of the same bytes: name no tier with it but --act-on {EXACT}")


def check_action(arguments: argparse.Namespace, found: Scan) -> None:
    """Raise CommandFailed where ``--apply`` could not do its work on what was found; before the long part."""
    from clip_client.dedup.actions.apple_photos_album import NoAlbum, check_photos

    if arguments.apply and found.in_libraries:
        try:
            check_photos()
        except NoAlbum as error:
            raise CommandFailed(str(error)) from None


def act(report: DuplicateReport, paths: Sequence[str], store: Store, arguments: argparse.Namespace) -> int:
    """Do what ``--apply`` or ``--dry-run`` asks for, else say what they would do; return the exit code."""
    from clip_client.dedup.actions.plan import SAFE_TIERS, plan_moves
    from clip_client.dedup.files.hashing import sha256_of
    from clip_client.dedup.text import printable
    from clip_client.dedup.types import EXACT

    tiers = (EXACT,) if arguments.hard_link else arguments.act_on or SAFE_TIERS
    plan = plan_moves(
        report,
        paths,
        tiers=tiers,
        hard_link=arguments.hard_link,
        merge_metadata=arguments.merge_metadata,
        hash_of=lambda path: store.files.sha256_of(path, sha256_of),
    )
    is_asked = arguments.apply or arguments.dry_run
    for skip in plan.skipped:
        if skip.is_blocked or (is_asked and not skip.tier):
            print(f"stays: {printable(skip.path)}: {printable(skip.reason)}")
    if is_asked:
        _print_tiers_left(plan)
    if arguments.apply:
        return _apply(plan, store, arguments)
    if arguments.dry_run:
        _print_plan(plan)
    _print_totals(plan)
    return 0


def _print_tiers_left(plan: Plan) -> None:
    """Say how many copies stay for their tier: the groups above show which, and there may be thousands."""
    from clip_client.dedup.text import counted

    by_tier = Counter(skip.tier for skip in plan.skipped if skip.tier)
    for tier, number in sorted(by_tier.items()):
        verb = "stays" if number == 1 else "stay"
        print(f"{counted(number, 'copy', 'copies')} {verb}: tier {tier}, without --act-on {tier}")


def _print_plan(plan: Plan) -> None:
    from clip_client.dedup.text import printable

    for move in plan.moves:
        along = "".join(f", with {printable(companion.path)}" for companion in move.companions)
        print(f"would move: {printable(move.duplicate.path)}{along}; kept: {printable(move.kept.label)}")
    written = {sidecar.path for move in plan.moves for sidecar in move.sidecars if sidecar.is_ours}
    for path in sorted(written):
        print(f"would write: {printable(path)}")
    for entry in plan.for_album:
        print(f"for the album: {printable(entry.duplicate.label)}; kept: {printable(entry.kept.label)}")


def _print_totals(plan: Plan) -> None:
    from clip_client.dedup.actions.apple_photos_album import ALBUM
    from clip_client.dedup.text import counted, human_bytes

    moved = f"{counted(len(plan.moves), 'photo')} of {human_bytes(plan.size_bytes)}" if plan.moves else "nothing"
    print(f"--apply would move {moved}")
    if plan.for_album:
        print(f"{counted(len(plan.for_album), 'photo')} of Apple Photos would go into its album {ALBUM!r}")


def _apply(plan: Plan, store: Store, arguments: argparse.Namespace) -> int:
    from clip_client.dedup.actions.apple_photos_album import ALBUM, NoAlbum, fill_album
    from clip_client.dedup.actions.apply import HARDLINK, QUARANTINE, apply
    from clip_client.dedup.text import counted

    method = HARDLINK if arguments.hard_link else QUARANTINE
    with progress_bars() as show:
        applied = apply(plan, store.journal, method=method, on_progress=show)
    moved = sum(outcome.done for outcome in applied.outcomes)
    # With a store of its own, undo has to be told which.
    where = "" if arguments.store is None else f" --store {shlex.quote(str(arguments.store))}"
    back = f"; bring them back with: clip-client undo --run {applied.run}{where}" if moved else ""
    print(f"{counted(moved, 'photo')} moved{back}")
    left = print_failures(applied.outcomes)
    if plan.for_album:
        try:
            with progress_bars() as show:
                listed = fill_album(plan.for_album, on_progress=show)
        except NoAlbum as error:
            print(f"clip-client: {error}", file=sys.stderr)
            return 1
        print(f"{counted(sum(outcome.done for outcome in listed), 'photo')} in the album {ALBUM!r} of Apple Photos")
        left += print_failures(listed)
    return 0 if left == 0 else 1
