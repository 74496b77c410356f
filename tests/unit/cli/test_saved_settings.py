"""A store may hold settings that count no longer: the commands say so, and go on."""

import json
import sqlite3
from contextlib import closing
from pathlib import Path

from clip_client.cli.main import main
from clip_client.dedup import Store
from tests.fixtures.commands import Run


def test_a_tuned_threshold_is_named_once_to_a_person_who_reads_it(search: list[str], tmp_path: Path, run: Run) -> None:
    with Store(tmp_path / "store") as store:
        store.settings.save_keep_rules("mine", ["newest"])
    with closing(sqlite3.connect(tmp_path / "store" / "history.sqlite")) as connection, connection:
        connection.execute("INSERT INTO tuned VALUES ('m/openai@1|p|original', 0.95)")
    said = "the tuned threshold of m/openai@1 is no longer used; --threshold 0.95 sets it"
    for options, is_said in ((["--quiet"], False), ([], True), ([], False)):
        assert (said in run(main, *search, *options).err) is is_said


def test_proofs_by_an_earlier_rule_are_made_again_and_it_is_said_once(
    search: list[str], tmp_path: Path, run: Run
) -> None:
    with Store(tmp_path / "store") as store:
        store.cache.blob_tables("sift-6-align-2-full-size-8")[0].put([("ab", b"{}")])
    for is_said in (True, False):
        assert ("copies are proved again" in run(main, *search).err) is is_said


def test_saved_rules_go_on_without_one_that_is_gone(search: list[str], tmp_path: Path, run: Run) -> None:
    with Store(tmp_path / "store") as store:
        store.settings.save_keep_rules("mine", ["bytes", "path=*/2.dng"])
        store.settings.save_keep_rules("small", ["smallest"])
    for name, gone, kept in (("mine", "bytes", "2.dng"), ("small", "smallest", "1.dng")):
        printed = run(main, *search, "--keep", f"@{name}", "--json", "-")
        assert f"@{name} is used without {gone}, which no longer exists" in printed.err
        (group,) = json.loads(printed.out)["groups"]
        assert group["keep"].endswith(kept)
