"""What ``dedup --apply`` does with a folder, from the files to the plan."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from clip_client import ClientConfig, ClipClient
from clip_client.dedup import find_duplicates
from clip_client.dedup.actions.plan import plan_moves
from clip_client.dedup.types import EDITED, SAFE_TIERS

if TYPE_CHECKING:
    from clip_client.dedup import Store

_TIMEOUT_S: Final = 3600.0
"""Long, because the rate does not matter here and a busy machine is slow."""


@dataclass(frozen=True, kw_only=True)
class Applied:
    """What was found in a folder, and what moves."""

    by_default: frozenset[Path]
    """Files that a plain ``--apply`` moves."""
    on_request: frozenset[Path]
    """Those, and the files that ``--act-on edited`` moves."""
    groups: tuple[frozenset[Path], ...]
    """Files that the report shows together."""


def client(url: str) -> ClipClient:
    """Return a client that sends photos as the command line does, and waits as long as it takes."""
    config = ClientConfig(urls=(url,), transfer="thumbnail", timeout_s=_TIMEOUT_S, target_latency_s=_TIMEOUT_S)
    return ClipClient(config=config)


async def applied(clip: ClipClient, folder: Path, store: Store) -> Applied:
    """Search ``folder`` as the command does, and plan the moves."""
    report = await find_duplicates(clip, [folder], store=store)
    by_default, on_request = (
        frozenset(Path(move.duplicate.path) for move in plan_moves(report, [folder], tiers=tiers).moves)
        for tiers in (SAFE_TIERS, (*SAFE_TIERS, EDITED))
    )
    groups = tuple(frozenset(Path(member.path) for member in group.members) for group in report.groups)
    return Applied(by_default=by_default, on_request=by_default | on_request, groups=groups)
