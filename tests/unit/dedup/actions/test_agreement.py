"""What ``--dry-run`` announces is what ``--apply`` does, file by file."""

from __future__ import annotations

import contextlib
import io
import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from clip_client.cli.commands.dedup_apply import apply_report
from clip_client.cli.options.dedup import ActionOptions
from clip_client.dedup import Store
from clip_client.dedup.files.reading import sha256_of
from clip_client.dedup.store.journal import State
from clip_client.dedup.types import QUARANTINE_NAME
from tests.fixtures.albums import searched, write

FAST = "/dev/shm" if os.path.isdir("/dev/shm") else None
"""Where the journal need not wait for a disk each time."""

PHOTO, LINK, HARD_LINK = "photo", "link", "hard link"

entries = st.lists(
    st.tuples(
        st.sampled_from(["a", "b", "b/c"]),
        st.sampled_from([PHOTO, PHOTO, PHOTO, LINK, HARD_LINK]),
        st.integers(0, 1),  # which content, or which of the files before is linked to
        st.sampled_from(["", "mov=1", "mov=2", "mov=long", "xmp=1", "xmp=2", "xmp=", "mov=1,xmp=1", "xmp->"]),
    ),
    min_size=2,
    max_size=8,
)
obstacles = st.sampled_from(["", "file in the way", "link in the way"])

Entries = list[tuple[str, str, int, str]]


def make(root: Path, chosen: Entries, obstacle: str) -> None:
    for folder in ("a", "b/c"):
        (root / folder).mkdir(parents=True)
    photos: list[Path] = []
    for number, (folder, kind, which, beside) in enumerate(chosen):
        path = root / folder / f"{number}.nef"
        if kind == PHOTO or not photos:
            write(path, b"%d" % which)
            photos.append(path)
        elif kind == LINK:
            path.symlink_to(photos[which % len(photos)])
        else:
            path.hardlink_to(photos[which % len(photos)])
        for companion in filter(None, beside.split(",")):
            if companion == "xmp->":
                path.with_suffix(".xmp").symlink_to(write(root / "shared", b"1"))
            else:
                suffix, _, data = companion.partition("=")
                write(path.with_suffix(f".{suffix}"), data.encode())
    if obstacle == "file in the way":
        write(root / QUARANTINE_NAME, b"")
    elif obstacle:
        (root / QUARANTINE_NAME).symlink_to(root / "a")


def say(root: Path, store: Store, *, hard_link: bool, apply: bool) -> list[str]:
    """Run the last part of the command and return its lines."""
    chosen = ActionOptions(apply=apply, dry_run=not apply, hard_link=hard_link, merge_metadata=False)
    said, errors = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(errors):
        code = apply_report(searched(root, store=store, options=chosen), [str(root)], store, chosen)
    assert (code, errors.getvalue()) == (0, "")  # no move failed
    return said.getvalue().splitlines()


@settings(max_examples=50, deadline=None, derandomize=True)
@given(chosen=entries, obstacle=obstacles, hard_link=st.booleans())
@example(chosen=[("a", PHOTO, 0, "mov=1"), ("b", PHOTO, 0, "mov=2")], obstacle="", hard_link=False)
@example(chosen=[("a", PHOTO, 0, "mov=1"), ("b", PHOTO, 0, "mov=1")], obstacle="", hard_link=False)
@example(chosen=[("a", PHOTO, 0, "xmp=1"), ("b", PHOTO, 0, "xmp->")], obstacle="", hard_link=False)
@example(chosen=[("a", PHOTO, 0, ""), ("b", PHOTO, 0, "")], obstacle="file in the way", hard_link=False)
@example(chosen=[("a", PHOTO, 0, ""), ("b", PHOTO, 0, "")], obstacle="", hard_link=True)
def test_apply_moves_what_the_dry_run_says(chosen: Entries, obstacle: str, hard_link: bool) -> None:
    with tempfile.TemporaryDirectory(dir=FAST) as folder, Store(Path(folder, "store")) as store:
        root = Path(folder, "root")
        make(root, chosen, obstacle)
        reachable = {path for path in root.rglob("*") if path.exists()}
        dry = say(root, store, hard_link=hard_link, apply=False)
        done = say(root, store, hard_link=hard_link, apply=True)
        assert [line for line in dry if line.startswith("stays: ")] == [line for line in done if "stays: " in line]
        files = [[file.original for file in entry.files] for entry in store.journal.entries((State.MOVED,))]
        moves = [line.removeprefix("would move: ") for line in dry if line.startswith("would move: ")]
        announced = [line.partition("; kept: ")[0] for line in moves]
        assert announced == [", with ".join(names) for names in files]
        # And nothing else has gone, or leads nowhere now.
        gone = {str(path) for path in reachable if not path.exists()}
        assert gone == (set() if hard_link else {name for names in files for name in names})


def test_the_examples_are_not_all_empty(tmp_path: Path) -> None:
    """A search that found nothing would agree with everything."""
    make(tmp_path / "root", [("a", PHOTO, 0, "mov=1"), ("b", PHOTO, 0, "mov=1"), ("b/c", PHOTO, 0, "mov=2")], "")
    with Store(tmp_path / "store") as store:
        said = say(tmp_path / "root", store, hard_link=False, apply=False)
    assert [line.partition(os.sep)[0] for line in said] == [
        "stays: ",
        "would move: ",
        "--apply would move 1 photo of 1 B",
    ]


@pytest.mark.parametrize("change", ["other bytes", "other time"])
def test_a_film_is_hashed_once_and_again_when_it_changes(tmp_path: Path, change: str) -> None:
    film = write(tmp_path / "1.mov", b"film")
    with Store(tmp_path / "store") as store:
        first = store.files.sha256_of(str(film), sha256_of)
        times = film.stat()
        film.write_bytes(b"FILM")
        if change == "other time":
            assert store.files.sha256_of(str(film), sha256_of) != first
        else:
            os.utime(film, ns=(times.st_atime_ns, times.st_mtime_ns))
            assert store.files.sha256_of(str(film), sha256_of) == first  # it was not read again
        assert store.files.sha256_of(str(tmp_path / "gone.mov"), sha256_of) == ""
