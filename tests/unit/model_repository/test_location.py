"""Where a command looks for a model, and where it puts one."""

from __future__ import annotations

from pathlib import Path

import pytest

from preprocess_ensemble import contract
from preprocess_ensemble.model_repository.location import HERE, default_repository, repository_to_fill, user_repository


@pytest.fixture(autouse=True)
def in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.delenv("CLIP_MODEL", raising=False)


def export_into(repository: Path) -> None:
    (repository / contract.ENCODER / "1").mkdir(parents=True)
    (repository / contract.ENCODER / "1" / "model.json").write_text("{}")


def test_a_folder_that_is_there_comes_before_the_users() -> None:
    assert default_repository() == repository_to_fill() == user_repository()
    HERE.mkdir()
    assert default_repository() == repository_to_fill() == HERE
    export_into(user_repository())
    assert default_repository() == user_repository()
    assert repository_to_fill() == HERE
    export_into(HERE)
    assert default_repository() == HERE


def test_the_environment_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    export_into(HERE)
    monkeypatch.setenv("CLIP_MODEL", "elsewhere")
    assert default_repository() == repository_to_fill() == Path("elsewhere")
