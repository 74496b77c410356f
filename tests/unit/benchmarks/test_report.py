"""The report: kept results in, tables and charts out."""

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.report import command as report
from benchmarks.report.charts import write_charts
from tests.paths import ROOT

MACHINE = {
    "cores": 2, "cpu": "a CPU", "cpu_flags": ["avx2"], "gpu": None, "system": "Linux", "python": "3.11",
    "commit": "abc", "modified": False, "load_average": 0.1,
}  # fmt: skip


def three_way(cosine: float = 1.0) -> dict[str, Any]:
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
    results = report.newest(tmp_path.glob("*.json"))
    text = report.fill("before\n<!-- three_way -->\nold\n<!-- /three_way -->\nafter\n", results)
    assert text.startswith("before\n<!-- three_way -->\n2 cores of a CPU with avx2, no GPU;")
    assert text.endswith("\n<!-- /three_way -->\nafter\n")
    assert "| ensemble, JPEG over gRPC | 19.0 | 1.000000 |" in text
    assert "old" not in text
    assert report.fill(text, results) == text


def test_each_chart_is_drawn_from_the_kept_results(tmp_path: Path) -> None:
    results = report.newest((ROOT / "benchmarks" / "results").glob("*.json"))
    charts = write_charts(results, tmp_path)
    assert [chart.name for chart in charts] == ["three_way.png", "text.png", "first_scan.png"]
    assert all(chart.read_bytes().startswith(b"\x89PNG") for chart in charts)


def test_a_table_without_results_names_the_command_that_measures_them() -> None:
    for name in (report.FIGURES, *report.TABLES):
        text = report.fill(f"<!-- {name} -->\n<!-- /{name} -->\n", {})
        assert "Not measured yet: `python -m benchmarks " in text, name
    assert "GPU: not measured yet." in report.fill("<!-- gpu -->\n<!-- /gpu -->\n", {})


@pytest.mark.parametrize("document", report.DOCUMENTS, ids=str)
def test_the_documents_state_the_results_that_they_name(document: Path) -> None:
    # After a change to benchmarks/report/templates: python -m benchmarks report
    text = (ROOT / document).read_text(encoding="utf-8")
    results = report.stated(text, ROOT / "benchmarks" / "results")
    assert results
    assert report.fill(text, results) == text


def test_a_new_result_changes_no_document_before_the_report_is_run(tmp_path: Path) -> None:
    keep(tmp_path, "three_way", "2026-01-01", plan={"rounds": 2}, summary=three_way())
    text = report.fill("<!-- three_way -->\n<!-- /three_way -->\n", report.newest(tmp_path.glob("*.json")))
    keep(tmp_path, "three_way", "2026-01-02", plan={"rounds": 2}, summary=three_way(0.99))
    keep(tmp_path, "soak", "2026-01-02")
    assert report.fill(text, report.stated(text, tmp_path)) == text
    assert "2026-01-02" in report.fill(text, report.newest(tmp_path.glob("*.json")))
    typed = text.replace("19.0", "91.0")
    assert report.fill(typed, report.stated(typed, tmp_path)) == text != typed
