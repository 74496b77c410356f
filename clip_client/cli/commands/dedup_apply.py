"""The last step of ``clip-client dedup``: say what would move and what stays, and move it with ``--apply``."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Final

from clip_client._files import printable
from clip_client.cli.options.dedup import ActionOptions
from clip_client.cli.output import progress_bars
from clip_client.cli.quarantine import print_failures
from clip_client.dedup import DuplicateReport, Store
from clip_client.dedup.actions.apple_photos_album import ALBUM, fill_album
from clip_client.dedup.actions.apply import apply
from clip_client.dedup.actions.chosen_runs import notice_put_back
from clip_client.dedup.actions.plan import Plan, plan_moves
from clip_client.dedup.compare.chosen_groups import chosen_groups
from clip_client.dedup.files.directories import DirectorySet
from clip_client.dedup.judge.verdicts import with_verdicts
from clip_client.dedup.store.choices import Choice, moving_tiers
from clip_client.dedup.store.store import store_option
from clip_client.dedup.text import counted, human_bytes
from clip_client.dedup.types import QUARANTINE_NAME, SAFE_TIERS

_MOST_REASONS: Final = 5  # reasons printed; more would hide the two lines that matter


def apply_report(
    report: DuplicateReport,
    paths: Sequence[str],
    store: Store,
    options: ActionOptions,
    *,
    say: Callable[[str], None] = print,
    verbose: bool = False,
    explained: Mapping[str, str] = MappingProxyType({}),
) -> int:
    """Carry out ``--apply`` or show what it would do; ``explained`` maps photos to reasons that were already shown."""
    moving: Mapping[str, Choice] = {}
    staying: Mapping[str, str] = {}
    chosen = None
    if options.is_chosen:
        notice_put_back(store)
        compared = {os.path.abspath(member.path) for group in report.groups for member in group.members}
        found = chosen_groups(report, store.choices.all())
        moving, staying = found.moving, found.staying
        chosen = {path: moving_tiers(choice.rules) for path, choice in moving.items()}
        report = with_verdicts(
            found.report, paths, merge_metadata=options.merge_metadata, compared=compared, files=store.files
        )
    plan = plan_moves(report, paths, tiers=options.moving_tiers, chosen=chosen)
    refused = [skip for skip in plan.skipped if not skip.tier]
    if options.apply or options.dry_run:
        searched = DirectorySet(paths)
        stays = [(skip.photo.label, skip.reason) for skip in refused]
        stays += [one for one in staying.items() if os.path.lexists(one[0]) and searched.contains(one[0])]
        _print_what_stays(stays, say, listed=options.dry_run or options.is_chosen or verbose)
    elif unexplained := [skip for skip in refused if explained.get(skip.photo.path) != skip.reason]:
        stay = "stays" if len(unexplained) == 1 else "stay"
        say(f"{counted(len(unexplained), 'other photo')} {stay} in place; --dry-run says why")
    # Only count the copies that stay for their tier: the groups above show them, and there may be thousands.
    for tier, number in sorted(Counter(skip.tier for skip in plan.skipped if skip.tier).items()):
        wait, them = ("waits", "it") if number == 1 else ("wait", "them")
        how = f"look at {them} with clip-client review"
        if tier in SAFE_TIERS:
            how = f"--act-on {tier} moves {them}{', too' if options.tiers else ' instead'}"
        say(f"{counted(number, f'{tier} copy', f'{tier} copies')} {wait} for you; {how}")
    if options.apply:
        return _apply_plan(plan, store, options, say, moving)
    if options.dry_run or options.is_chosen:
        _print_plan(plan, say)
    moved = f"{counted(len(plan.moves), 'photo')} of {human_bytes(plan.size_bytes)}" if plan.moves else "nothing"
    say(f"--apply would move {moved}")
    if plan.for_album:
        say(f"{counted(len(plan.for_album), 'photo')} of Apple Photos would go into its album {ALBUM!r}")
    return 0


def _print_what_stays(stays: Sequence[tuple[str, str]], say: Callable[[str], None], *, listed: bool) -> None:
    if listed:
        for path, reason in stays:
            say(f"stays: {printable(path)}: {printable(reason)}")
        return
    by_reason = Counter(reason for _, reason in stays).most_common()
    for reason, number in by_reason[:_MOST_REASONS]:
        say(f"{counted(number, 'photo')} {'stays' if number == 1 else 'stay'}: {printable(reason)}")
    if others := sum(number for _, number in by_reason[_MOST_REASONS:]):
        say(f"{counted(others, 'more photo')} {'stays' if others == 1 else 'stay'} for other reasons")
    if stays:
        say("to list these photos: -v")


def _print_plan(plan: Plan, say: Callable[[str], None]) -> None:
    gone = set[str]()
    for move in plan.moves:
        gone.add(move.duplicate.path)
        moving = (one.path for one in move.companions if gone.issuperset(one.others))
        along = "".join(f", with {printable(path)}" for path in moving)
        say(f"would move: {printable(move.duplicate.path)}{along}; kept: {printable(move.kept.label)}")
    for path in sorted({sidecar.path for move in plan.moves for sidecar in move.sidecars if sidecar.is_ours}):
        say(f"would write: {printable(path)}")
    for entry in plan.for_album:
        say(f"for the album: {printable(entry.duplicate.label)}; kept: {printable(entry.kept.label)}")


def _apply_plan(
    plan: Plan, store: Store, options: ActionOptions, say: Callable[[str], None], chosen: Mapping[str, Choice]
) -> int:
    with progress_bars() as show, store.journal.exclusive():
        run = store.journal.new_run()
        choices = {os.path.abspath(path): choice.id for path, choice in chosen.items()}
        outcomes = apply(plan, store.journal, run=run, files=store.files, choices=choices, on_progress=show)
    moved = {outcome.path for outcome in outcomes if outcome.done}
    # Name the store for undo, unless it is the default store.
    where = store_option(store.journal.directory)
    if moved:
        above = {move.folder for move in plan.moves if move.duplicate.path in moved}
        place = printable(os.path.join(*above, QUARANTINE_NAME)) if len(above) == 1 else f"{QUARANTINE_NAME} folders"
        back = f"restore with: clip-client undo --run {run}{where}"
        say(f"{counted(len(moved), 'photo')} moved to {place}; {back}")
        say(f"no space is freed yet; send the quarantine to the trash with: clip-client purge{where}")
    else:
        say("0 photos moved")
    failures = print_failures(outcomes)
    if plan.for_album:
        with progress_bars() as show:
            listed = fill_album(plan.for_album, on_progress=show)
        say(f"{counted(sum(outcome.done for outcome in listed), 'photo')} in the album {ALBUM!r} of Apple Photos")
        names = {move.duplicate.path: move.duplicate.label for move in plan.for_album}
        failures += print_failures(tuple(replace(outcome, path=names[outcome.path]) for outcome in listed))
    return 0 if failures == 0 else 1
