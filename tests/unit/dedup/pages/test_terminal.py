"""Reports in the terminal, as lines for other programs and as CSV, and the words in all of them."""

import csv
import io
import os
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console

from clip_client._files import printable
from clip_client.dedup import DuplicateReport, FailedFile, Match, Member
from clip_client.dedup.aligned import PUT_INTO, Alignment
from clip_client.dedup.group import Verdict
from clip_client.dedup.judge.verdicts import WAITS
from clip_client.dedup.pages.rows import CSV_COLUMNS, copy_lines, csv_lines
from clip_client.dedup.pages.terminal import print_groups, print_notes
from clip_client.dedup.pages.words import found_in_words, in_words, region_on
from clip_client.dedup.report import count_verdicts
from clip_client.dedup.text import at_least, escaped, human_bytes
from clip_client.dedup.types import (
    ALTERED,
    BURST,
    EDITED,
    EXACT,
    IF_CHOSEN,
    NEVER,
    NO_MODEL,
    RE_ENCODED,
    SAFE_TIERS,
    SAME_PIXELS,
    SIMILAR,
    LibraryPhoto,
    Metadata,
)
from tests.fixtures import members
from tests.fixtures.members import alignment


def member(path: str, **more: Any) -> Member:
    return members.member(path, **{"width": 640, "height": 480, "size_bytes": 1_400_000, "tier": EXACT, **more})


def report(*groups: tuple[Member, ...], **more: Any) -> DuplicateReport:
    return members.report(*(members.group(*of) for of in groups), **{"compared": 1234, **more})


def printed(of: DuplicateReport, *, verbose: bool = False, width: int = 80) -> str:
    console = Console(width=width, record=True, file=io.StringIO())
    print_groups(of, console, verbose=verbose)
    print_notes(of, console, verbose=verbose)
    return console.export_text()


def test_the_groups_with_most_to_free_come_first_and_ten_are_shown() -> None:
    groups = [(member(f"{size}.jpg"), member(f"{size}-2.jpg", size_bytes=size * 1000)) for size in range(1, 13)]
    burst = (member("x.jpg"), member("x-2.jpg", size_bytes=10**9, other_shot=BURST))
    text = printed(report(*groups, burst))
    headings = [line for line in text.splitlines() if line[:1].isdigit() and "copy:" in line]
    assert headings[0] == "1. 12.0 kB to free in 1 copy: identical, byte for byte"
    assert len(headings) == 10
    assert "3 more groups of 3.0 kB: -v lists them here" in text
    assert "1,234 photos compared, 13 groups" in text
    every = printed(report(*groups, burst), verbose=True)
    assert all(f"{size}-2.jpg" in every for size in range(1, 13))
    assert "more group" not in every


def test_numbers_date_and_camera_are_shown_on_request_only() -> None:
    why = Match(test="embedding", value=0.9934, threshold=0.99)
    origin = {"metadata": Metadata(taken="2019-05-03T10:11:12", camera="Canon EOS 5D")}
    of = report((member("a.jpg"), member("b.jpg", tier=SIMILAR, similarity=0.9934, matches=(why,), **origin)))
    plain, verbose = printed(of), printed(of, verbose=True)
    for said in (
        "0.9934",
        "embedding: cosine 0.9934 (at least 0.99)",
        "cosine of every pair at least 0.9910",
        members.MODEL,
        "2019-05-03 10:11, Canon EOS 5D",
    ):
        assert said not in plain
        assert said in verbose
    without_model = printed(replace(of, model=NO_MODEL), verbose=True)
    assert "every pair" not in without_model
    assert without_model.count("0.9934") == verbose.count("0.9934") - 1, "only that of the test"


def test_a_possible_burst_is_in_the_words_and_the_reason_only() -> None:
    verdict = Verdict(kept="a.jpg", moves=IF_CHOSEN, reason=f"Its time suggests {BURST}.")
    frame = member("b.jpg", tier=SIMILAR, other_shot=BURST, verdict=verdict)
    assert printed(report((member("a.jpg"), frame)), verbose=True, width=200).count(BURST) == 2
    copy = member("c.jpg", other_shot=BURST, copy_of="b.jpg", copy_tier=EXACT)
    assert printed(report((member("a.jpg"), frame, copy)), verbose=True, width=200).count(BURST) == 3


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        (b"two words \xf0\x9f\x98\x80.jpg", "two words \U0001f600.jpg"),
        ("\U0001f468\u200d\U0001f469.jpg".encode(), "\U0001f468\u200d\U0001f469.jpg"),
        (b"caf\xe9.jpg", "caf\\xe9.jpg"),
        (b"a\nb\x1b[2J.jpg", "a\\nb\\x1b[2J.jpg"),
        ("gpj\u202e.exe".encode(), "gpj\\u202e.exe"),
    ],
)
def test_a_name_cannot_forge_what_is_shown(name: bytes, shown: str) -> None:
    assert printable(os.fsdecode(name)) == shown


def test_numbers_are_short_and_a_lower_bound_is_never_rounded_up() -> None:
    sizes = {0: "0 B", 999: "999 B", 1000: "1.0 kB", 241_300: "241 kB", 999_600: "1.0 MB"}
    assert {size: human_bytes(size) for size in sizes} == sizes
    assert [at_least(value) for value in (0.99999, 0.9987, 1.0, 0.123456)] == ["0.9999", "0.9987", "1.0000", "0.1234"]


def test_long_groups_and_lists_of_failures_are_cut() -> None:
    failed = tuple(FailedFile(path=f"f{number}.jpg", code="EMPTY", message="It is empty.") for number in range(7))
    of = report(tuple(member(f"m{number}.jpg") for number in range(9)), failed=failed)
    text = printed(of)
    assert "... and 3 more photos; -v lists them" in text
    assert "... and 2 more files not compared" in text
    assert "f6.jpg" in printed(of, verbose=True)


def test_a_line_says_that_more_is_hidden_only_if_it_hides_more_than_itself() -> None:
    failed = tuple(FailedFile(path=f"f{number}.jpg", code="EMPTY", message="It is empty.") for number in range(6))
    text = printed(report(tuple(member(f"m{number}.jpg") for number in range(7)), failed=failed))
    assert ("m6.jpg" in text, "f5.jpg" in text, "... and" in text) == (True, True, False)


def test_what_moves_is_shown_before_what_stays() -> None:
    stays = Verdict(kept="m0.jpg", moves=NEVER, reason="It is in a reference folder.")
    staying = [member(f"m{number}.jpg", verdict=stays) for number in range(1, 9)]
    text = printed(report((member("m0.jpg"), *staying, member("moves.jpg"))))
    assert text.index("m0.jpg") < text.index("moves.jpg") < text.index("m1.jpg")
    assert "... and 4 more photos; -v lists them" in text


def test_nothing_in_a_name_is_interpreted() -> None:
    failure = FailedFile(path="[red]x[/red]\x1b[2J.jpg", code="EMPTY", message="The file is empty.")
    text = printed(report((member("[bold]a.jpg"), member("b.jpg")), failed=(failure,)))
    for part in ("[bold]a.jpg", "EMPTY [red]x[/red]\\x1b[2J.jpg: The file is empty.", "1 file not compared"):
        assert part in text


def test_words_that_do_not_fit_are_on_a_line_of_their_own() -> None:
    of = report((member("a.jpg"), member(f"{'b' * 50}.jpg"), member("c.jpg", tier=SAME_PIXELS)))
    text = printed(of)
    assert f"{'b' * 50}.jpg\n{' ' * 30}identical, byte for byte\n" in text
    assert "c.jpg  same pixels, other metadata or compression\n" in text
    (found,) = report((member("a.jpg"), member("b.jpg"))).groups
    of = members.report(replace(found, reason="name without a copy mark, and much more"))
    assert "byte for byte\n   kept: name without a copy mark, and much more\n" in printed(of)


def test_no_line_of_words_is_wider_than_the_terminal() -> None:
    changes = ("rotated by 2.5 degrees to the right", "cropped to 72%", "brighter", "half the size")
    why = members.aligned(EDITED, *changes)
    copies = [member(f"{number}.jpg", tier=EDITED, matches=why) for number in range(2)]
    for photos in [member("a.jpg"), copies[0]], [member("a.jpg"), *copies, member("b.jpg")]:
        (found,) = report(tuple(photos)).groups
        of = replace(report(), groups=(replace(found, reason="most pixels: 6000x4000, next 3000x2000, or more"),))
        lines = printed(of, width=60).splitlines()[: 3 * len(photos)]
        assert max(map(len, lines)) <= 60
        said = " ".join(" ".join(lines).split())
        assert "same picture, rotated by 2.5 degrees to the right, cropped to 72%, brighter, half the size" in said
        assert "kept: most pixels: 6000x4000, next 3000x2000, or more" in said


def test_a_line_for_each_copy() -> None:
    library = LibraryPhoto(path="l", library="L", uuid="1", name="n", taken_ns=None)
    of = report(
        (
            member("a.jpg"),
            member("a\tb\n.jpg"),
            member("r.jpg", tier=EDITED, matches=members.aligned(EDITED)),
            member("n.jpg", verdict=Verdict(kept="a.jpg", moves=NEVER, reason="It is in a reference folder.")),
            member("l.jpg", in_library=library),
            member("m.jpg", other_shot=BURST),
            member("m 2.jpg", other_shot=BURST, copy_of="m.jpg", copy_tier=SAME_PIXELS, tier=SIMILAR),
        )
    )
    assert list(copy_lines(of)) == [
        "exact\t1400000\ta\\x09b\\x0a.jpg\ta.jpg\tby default",
        "edited\t1400000\tr.jpg\ta.jpg\ton request",
        "same-pixels\t1400000\tm 2.jpg\tm.jpg\tby default",
    ]


@pytest.mark.parametrize(
    "name",
    [b"plain \xf0\x9f\x98\x80.jpg", b"a\tb\nc\\x09\\\\.jpg", b"caf\xe9.jpg", "gpj\u202e\x85.exe".encode(), b"%s$HOME"],
)
def test_a_shell_gets_an_escaped_name_back(name: bytes) -> None:
    text = escaped(os.fsdecode(name))
    assert text.isprintable()
    got = subprocess.run(["bash", "-c", 'printf %b "$1"', "-", text], capture_output=True, check=True)
    assert got.stdout == name


def test_csv_has_a_row_for_each_photo_and_no_formula() -> None:
    of = report((member("=cmd.jpg"), member('b,"c".jpg', similarity=0.99, tier=SIMILAR, width=320, height=240)))
    heading, kept, copy = csv.reader("".join(csv_lines(of)).splitlines())
    assert tuple(heading) == CSV_COLUMNS
    assert kept == ["1", "yes", "exact", "./=cmd.jpg", "1400000", "640", "480", "1.0", "", "", "", ""]
    assert copy[1:4] == ["no", "similar", 'b,"c".jpg']
    assert copy[-3:] == ["looks similar, resized", "on request", WAITS.format(SIMILAR)]


def photo(path: str = "a.jpg", **more: Any) -> Member:
    return members.member(path, **{"width": 200, "height": 100, **more})


def copy(found: Alignment, **more: Any) -> Member:
    match = Match(test="alignment", value=1, threshold=1, alignment=found)
    return photo("b.jpg", tier=found.tier, matches=(match,), **more)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"tier": EXACT}, "identical, byte for byte"),
        ({"tier": SAME_PIXELS, "path": "b.JPEG"}, "same pixels, other metadata or compression"),
        ({"tier": SAME_PIXELS, "path": "b.png"}, "same pixels, other format"),
        ({"tier": SIMILAR, "width": 0, "height": 0}, "looks similar"),
        ({"tier": SIMILAR, "width": 67, "height": 33}, "looks similar, resized"),
        ({"tier": SIMILAR, "width": 100, "height": 200}, "looks similar, rotated"),
        ({"tier": SIMILAR, "width": 100, "height": 100}, "looks similar, cropped"),
        ({"tier": SIMILAR}, "looks similar"),
        ({"tier": SIMILAR, "other_shot": BURST}, "perhaps another frame of a burst"),
        ({"tier": SIMILAR, "other_shot": BURST, "copy_of": "c\n.jpg", "copy_tier": EXACT}, "identical to c\\n.jpg"),
        # Another photo was kept when this photo was aligned.
        ({"tier": EDITED}, "same picture, edited"),
    ],
)
def test_plain_words(given: dict[str, Any], words: str) -> None:
    assert in_words(photo(**{"path": "b.jpg", **given}), photo("a.jpg", tier=EXACT)) == words


HALF = "half the size"
ALIGNED = [
    (alignment(RE_ENCODED), "same picture, re-encoded"),
    (alignment(RE_ENCODED, HALF), "same picture, re-encoded, half the size"),
    (alignment(EDITED, "cropped to 84%", "brighter"), "same picture, cropped to 84%, brighter"),
    (alignment(ALTERED, "brighter", region=(0, 0, 1, 0.9), region_share=0.13), "brighter, and 13% of it differs more"),
    (alignment(ALTERED, region=(0, 0, 1, 0.9), region_share=0.13), "a region differs (13%)"),
    (alignment(ALTERED, region=(0.8, 0.1, 0.1, 0.1), region_share=0.03), "a region differs (3% at the top right)"),
    (
        alignment(ALTERED, HALF, region=(0.4, 0.4, 0.2, 0.2), region_share=0.04),
        "a region differs (4% in the middle), half the size",
    ),
    (alignment(ALTERED, region=(0, 0.4, 0.1, 0.2), region_share=0.02), "a region differs (2% at the left)"),
    (alignment(ALTERED, region=(0.5, 0, 0, 0), region_share=1e-4), "a region differs (less than 1% at the top)"),
]


@pytest.mark.parametrize(("found", "words"), ALIGNED)
def test_an_alignment_in_words(found: Alignment, words: str) -> None:
    assert in_words(copy(found), photo()) == words
    closer = photo(tier=SIMILAR, copy_of="c.jpg", copy_tier=found.tier, copy_alignment=found)
    assert in_words(closer, photo()) == f"{words}; compared with c.jpg"


def test_what_was_found_is_counted_by_verdict() -> None:
    def said(*found: Member, tiers: Sequence[str] = SAFE_TIERS, is_applied: bool = False) -> str:
        group = members.group(photo(), *found)
        size_bytes = sum(one.spare_bytes for one in group.moving(tiers))
        return found_in_words(count_verdicts([group]), size_bytes, tiers, is_applied=is_applied)

    certain, edited = photo("b.jpg", tier=EXACT), copy(alignment(EDITED))
    doubted = copy(alignment(EDITED, doubts=(PUT_INTO,)))
    assert said(certain, certain, edited) == "2 photos, 2.0 kB, can move safely; 1 edited copy waits for you"
    assert said(certain, edited, edited) == "1 photo, 1.0 kB, can move safely; 2 edited copies wait for you"
    assert said(certain, doubted) == "1 photo, 1.0 kB, can move safely"
    assert said(certain, doubted, is_applied=True) == "this search moves 1 photo, 1.0 kB"
    assert said(edited, doubted) == "1 edited copy waits for you"
    assert said(doubted, photo("c.jpg", other_shot=BURST)) == "no copies, but 2 photos to look at"
    assert said(certain, edited, tiers=[SAME_PIXELS]) == "1 edited copy waits for you"


def test_the_region_is_shown_where_it_lies_on_the_copy() -> None:
    region = (0.5, 0.5, 0.1, 0.2)
    same = alignment(ALTERED, region=region, region_share=0.02)
    assert region_on(copy(same), photo()) == pytest.approx(region)
    # The right half of the kept photo, at half the size.
    half = alignment(ALTERED, region=region, region_share=0.02, transform=(2, 0, 100, 0, 2, 0))
    assert region_on(copy(half, width=50, height=50), photo()) == pytest.approx((0, 0.5, 0.2, 0.2))
    # The left half, which does not show the region.
    left = alignment(ALTERED, region=(0.6, 0.5, 0.1, 0.1), region_share=0.01)
    assert region_on(copy(left, width=100), photo()) is None
    # Rotated by 90 degrees to the right: kept x = duplicate y, kept y = height - duplicate x.
    turned = alignment(ALTERED, region=region, region_share=0.02, transform=(0, 1, 0, -1, 0, 100))
    assert region_on(copy(turned, width=100, height=200), photo()) == pytest.approx((0.3, 0.5, 0.2, 0.1))
    assert region_on(copy(alignment(EDITED)), photo()) is None
    assert region_on(photo(), photo()) is None
