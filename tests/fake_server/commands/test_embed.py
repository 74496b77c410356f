"""``clip-client embed``: what it writes, and what is left of it when it is stopped, killed or called again."""

import json
import os
import re
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow.parquet as pq
import pytest
from PIL import Image

from clip_client import SyncClipClient, load_vectors
from clip_client._storage.vector_file import FileVersion, VectorFolder, vector_row
from clip_client.cli.main import main
from clip_client.dedup import scan
from clip_client.testing import FakeTriton
from tests.fixtures.commands import Run
from tests.fixtures.fakes import Serve
from tests.fixtures.images.image_files import encoded, picture
from tests.fixtures.images.raw_files import dng
from tests.fixtures.models.model_info import model_info
from tests.fixtures.waiting import wait_until

MANY: Final = 600
"""So many that a busy machine, too, stops a run of them in the middle."""
INTERRUPTED: Final = "clip-client: interrupted; the work that is done is kept, and the same command continues it"


@pytest.fixture(scope="module")
def server(serve: Serve) -> FakeTriton:
    return serve(FakeTriton())


@pytest.fixture(scope="module")
def slow(serve: Serve) -> FakeTriton:
    """A server that works on the photos of :func:`many` long enough to be stopped in the middle."""
    return serve(FakeTriton(seconds_per_image=0.02, max_batch_size=8))


@pytest.fixture
def album(tmp_path: Path) -> Path:
    """Three photos, of which one has a name that is not UTF-8, and an empty file."""
    return photos_in(tmp_path / "album", "a.png", "b.png", os.fsdecode(b"caf\xe9.png"))


@pytest.fixture
def many(tmp_path: Path) -> Path:
    """Many photos, and an empty file; a run that keeps their order prints its failure when 41 rows are there."""
    return photos_in(tmp_path / "many", *(f"{number:04}.png" for number in range(MANY)), empty="0040a.png")


def photos_in(folder: Path, *names: str, empty: str = "empty.jpg") -> Path:
    folder.mkdir()
    for seed, name in enumerate(names):
        (folder / name).write_bytes(encoded(picture(seed=seed, size=(8, 8)), "PNG"))
    (folder / empty).touch()
    return folder


def files_in(folder: Path) -> list[Path]:
    return sorted(folder.glob("part-*.parquet"))


def rows_in(folder: Path) -> Counter[bytes]:
    return Counter(path for shard in files_in(folder) for path in pq.read_table(shard)["path_bytes"].to_pylist())


def started(photos: Path, output: Path, server: FakeTriton) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "clip_client", "embed", str(photos), "--output", str(output)]
    return subprocess.Popen([*command, "--url", server.url], stderr=subprocess.PIPE, text=True)


def stopped(photos: Path, output: Path, server: FakeTriton) -> str:
    """Stop a run with SIGTERM after the failure of :func:`many`, and return the summary that it prints."""
    process = started(photos, output, server)
    assert process.stderr is not None
    assert any("EMPTY" in line for line in process.stderr)  # a busy machine prints progress before
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 143
    *_, summary, last = said.splitlines()
    assert last == INTERRUPTED
    return summary


@pytest.mark.parametrize("suffix", ["parquet", "npz"])
def test_embed_writes_what_the_library_gives(
    server: FakeTriton, album: Path, tmp_path: Path, suffix: str, run: Run
) -> None:
    output = tmp_path / f"vectors.{suffix}"
    said = run(main, "embed", album, "--url", server.url, "--output", output, "--json", "-")
    counts = {"output": str(output), "written": 3, "failed": 1, "done_before": 0, "skipped": {}}
    assert (json.loads(said.out), "EMPTY" in said.err) == (counts, True)

    paths = scan([album]).photos
    with SyncClipClient(server.url) as clip:
        expected, vector_id = clip.embed(list(paths)), clip.vector_id
    if suffix == "npz":
        with np.load(output) as held:
            vectors, names = held["vectors"], held["path_bytes"].tolist()
            codes, written_id = held["error_codes"].tolist(), str(held["vector_id"])
    else:
        table = pq.read_table(output)
        vectors = np.array(table.column("vector").to_pylist(), dtype=np.float32)
        shown = [os.fsencode(path).decode("utf-8", "backslashreplace") for path in paths]
        assert table.column("path").to_pylist() == shown
        found = zip(table.column("size_bytes").to_pylist(), table.column("mtime_ns").to_pylist(), strict=True)
        assert [*found] == [(os.stat(path).st_size, os.stat(path).st_mtime_ns) for path in paths]
        names = table.column("path_bytes").to_pylist()
        codes = [code or "" for code in table.column("error_code").to_pylist()]
        written_id = table.schema.metadata[b"vector_id"].decode()
    assert names == [os.fsencode(path) for path in paths]
    np.testing.assert_array_equal(vectors, expected.vectors)
    assert codes == [expected.errors[row].code if row in expected.errors else "" for row in range(len(paths))]
    assert written_id == vector_id


def test_embed_says_that_it_skips_raw_files(server: FakeTriton, album: Path, tmp_path: Path, run: Run) -> None:
    (album / "1.nef").write_bytes(dng(Image.new("RGB", (64, 48))))
    (album / "notes.txt").touch()
    said = run(main, "embed", album, "--url", server.url, "--output", tmp_path / "vectors.npz").out
    raw, others, *_ = said.splitlines()
    assert raw.startswith("1 RAW file skipped, which this command cannot read; clip-client search and clip-client")
    assert others == "1 file skipped, not named like photos: 1 .txt"


@pytest.mark.parametrize("suffix", ["parquet", "npz"])
def test_a_single_file_that_sigterm_stops_keeps_what_was_answered(
    slow: FakeTriton, many: Path, tmp_path: Path, suffix: str
) -> None:
    (folder := tmp_path / "out").mkdir()
    output, partial = folder / f"vectors.{suffix}", folder / f"vectors.partial.{suffix}"
    output.write_bytes(b"what was there before")
    summary = stopped(many, output, slow)
    kept = load_vectors(partial)
    assert 41 <= len(kept) < MANY
    assert kept.sources == tuple(map(str, sorted(many.iterdir())[: len(kept)]))
    assert summary.startswith(f"{len(kept) - 1:,} vectors written to {partial}, 1 failed")
    assert summary.endswith(f"{MANY + 1 - len(kept)} photos missing; {output} was not written")
    assert output.read_bytes() == b"what was there before"
    assert set(folder.iterdir()) == {output, partial}


def test_a_stopped_run_keeps_all_that_was_answered_and_a_killed_one_goes_on_where_it_was(
    slow: FakeTriton, server: FakeTriton, many: Path, tmp_path: Path, run: Run
) -> None:
    output = tmp_path / "vectors"
    summary = stopped(many, output, slow)
    # The one that failed has a row, too. Answers come in any order: few or many may be there when it is printed.
    written = re.fullmatch(
        rf"([\d,]+) vectors? written to {re.escape(str(output))} \(1 new file\), 1 failed; "
        "run the same command to continue",
        summary,
    )
    assert written is not None
    assert int(written[1].replace(",", "")) == rows_in(output).total() - 1
    assert max(rows_in(output).values()) == 1
    asked = len(slow.requests)
    process = started(many, output, slow)
    wait_until(lambda: len(slow.requests) > asked + 5, "the second run has had answers")
    process.kill()
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    before = {shard: shard.read_bytes() for shard in files_in(output)}
    assert 1 <= rows_in(output).total() < MANY
    (output / "part-00099.part").touch()  # as if it had been killed while it wrote one

    said = run(main, "embed", many, "--url", server.url, "--output", output).out
    assert f"{sum(pq.read_metadata(shard).num_rows for shard in before):,} done before" in said
    assert rows_in(output) == Counter(os.fsencode(path) for path in scan([many]).photos)
    assert all(shard.read_bytes() == content for shard, content in before.items())
    assert {path.name for path in output.iterdir()} == {".lock", *(shard.name for shard in files_in(output))}


def test_a_folder_is_added_to(server: FakeTriton, album: Path, tmp_path: Path, run: Run) -> None:
    output = tmp_path / "vectors"
    os.mkfifo(album / "pipe.jpg")

    def said(*options: str) -> str:
        return "".join(run(main, "embed", album, "--url", server.url, "--output", output, *options))

    first = said()
    assert "3 vectors written" in first
    assert "2 failed" in first
    assert first.count("EMPTY") == first.count("UNREADABLE") == 1
    assert pq.read_schema(output / "part-00000.parquet").metadata[b"model"].startswith(b"fake/random:0@")
    assert "0 vectors written" in said()
    assert len(files_in(output)) == 1
    (album / "a.png").write_bytes((album / "b.png").read_bytes() + b"\n")
    assert "1 vector written" in said()
    assert rows_in(output)[os.fsencode(album / "a.png")] == 2
    assert "0 vectors written" in said("--retry-failed")
    assert rows_in(output)[os.fsencode(album / "empty.jpg")] == 2


def test_a_folder_of_another_model_is_refused(server: FakeTriton, album: Path, tmp_path: Path, run: Run) -> None:
    other = VectorFolder(tmp_path / "out", model_info(id="other"))
    other.add(vector_row(FileVersion(path="/a.jpg"), np.zeros(2, dtype=np.float32)))
    other.flush()
    for command in (["embed", album, "--output"], ["similar", album / "a.png", "--in"]):
        said = run(main, *command, tmp_path / "out", "--url", server.url, code=1).err
        assert "vectors of other|p|original, which must not be compared with those of fake" in said
    assert len(files_in(tmp_path / "out")) == 1


def test_embed_without_a_good_photo_fails(server: FakeTriton, tmp_path: Path, run: Run) -> None:
    (tmp_path / "a.jpg").touch()
    said = run(main, "embed", tmp_path, "--url", server.url, "--output", tmp_path / "out.npz", code=1).err
    assert "none of the photos could be embedded" in said
