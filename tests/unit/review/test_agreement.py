"""Every output says the same about each photo: what moves by default, what with ``edited``, and what stays."""

import asyncio
import csv
import io
import json
import os
import re
from pathlib import Path
from urllib.parse import unquote

from PIL import Image, ImageDraw, ImageOps
from rich.console import Console

from clip_client.cli.commands.dedup_apply import apply_report
from clip_client.cli.options.dedup import ActionOptions
from clip_client.dedup import DuplicateReport, Store
from clip_client.dedup.pages.html import write_page
from clip_client.dedup.pages.rows import copy_lines, csv_lines
from clip_client.dedup.pages.terminal import print_groups
from clip_client.dedup.pages.words import found_in_words
from clip_client.dedup.report import count_verdicts
from clip_client.dedup.types import BY_DEFAULT, IF_CHOSEN, NEVER, ON_REQUEST, SAFE_TIERS
from clip_client.review.state.found_groups import Filter
from tests.fixtures.images.camera_files import exif
from tests.fixtures.images.scenes import noisy, resized, scene
from tests.fixtures.reviews import Review, of_report, review_of, search_of
from tests.unit.review.albums import done, moving


def make_album(root: Path) -> None:
    """Write copies of each kind: certain ones, edited ones, and those that may not move or only a person can judge."""
    for name in ("copies", "sent", "altered", "sidecar", "burst", "mine"):
        (root / name).mkdir(parents=True)
    scene(0).save(root / "copies" / "original.jpg", quality=92)
    (root / "copies" / "original (1).jpg").write_bytes((root / "copies" / "original.jpg").read_bytes())
    with Image.open(root / "copies" / "original.jpg") as original:
        original.save(root / "copies" / "converted.png")
        resized(original, 0.5).save(root / "copies" / "small.jpg", quality=85)
        ImageOps.grayscale(original).save(root / "copies" / "grey.jpg", quality=85)
    ImageOps.mirror(scene(0)).save(root / "copies" / "mirrored.jpg", quality=85)
    scene(1).save(root / "sent" / "photo.jpg", quality=90)
    screen = Image.new("RGB", (800, 1400), (18, 18, 20))
    screen.paste(resized(scene(1), 2), (0, 400))
    screen.save(root / "sent" / "screenshot.jpg", quality=90)
    scene(2).save(root / "altered" / "photo.jpg", quality=92)
    marked = scene(2)
    ImageDraw.Draw(marked).rectangle((300, 20, 380, 60), fill=(250, 250, 250))
    marked.save(root / "altered" / "marked.jpg", quality=90)
    for name in ("a.jpg", "b.jpg", "c.jpg"):
        scene(3).save(root / "sidecar" / name, quality=90)
    for name in ("a.xmp", "b.xmp"):
        (root / "sidecar" / name).write_bytes(name.encode())
    for number, name in enumerate(("first.jpg", "second.jpg")):
        taken = exif(size=(400, 300), SubsecTimeOriginal=f"{number}00")
        noisy(scene(4), 3, number).save(root / "burst" / name, quality=92, exif=taken)
    scene(5).save(root / "mine" / "kept.jpg", quality=92)
    for name in ("also mine.jpg", "../copies/of mine.jpg"):
        (root / "mine" / name).write_bytes((root / "mine" / "kept.jpg").read_bytes())
    for path in root.rglob("*.*"):  # the first of the names is kept if nothing else decides
        os.utime(path, (10**9, 10**9))


EXPECTED = {
    "copies/original (1).jpg": BY_DEFAULT,
    "copies/converted.png": BY_DEFAULT,
    "copies/small.jpg": BY_DEFAULT,
    "copies/grey.jpg": ON_REQUEST,
    "copies/mirrored.jpg": ON_REQUEST,
    "sent/photo.jpg": IF_CHOSEN,
    "altered/marked.jpg": IF_CHOSEN,
    "sidecar/b.jpg": NEVER,
    "sidecar/c.jpg": BY_DEFAULT,
    "burst/second.jpg": IF_CHOSEN,
    "mine/also mine.jpg": NEVER,
    "copies/of mine.jpg": BY_DEFAULT,
}
"""The photos that no group keeps, and what each verdict must be."""


def of_json(report: DuplicateReport) -> dict[str, str]:
    members = [one for group in json.loads(json.dumps(report.to_mapping()))["groups"] for one in group["members"]]
    return {one["path"]: one["verdict"]["moves"] for one in members if one["verdict"]["kept"]}


def of_csv(report: DuplicateReport) -> dict[str, str]:
    rows = csv.DictReader("".join(csv_lines(report)).splitlines())
    return {row["path"]: row["moves"] for row in rows if row["kept"] == "no"}


def of_terminal(report: DuplicateReport) -> dict[str, str]:
    """Return path -> the word before it."""
    console = Console(width=500, file=io.StringIO(), record=True)
    print_groups(report, console, verbose=True)
    lines = re.findall(r"^   (copy|wait|stay)  .*?  (/.*?\.(?:jpg|png))", console.export_text(), re.MULTILINE)
    return {path: word for word, path in lines}


def of_page(report: DuplicateReport, tiers: tuple[str, ...]) -> dict[str, str]:
    """Return path -> the word before the reason why it does not move by the command of the page, if it does not."""
    page = io.BytesIO()
    write_page(report, page, thumbnail=lambda path, side: None, tiers=tiers)
    figures = page.getvalue().decode().split("<figure")[1:]
    moves = {}
    for figure in figures:
        href = re.search(r'<p class="name"><a href="file://([^"]*)"', figure)
        assert href
        if '<span class="keep">' not in figure:
            word = re.search(r'<p class="mark">(Stays|Waits)\.', figure)
            moves[unquote(href[1])] = word[1] if word else ""
    return moves


def of_review(review: Review) -> dict[str, bool]:
    """Return path -> whether the page of its group suggests to move it."""
    moves = {}
    for found in review.session.groups.each(Filter()):
        page = review.get(f"/groups/{found.id}").text
        for place, member in enumerate(found.group.members[1:], start=1):
            moves[member.path] = bool(re.search(rf'name="move" value="{place}" checked', page))
    return moves


def of_rules(review: Review) -> tuple[str, set[str]]:
    """Return what the rules page counts, and what the plan of such a choice moves; take it back."""
    count = review.get("/rules/count").text
    review.post("/rules/choose")
    done(review, "/plan")
    planned = moving(review)
    review.post("/undo")
    said = re.search(r": (\d+ photos, [\d.]+ \wB) would move", count)
    assert said, count
    return said[1], planned


async def searched(root: Path, store: Store) -> DuplicateReport:
    return await search_of(root, store=store, references=[str(root / "mine")])(lambda what, done, total: None)


def test_all_outputs_agree_about_each_photo(tmp_path: Path) -> None:
    root = (tmp_path / "album").resolve()
    make_album(root)
    with Store(tmp_path / "search") as store:
        report = asyncio.run(searched(root, store))
    expected = {str(root / name): moves for name, moves in EXPECTED.items()}
    by_default = {path for path, moves in expected.items() if moves == BY_DEFAULT}
    with_edited = by_default | {path for path, moves in expected.items() if moves == ON_REQUEST}

    assert of_json(report) == expected
    assert of_csv(report) == expected
    lines = [line.split("\t") for line in copy_lines(report)]
    assert {line[2]: line[4] for line in lines} == {path: expected[path] for path in with_edited}
    words = {BY_DEFAULT: "copy", ON_REQUEST: "wait", IF_CHOSEN: "stay", NEVER: "stay"}
    assert of_terminal(report) == {path: words[moves] for path, moves in expected.items()}
    on_page = {"copy": "", "wait": "Waits", "stay": "Stays"}
    assert of_page(report, SAFE_TIERS) == {path: on_page[word] for path, word in of_terminal(report).items()}
    said = found_in_words(count_verdicts(report.groups), sum(group.spare_bytes[0] for group in report.groups))
    assert re.fullmatch(r"5 photos, [\d.]+ kB, can move safely; 2 edited copies wait for you", said)

    with review_of(root, store=tmp_path / "review", search=of_report(report)) as review:
        assert of_review(review) == {path: path in by_default for path in expected}
        count, planned = of_rules(review)
        assert planned == by_default
        assert said.startswith(f"{count}, can move safely")

    with Store(tmp_path / "store") as store:
        told: list[str] = []
        assert apply_report(report, [str(root)], store, ActionOptions(dry_run=True), say=told.append) == 0
        found = (re.match(r"would move: (.*?)(?:, with .*)?; kept: ", line) for line in told)
        assert {match[1] for match in found if match} == by_default
        assert apply_report(report, [str(root)], store, ActionOptions(apply=True)) == 0
        assert {path for path in expected if not (root / path).exists()} == by_default
