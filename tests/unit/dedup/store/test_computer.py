"""A computer is told from others by the id of its system, and by its name only where there is no id."""

import platform
import subprocess
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest

from clip_client.dedup.store import computer
from clip_client.dedup.store.computer import is_this_computer, name_of, this_computer


@pytest.fixture(autouse=True)
def no_id_is_remembered() -> Iterator[None]:
    computer._hashed_id.cache_clear()
    yield
    computer._hashed_id.cache_clear()


def become(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, system: str, said: str, name: str = "laptop") -> None:
    """Run on a computer of this name whose ``system`` has said its id."""
    (tmp_path / "machine-id").write_text(said)
    registry = SimpleNamespace(
        KEY_READ=1,
        KEY_WOW64_64KEY=2,
        HKEY_LOCAL_MACHINE=3,
        OpenKey=lambda *_: nullcontext(),
        QueryValueEx=lambda *_: (said, 1),
    )
    monkeypatch.setattr(computer, "_MACHINE_ID", tmp_path / ("machine-id" if said else "none"))
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: SimpleNamespace(stdout=said))
    monkeypatch.setitem(sys.modules, "winreg", registry)
    monkeypatch.setattr(sys, "platform", system)
    monkeypatch.setattr(platform, "node", lambda: name)
    computer._hashed_id.cache_clear()


MAC = '+-o J413AP  <class IOPlatformExpertDevice>\n    {\n      "model" = <"Mac14,2">\n      "IOPlatformUUID" = "%s"\n'


@pytest.mark.parametrize(("system", "form"), [("linux", "%s\n"), ("win32", "%s"), ("darwin", MAC)])
def test_a_computer_is_the_same_under_another_name_and_another_one_under_its_name(
    system: str, form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    become(monkeypatch, tmp_path, system, form % ("ab" * 16))
    recorded = this_computer()
    assert "ab" * 16 not in recorded
    become(monkeypatch, tmp_path, system, form % ("ab" * 16), name="dhcp-12")
    assert (is_this_computer(recorded), name_of(recorded)) == (True, "laptop")
    become(monkeypatch, tmp_path, system, form % ("cd" * 16))
    assert not is_this_computer(recorded)
    become(monkeypatch, tmp_path, system, "")
    assert not is_this_computer(recorded)


@pytest.mark.parametrize("said", ["uninitialized\n", ""])
def test_a_computer_without_an_id_and_a_run_of_an_earlier_version_are_known_by_the_name(
    said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    become(monkeypatch, tmp_path, "linux", said)
    recorded = this_computer()
    assert (recorded, name_of(recorded)) == ("laptop", "laptop")
    for now in (said, "ab" * 16):
        become(monkeypatch, tmp_path, "linux", now)
        assert is_this_computer("laptop")
        assert is_this_computer("")
        assert not is_this_computer("desktop")
