"""``clip-client tune`` against a server, and the search that uses what it found."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from clip_client.cli.main import main
from clip_client.dedup import Store
from clip_client.dedup.store.choices import KEEP, ChosenPhoto
from clip_client.dedup.store.decisions import DIFFERENT
from clip_client.search.store_index import stored_ids
from clip_client.testing import FakeTriton
from tests.fixtures.images.image_files import encoded, picture
from tests.fixtures.vectors import at_degrees

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


class Trained(FakeTriton):
    """A server whose weights are not random, as far as its passport says."""

    def passport(self) -> dict[str, Any]:
        return {**super().passport(), "pretrained": "openai"}


def test_decisions_become_thresholds_that_later_searches_use(
    serve: Callable[[FakeTriton], FakeTriton], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    photos = tmp_path / "photos"
    photos.mkdir()
    for number in range(2):
        (photos / f"{number}.png").write_bytes(encoded(picture(seed=number), "PNG"))
    where = ["--url", serve(Trained()).url, "--transfer", "original", "--store", str(tmp_path / "store")]

    def found(*words: str) -> Any:
        capsys.readouterr()
        assert main([*words, *where]) == 0
        return json.loads(capsys.readouterr().out)

    def threshold(*options: str) -> float:
        return float(found("dedup", str(photos), "--json", "-", "--quiet", *options)["thresholds"]["similar"])

    assert main(["tune", *where]) == 1
    assert "too few labels: 0 of 10 that say what is different" in capsys.readouterr().err
    assert threshold("--threshold", "0.9") == 0.9

    with Store(tmp_path / "store") as store:
        ((vector_id, dimension),) = stored_ids(store).items()
        vectors = store.vectors(vector_id, dimension)
        for number in range(60):
            # Pairs of photos at a right angle to others: 45 pairs at 8 degrees are the same, 15 at 20 are not.
            for side, vector in enumerate(at_degrees(0, 8 if number < 45 else 20)):
                row = {"vector": [*vector.tolist(), *[0.0] * 6], "code": "", "message": ""}
                vectors.add({"sha256": bytes([number, side] * 16), **row})
        vectors.flush()
        for number in range(60):
            first, second = (bytes([number, side] * 16).hex() for side in range(2))
            if number < 45:
                photos_of = [ChosenPhoto("/a.jpg", first), ChosenPhoto("/b.jpg", second, moves=True)]
                store.choices.begin([choice.id for choice in store.choices.add([(KEEP, photos_of)])], "a run")
            else:
                store.decisions.add(DIFFERENT, [first, second])

    tried = found("tune", "--dry-run", "--json")
    assert tried["thresholds"]["similar"] == tried["tuning"]["similar"]["threshold"] == 0.9902
    assert (tried["tuning"]["labels"], tried["tuning"]["different"]) == (60, 15)
    assert threshold() == 0.99
    assert main(["tune", *where]) == 0
    assert "similar: was 0.99; 0.9902: expected precision 1.000 (95 % interval 0.921" in capsys.readouterr().out
    assert threshold() == 0.9902
    assert main(["tune", "--reset", *where]) == 0
    assert threshold() == 0.99


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["tune"], 1, "random, so no decision says anything"),
        (["dedup", "a.jpg", "--act-on", "similar"], 2, "the weights of fake/random:0@"),
    ],
)
def test_random_weights_are_refused_and_nothing_is_searched(
    words: list[str],
    code: int,
    said: str,
    serve: Callable[[FakeTriton], FakeTriton],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.jpg").write_bytes(b"x")
    assert main([*words, "--url", serve(FakeTriton()).url, "--store", "store"]) == code
    captured = capsys.readouterr()
    assert (captured.out, said in captured.err) == ("", True)
    assert list(tmp_path.glob("store/**/*.parquet")) == []
