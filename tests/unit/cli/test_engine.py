"""``--engine ray``: what cannot work ends before anything is read or started."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from clip_client.cli.main import main

if TYPE_CHECKING:
    from pathlib import Path

RAY = ("--engine", "ray")


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["embed", "--output", "out/", "x.jpg", "--address", "auto"], "--address and --workers need --engine ray"),
        (["dedup", "x.jpg", "--workers", "2"], "--address and --workers need --engine ray"),
        (["embed", "--output", "s3://b/out", "x.jpg"], "URLs, Parquet files and WebDataset tars need --engine ray"),
        (["embed", "--output", "out/", "--source", "parquet", "x.parquet"], "WebDataset tars need --engine ray"),
        (["embed", "--output", "out.npz", "x.jpg", *RAY], "--engine ray writes into a folder, and out.npz is the name"),
        (["embed", "--output", "out/", "x.jpg", *RAY, "--retry-failed"], "--retry-failed and --shard-rows need"),
        (["embed", "--output", "out/", "x.jpg", *RAY, "--address", "auto"], "name the servers with --url: every"),
    ],
)
def test_options_that_contradict_each_other(
    words: list[str], reason: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("ray", reason="Ray is not installed (extra: ray)")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x.jpg").touch()
    assert main(words) == 2
    assert reason in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["x.jpg"]


def test_without_ray_the_command_says_how_to_install_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.delitem(sys.modules, "ray.data", raising=False)
    assert main(["embed", "--output", "out/", "x.jpg", *RAY]) == 1
    assert "install it with: pip install 'clip-triton[ray]'" in capsys.readouterr().err
