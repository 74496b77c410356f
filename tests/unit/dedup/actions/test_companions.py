"""Sidecars beside copies: what stays with a name, what moves along, and what keeps a photo where it is."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from clip_client.dedup.actions.apply import apply, undo
from clip_client.dedup.types import QUARANTINE_NAME
from tests.fixtures.albums import member, opened, planned, report, snapshot, without_access, write

if TYPE_CHECKING:
    from pathlib import Path

    from clip_client.dedup import DuplicateReport


def copies(root: Path, **sidecars: bytes) -> DuplicateReport:
    """A group of the photos ``kept.jpg`` and ``copy.jpg``, each with the sidecar that is given for it."""
    kept, copy = write(root / "kept.jpg", b"photo"), write(root / "copy.jpg", b"photo")
    for stem, data in sidecars.items():
        write(root / f"{stem}.xmp", data)
    return report((member(kept), member(copy)))


def outside_quarantine(root: Path) -> set[str]:
    return {path.name for path in root.rglob("*.*") if QUARANTINE_NAME not in path.parts and path.is_file()}


@pytest.mark.parametrize("sidecars", [{"copy": b"stars"}, {"copy": b"stars", "kept": b"none"}, {"kept": b"none"}])
def test_a_hard_link_leaves_the_sidecars_beside_the_name(tmp_path: Path, sidecars: dict[str, bytes]) -> None:
    root = tmp_path / "root"
    groups = copies(root, **sidecars)
    before = snapshot(root)
    plan = planned(groups, [root], hard_link=True, merge_metadata=False)
    assert [move.companions for move in plan.moves] == [()]
    with opened(tmp_path / "journal.sqlite") as journal:
        (outcome,) = apply(plan, journal)
        assert outcome.done
        assert (root / "copy.jpg").samefile(root / "kept.jpg")
        assert {name: (root / f"{name}.xmp").read_bytes() for name in sidecars} == sidecars
        undo(journal)
    assert without_access(snapshot(root)) == without_access(before)


@pytest.mark.parametrize("other", [b"3 stars", b""])
def test_a_photo_with_another_sidecar_stays(tmp_path: Path, other: bytes) -> None:
    root = tmp_path / "root"
    plan = planned(copies(root, copy=b"5 stars", kept=other), [root])
    assert plan.moves == ()
    assert [skip.reason for skip in plan.skipped] == [
        "The sidecar beside it is damaged, or differs from that of the kept photo."
    ]
