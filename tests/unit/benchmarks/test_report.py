"""The report: kept results in, tables, a picture and a page out."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from benchmarks.report import command as report
from benchmarks.report import markdown_tables
from tests.paths import ROOT

if TYPE_CHECKING:
    from pathlib import Path

MACHINE = {
    "cores": 2, "cpu": "a CPU", "cpu_flags": ["avx2"], "gpu": None, "system": "Linux", "python": "3.11",
    "commit": "abc", "modified": False, "load_average": 0.1,
}  # fmt: skip


def three_way(cosine: float = 1.0) -> dict[str, Any]:
    """The summary of a comparison of two systems."""

    def at(low: float, median: float, high: float) -> dict[str, Any]:
        return {"32": {"images_per_second": {"min": low, "median": median, "max": high}, "p50_ms": 5.0}}

    valid = cosine > 0.9999
    ratio = {"of": "ensemble", "to": "plain-batched", "at_concurrency": 32, "required": 1.05}
    return {
        "systems": {
            "plain-batched": {"at": at(10.0, 11.0, 12.0), "cosine": 1.0, "valid": True},
            "ensemble": {"at": at(18.0, 19.0, 20.0), "cosine": cosine, "valid": valid},
        },
        "ratios": [{**ratio, "min": 1.5, "median": 1.75, "max": 2.0}],
        "valid": valid,
    }


def keep(directory: Path, name: str, day: str, **result: Any) -> None:
    record = {"experiment": name, "environment": {**MACHINE, "time": day}, **result}
    (directory / f"{name}-{day}.json").write_text(json.dumps(record))


def test_tables_come_from_the_newest_result(tmp_path: Path) -> None:
    for day, cosine in (("2026-01-01", 0.99), ("2026-01-02", 1.0)):
        keep(tmp_path, "three_way", day, plan={"rounds": 2}, summary=three_way(cosine))
    results = report.newest(tmp_path)
    text = markdown_tables.fill("before\n<!-- three_way -->\nold\n<!-- /three_way -->\nafter\n", results)
    assert text.startswith("before\n<!-- three_way -->\n2 cores of a CPU (avx2), no GPU;")
    assert text.endswith("\n<!-- /three_way -->\nafter\n")
    assert "| ensemble, JPEG over gRPC | 19.0 | 1.000000 |" in text
    assert "old" not in text
    assert markdown_tables.fill(text, results) == text
    assert report.three_way(results["three_way"]["summary"]).startswith(b"\x89PNG")


def test_a_table_without_results_names_the_command_that_measures_them() -> None:
    for name in (*markdown_tables.FIGURES, *markdown_tables.TABLES):
        text = markdown_tables.fill(f"<!-- {name} -->\n<!-- /{name} -->\n", {})
        assert "Not measured yet: `python -m benchmarks " in text, name
    assert "GPU: not measured yet." in markdown_tables.fill("<!-- gpu -->\n<!-- /gpu -->\n", {})


def test_the_table_of_installations(tmp_path: Path) -> None:
    extras = {"": {"installed_mb": 99.6, "seconds": 5.2}, "laptop": {"installed_mb": 1234.0, "seconds": 20.0}}
    summary = {"extras": extras, "demo": {"installed_mb": 940.0, "seconds": 55.0}}
    keep(tmp_path, "install_size", "2026-01-01", summary=summary)
    text = markdown_tables.part_of("install_size", report.newest(tmp_path))
    assert "| none | the Python client | 100 |" in text
    laptop = "`cli`, `dedup`, `local`, `phone`, `raw` and `review`: all that a photographer needs"
    assert f"| `laptop` | {laptop} | 1,234 |" in text
    assert "`make demo` installs 940 MB and takes 55 s, without the time for downloads." in text


def test_the_table_of_a_first_search_has_peers_without_steps(tmp_path: Path) -> None:
    def rounds(*rates: float, **more: Any) -> list[dict[str, Any]]:
        return [{"photos_per_second": rate, "processor_ms_per_photo": 1000 / rate, **more} for rate in rates]

    steps = {"decode": 30.0, "align": 10.0, "model and the rest": 50.0}
    searches = {"2 MP, local:": rounds(8.0, 10.0, 12.0, steps_ms_per_photo=steps), "2 MP, infinity": rounds(4.0)}
    plan = {"rounds": 3, "files": 11}
    keep(tmp_path, "first_scan", "2026-01-01", plan=plan, searches=searches)
    text = markdown_tables.part_of("first_scan", report.newest(tmp_path))
    assert "| 2 MP | this, in process | 10.0 (8.0-12.0) | 100 | 30 | 10 | 50 |" in text
    assert "| 2 MP | infinity, fp32: vectors, no groups | 4.0 (4.0-4.0) | 250 |  |  |  |" in text


@pytest.mark.parametrize("document", report.DOCUMENTS, ids=str)
def test_the_documents_state_the_results_that_they_name(document: Path) -> None:
    # After a change to benchmarks/report/templates: python -m benchmarks report
    text = (ROOT / document).read_text(encoding="utf-8")
    results = report.stated(text, ROOT / "benchmarks" / "results")
    assert results
    assert markdown_tables.fill(text, results) == text


def test_a_new_result_changes_no_document_before_the_report_is_run(tmp_path: Path) -> None:
    keep(tmp_path, "three_way", "2026-01-01", plan={"rounds": 2}, summary=three_way())
    text = markdown_tables.fill("<!-- three_way -->\n<!-- /three_way -->\n", report.newest(tmp_path))
    keep(tmp_path, "three_way", "2026-01-02", plan={"rounds": 2}, summary=three_way(0.99))
    keep(tmp_path, "soak", "2026-01-02")
    assert markdown_tables.fill(text, report.stated(text, tmp_path)) == text
    assert "2026-01-02" in markdown_tables.fill(text, report.newest(tmp_path))


def test_a_number_typed_by_hand_is_found(tmp_path: Path) -> None:
    keep(tmp_path, "three_way", "2026-01-01", plan={"rounds": 2}, summary=three_way())
    text = markdown_tables.fill("<!-- three_way -->\n<!-- /three_way -->\n", report.newest(tmp_path))
    typed = text.replace("19.0", "91.0")
    assert typed != text
    assert markdown_tables.fill(typed, report.stated(typed, tmp_path)) == text


def test_harm_is_never_stated_without_its_bound_and_what_was_found() -> None:
    row = {
        "cases": 9, "can_harm": 8, "moved_default": 5, "moved_request": 6, "only_found": 1, "harmful_default": 0,
        "harmful_request": 1, "bound_default": 0.3123, "bound_request": 0.4707, "below_request": 2, "moved_hash": 7,
        "harmful_hash": 4,
    }  # fmt: skip
    part = {"sets": 3, "classes": {"copy: smaller": row, "all": row}, "recall_of_copies": 0.25}
    result = {
        "file": "x", "experiment": "accuracy", "seeds": part, "holdout": part, "model": "m", "random_weights": True,
        "plan": {"seeds": "1,2,3"},
    }  # fmt: skip
    text = markdown_tables.part_of("benchmarks", {"accuracy": result})
    assert "`--apply` 0 of 8 (31.23 %), 0 of 8 (31.23 %); with edited copies 1 of 8 (47.07 %)" in text
    assert "25 %, 25 %" in text
    table = markdown_tables.part_of("accuracy", {"accuracy": result})
    assert table.count("| copy: smaller | 9 | 5 | 6 | 1 | 0 | 1 | 47.1 % | 2 | 7 | 4 |") == 2
    assert table.startswith("m (random weights)")
    assert "moves 25 % of the re-encoded copies" in table
