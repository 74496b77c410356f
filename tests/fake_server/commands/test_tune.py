"""``clip-client tune`` against a server, and the search that uses what it found."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from anyio import to_thread

from clip_client.cli.main import main
from clip_client.dedup import Store
from clip_client.dedup.store.choices import KEEP, ChosenPhoto
from clip_client.dedup.store.decisions import DIFFERENT
from clip_client.testing import FakeTriton
from tests.fixtures.images.image_files import encoded, picture
from tests.fixtures.vectors import at_degrees

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


class Trained(FakeTriton):
    """A server whose weights are not random, as far as its passport says."""

    def passport(self) -> dict[str, Any]:
        return {**super().passport(), "pretrained": "openai"}


async def client(*arguments: str) -> int:
    return await to_thread.run_sync(lambda: main(list(arguments)))


async def test_decisions_become_thresholds_that_later_searches_use(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    photos = tmp_path / "photos"
    photos.mkdir()
    for number in range(2):
        (photos / f"{number}.png").write_bytes(encoded(picture(seed=number), "PNG"))
    async with Trained() as server:
        where = ["--url", server.url, "--transfer", "original", "--store", str(tmp_path / "store")]
        assert await client("tune", *where) == 1
        assert "too few labels: 0 of 10 that say what is different" in capsys.readouterr().err
        assert await client("dedup", str(photos), "--threshold", "0.9", "--quiet", *where) == 0

        model_id = server_model(tmp_path / "store")
        with Store(tmp_path / "store") as store:
            vectors = store.vectors(model_id, 8)
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
        capsys.readouterr()

        assert await client("tune", "--dry-run", "--json", *where) == 0
        found = json.loads(capsys.readouterr().out)
        assert found["thresholds"]["similar"] == found["tuning"]["similar"]["threshold"] == 0.9902
        assert (found["tuning"]["labels"], found["tuning"]["different"]) == (60, 15)
        assert await thresholds(photos, where, capsys) == 0.99

        assert await client("tune", *where) == 0
        assert "similar: was 0.99; 0.9902: expected precision 1.000 (95 % interval 0.921" in capsys.readouterr().out
        assert await thresholds(photos, where, capsys) == 0.9902
        assert await client("tune", "--reset", *where) == 0
        assert await thresholds(photos, where, capsys) == 0.99


def server_model(store: Path) -> str:
    """Return the id of the vectors that a search has noted."""
    import sqlite3

    connection = sqlite3.connect(store / "settings.sqlite")
    ((vector_id,),) = connection.execute("SELECT vector_id FROM searches").fetchall()
    connection.close()
    return str(vector_id)


async def thresholds(photos: Path, where: list[str], capsys: pytest.CaptureFixture[str]) -> float:
    """Return the threshold of a search without options."""
    capsys.readouterr()
    assert await client("dedup", str(photos), "--json", "-", "--quiet", *where) == 0
    return float(json.loads(capsys.readouterr().out)["thresholds"]["similar"])


async def test_random_weights_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async with FakeTriton() as server:
        assert await client("tune", "--url", server.url, "--store", str(tmp_path)) == 1
    assert "random, so no decision says anything" in capsys.readouterr().err
