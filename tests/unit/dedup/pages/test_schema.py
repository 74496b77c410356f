"""The forms for programs are what the documents say: the JSON Schema, and the columns of the CSV file."""

import copy
import json
import os
import re
from dataclasses import replace
from typing import Any

import pytest

from clip_client.dedup import DuplicateReport, FailedFile, Match
from clip_client.dedup.aligned import MADE_LATER
from clip_client.dedup.pages.rows import CSV_COLUMNS
from clip_client.dedup.types import (
    ALTERED,
    BURST,
    BY_DEFAULT,
    EXACT,
    IF_CHOSEN,
    NEVER,
    ON_REQUEST,
    TIERS,
    LibraryPhoto,
    Metadata,
)
from tests.fixtures.members import alignment, group, member, report
from tests.fixtures.report_schema import validator
from tests.paths import ROOT


def full_report() -> DuplicateReport:
    """Every key has a value somewhere, and is empty elsewhere."""
    facts = {"lost": ("colour",), "region": (0.1, 0.2, 0.3, 0.4), "region_share": 0.12}
    aligned = alignment(ALTERED, "half the size", **facts)
    library = LibraryPhoto(path="L/c.jpg", library="L", uuid="C", name="IMG.JPG", taken_ns=None)
    matches = (
        Match(test="bytes", value=1, threshold=1),
        Match(test="pixels", value=1, threshold=1),
        Match(test="perceptual hash", value=2, threshold=3),
        Match(test="alignment", value=1, threshold=1, alignment=aligned),
        Match(test="embedding", value=0.993, threshold=0.99),
    )
    said = Metadata(taken="2019-05-03T10:11:12", lens="EF50mm", camera="Canon EOS 5D")
    found = group(
        member("a.jpg", tier=EXACT),
        member("b\udcff.jpg", similarity=0.993, matches=matches, format="JPEG", doubt=MADE_LATER),
        member("L/c.jpg", embedded="film, gain map", other_shot=BURST, in_library=library, metadata=said),
        member(
            "d.jpg",
            tier=ALTERED,
            copy_of="L/c.jpg",
            copy_tier=ALTERED,
            copy_alignment=replace(aligned, region=None),
            cannot_verify="It is flat.",
            is_reference=True,
        ),
        reason="most pixels",
    )
    return report(
        found,
        failed=(FailedFile(path="e.jpg", code="TRUNCATED", message="The file ends early."),),
        bytes_only=("f.dng",),
        skipped={".txt": 3},
    )


def test_a_report_is_what_the_schema_says() -> None:
    text = json.dumps(full_report().to_mapping())
    assert text.isascii()
    document = json.loads(text)
    validator().validate(document)
    validator().validate(json.loads(json.dumps(report().to_mapping())))
    (found,) = document["groups"]
    kept, near, frame, copied = found["members"]
    nothing: dict[str, Any] = {"kept": None, "tier": "exact", "moves": "never", "reason": "", "lost": [], "doubt": None}
    lost = {
        "kept": "a.jpg",
        "tier": "similar",
        "moves": "if chosen",
        "reason": "It shows what the kept photo lacks: colour.",
        "lost": ["colour"],
        "doubt": MADE_LATER,
    }
    assert os.fsencode(near["path"]) == b"b\xff.jpg"
    assert near["matches"][-1] == {"test": "embedding", "value": 0.993, "threshold": 0.99}
    assert frame["photos_library"]["name"] == "IMG.JPG"
    for one, said in (
        (kept, {"path": "a.jpg", "matches": [], "format": None, "taken": None, "camera": None, "verdict": nothing}),
        (near, {"verdict": lost}),
        (frame, {"taken": "2019-05-03T10:11:12", "camera": "Canon EOS 5D", "embedded": ["film", "gain map"]}),
        (copied, {"copy_of": "L/c.jpg", "reference": True}),
    ):
        assert {key: one[key] for key in said} == said


@pytest.mark.parametrize(
    "where",
    [
        (),
        ("groups", 0),
        ("groups", 0, "members", 1),
        ("groups", 0, "members", 1, "verdict"),
        ("failed", 0),
        ("thresholds",),
        ("groups", 0, "members", 1, "matches", 3, "alignment"),
        ("groups", 0, "members", 3, "copy_alignment"),
    ],
)
def test_the_schema_names_every_key_and_no_other(where: tuple[str | int, ...]) -> None:
    def at(document: Any) -> dict[str, Any]:
        for step in where:
            document = document[step]
        found: dict[str, Any] = document
        return found

    document = json.loads(json.dumps(full_report().to_mapping()))
    for key in at(document):
        without = copy.deepcopy(document)
        del at(without)[key]
        assert not validator().is_valid(without), f"{key} may be missing"
    more = copy.deepcopy(document)
    at(more)["another"] = 1
    assert not validator().is_valid(more)


def test_the_schema_names_every_tier() -> None:
    schema = json.loads((ROOT / "docs" / "dedup.schema.json").read_text())
    group = schema["properties"]["groups"]["items"]["properties"]
    member = group["members"]["items"]["properties"]
    for named in (group["tier"], member["tier"], member["verdict"]["properties"]["tier"]):
        assert named["enum"] == list(TIERS)
    assert member["verdict"]["properties"]["moves"]["enum"] == [BY_DEFAULT, ON_REQUEST, IF_CHOSEN, NEVER]


def test_the_page_names_the_columns_of_the_csv_file() -> None:
    page = (ROOT / "docs" / "output.md").read_text()
    table = page[page.index("| column of `--csv` |") :].split("\n\n")[0]
    named = [name for row in table.splitlines()[2:] for name in re.findall(r"`(\w+)`", row.split("|")[1])]
    assert named == list(CSV_COLUMNS)
