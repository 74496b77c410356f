"""Which runtime is chosen, with runtimes that return what a test needs and a clock that only they move."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor, TimeoutError
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from preprocess_ensemble.export.tokenizer_files import write_tokenizer
from preprocess_ensemble.runtimes.choices import Choice, Choices
from preprocess_ensemble.runtimes.model import Candidate, LoadFailed, RuntimeUnusable
from preprocess_ensemble.runtimes.precision import Precision, parse_precision
from preprocess_ensemble.runtimes.selection import Selection, select
from tests.fixtures.models.passports import WITH_TEXT
from tests.fixtures.models.scripted_runtimes import CLIP, Clock, Scripted, candidate, reference_of, turned
from tests.paths import ROOT

if TYPE_CHECKING:
    from preprocess_ensemble.model_repository.passport import Passport


class Machine:
    """A processor on which the reference takes 20 ms a row, and candidates in other times; it counts what is opened."""

    def __init__(self, folder: Path) -> None:
        self.clock = Clock()
        self.choices = Choices(folder)
        self.reference = reference_of(self.session(1))
        self.opened: list[str] = []

    def session(self, speed: float, many: float | None = None, **settings: Any) -> Scripted:
        """A session ``speed`` times as fast as the reference, and ``many`` times with several rows."""
        return Scripted(clock=self.clock, row_s=0.02 / speed, rows_s=0.02 / (many or speed), **settings)

    def candidate(self, precision: str, speed: float, many: float | None = None, **settings: Any) -> Candidate:
        return candidate(precision, self.session(speed, many, **settings), opened=self.opened.append)

    def select(self, *candidates: Candidate, precision: Precision = "auto", **changes: Any) -> Selection:
        return select(
            changes.get("reference", self.reference),
            changes.get("passport", CLIP),
            precision,
            candidates,
            tokenizer=changes.get("tokenizer"),
            choices=self.choices,
            timer=self.clock.timer,
        )


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path / "choices")


def alone_right(vectors: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return vectors if len(vectors) == 1 else turned(0.1)(vectors)


def fail(_: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    raise MemoryError("no memory")


@pytest.mark.parametrize(
    ("bf16", "fp32", "taken"),
    [
        (0.6, 1.07, "fp32"),
        (0.6, 0.95, ""),
        (1.2, 1.07, "bf16"),
        (1.08, 1.07, "fp32"),  # as good as equal, and more exact
        (1.02, 1.02, ""),
        (1.02, 0.8, ""),
        (1.3, 1.4, "fp32"),
    ],
)
def test_the_fastest_is_taken_and_of_equals_the_most_exact(
    bf16: float, fp32: float, taken: str, machine: Machine
) -> None:
    selection = machine.select(machine.candidate("bf16", bf16), machine.candidate("fp32", fp32))
    assert str(selection.model) == (f"OpenVINO 2, {taken}" if taken else "ONNX Runtime 1, fp32")
    assert f": OpenVINO bf16 {bf16:.2f}, OpenVINO fp32 {fp32:.2f}" in selection.reason
    assert ("cosine to fp32 on this processor at least 1.000000" in selection.reason) == bool(taken)
    assert not selection.disagrees


def test_the_text_tower_is_checked_with_texts(machine: Machine, tmp_path: Path) -> None:
    config, digests = write_tokenizer(tmp_path, {"context_length": 16})
    assert WITH_TEXT.text is not None
    text = replace(WITH_TEXT.text, tokenizer=asdict(config), tokenizer_sha256=digests)
    tower: dict[str, Any] = {
        "passport": replace(CLIP, text=text),
        "tokenizer": tmp_path,
        "reference": reference_of(machine.session(1, fingerprint=text.fingerprint)),
    }
    right = machine.candidate("bf16", 2, fingerprint=text.fingerprint)
    assert machine.select(right, **tower).model.precision == "bf16"
    assert [about.partition(" runs")[0] for about in machine.choices.on_this_processor()] == [
        "the text tower of ViT-B-32/file:épreuve.pt@1a2b3c4d"
    ]
    for wrong in ({"change": turned(0.1)}, {"change": alone_right}, {"nan": False}, {"fingerprint": CLIP.fingerprint}):
        settings: dict[str, Any] = {"fingerprint": text.fingerprint, **wrong}
        session = machine.session(2, **settings)
        assert machine.select(candidate("bf16", session, version=str(wrong)), **tower).disagrees
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(RuntimeUnusable, match="not the file that was exported"):
        machine.select(right, precision="bf16", **tower)


def test_a_candidate_far_ahead_ends_the_search(machine: Machine) -> None:
    selection = machine.select(machine.candidate("bf16", 1.6), machine.candidate("fp32", 9))
    assert (selection.model.precision, machine.opened) == ("bf16", ["bf16"])


def test_one_row_and_eight_count_the_same(machine: Machine) -> None:
    assert machine.select(machine.candidate("bf16", 0.5, 1.9)).model is machine.reference
    # Twice as fast with one row, and 0.6 times as fast with eight: 1.1 times, by the geometric mean.
    assert "OpenVINO fp32 1.10" in machine.select(machine.candidate("fp32", 2, 0.6)).reason


def test_a_clear_difference_is_timed_for_a_shorter_time_and_a_large_model_with_one_row(machine: Machine) -> None:
    def seconds(speed: float) -> tuple[float, list[int]]:
        machine.clock.now_s, session = 0, machine.session(speed)
        machine.select(candidate("bf16", session, version=str(speed)))
        return machine.clock.now_s, session.rows

    assert seconds(0.5)[0] < seconds(1.01)[0] < 4
    took_s, rows = seconds(0.04)
    assert 8 not in rows
    assert took_s < 20, "eleven rows are embedded for the check"


def test_two_models_are_open_at_a_time(machine: Machine) -> None:
    alive: set[str] = set()

    class Held(Scripted):
        def __init__(self, precision: str, speed: float) -> None:
            super().__init__(clock=machine.clock, row_s=0.02 / speed, rows_s=0.02 / speed)
            assert not alive, "the one before is closed"
            alive.add(precision)
            self.precision = precision

        def __del__(self) -> None:
            alive.remove(self.precision)

    def held(precision: str, speed: float) -> Candidate:
        return candidate(precision, lambda: Held(precision, speed))

    selection = machine.select(held("bf16", 1.3), held("fp32", 0.9))
    assert (selection.model.precision, alive) == ("bf16", {"bf16"}), "opened again"


@pytest.mark.parametrize(
    ("precision", "runs_on", "opened"),
    [
        ("fp32", "ONNX Runtime 1, fp32 (fp32 was asked for)", []),
        ("bf16", "OpenVINO 2, bf16 (cosine to fp32 on this processor at least 1.000000)", ["bf16"]),
    ],
)
def test_a_precision_that_was_asked_for_is_not_timed(
    precision: Precision, runs_on: str, opened: list[str], machine: Machine
) -> None:
    selection = machine.select(machine.candidate("fp32", 9), machine.candidate("bf16", 0.1), precision=precision)
    assert (str(selection), machine.opened) == (runs_on, opened)
    assert (machine.clock.now_s > 0) == bool(opened), "nothing runs but the check"
    assert not machine.choices.folder.exists()


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"change": turned(0.02)}, "cosine of 0.9998"),
        ({"change": alone_right}, "cosine of 0.995"),
        ({"change": lambda vectors: vectors * np.float32(1.01)}, "cosine of nan"),
        ({"change": lambda vectors: vectors * np.float32(np.nan)}, "cosine of nan"),
        ({"nan": False}, "not all NaN"),
        ({"fingerprint": (7, 7)}, "fingerprint"),
    ],
)
def test_a_runtime_that_disagrees_is_not_used(settings: dict[str, Any], says: str, machine: Machine) -> None:
    wrong = machine.candidate("bf16", 9, **settings)
    for _ in range(2):
        selection = machine.select(wrong, machine.candidate("fp32", 1.1))
        assert selection.model.precision == "fp32"
        assert selection.disagrees, "which is a warning in the log, at every load"
        assert says in selection.reason
    assert machine.opened == ["bf16", "fp32", "fp32"]
    with pytest.raises(RuntimeUnusable, match=says):
        machine.select(wrong, precision="bf16")


@pytest.mark.parametrize("error", [None, LoadFailed("no memory")])
def test_a_runtime_that_fails_to_run_is_not_used_and_tried_again(error: Exception | None, machine: Machine) -> None:
    for _ in range(2):
        broken = candidate("bf16", Scripted(fail), error=error, opened=machine.opened.append)
        selection = machine.select(broken, machine.candidate("fp32", 0.9))
        assert selection.model is machine.reference
        assert selection.disagrees == (error is None)
        assert "no memory" in selection.reason
    assert machine.opened == ["bf16", "fp32"] * 2, "it may succeed another time"


def test_a_runtime_that_is_not_there_is_not_missed(machine: Machine) -> None:
    missing = candidate("bf16", error=RuntimeUnusable("it is not installed"))
    selection = machine.select(missing)
    assert (selection.model, selection.disagrees) == (machine.reference, False)
    assert "it is not installed" in selection.reason
    assert not list(machine.choices.folder.glob("*.json")), "nothing was timed"
    with pytest.raises(RuntimeUnusable, match="not installed"):
        machine.select(missing, precision="bf16")


@pytest.mark.parametrize(
    ("reference", "passport"),
    [
        ("int8", replace(CLIP, precision="int8")),
        ("fp16", replace(CLIP, precision="fp16")),
        ("", CLIP),
        ("", None),
    ],
    ids=["int8", "fp16", "GPU", "not CLIP"],
)
def test_other_precisions_need_an_fp32_export_on_a_cpu(
    reference: str, passport: Passport | None, machine: Machine
) -> None:
    changed = replace(machine.reference, precision=reference)
    for precision in ("auto", "fp32"):
        never = machine.candidate("bf16", 9)
        selection = machine.select(never, precision=parse_precision(precision), reference=changed, passport=passport)
        assert (selection.model, machine.opened) == (changed, [])
        assert "need an fp32 export" in selection.reason
    with pytest.raises(RuntimeUnusable, match="need an fp32 export"):
        machine.select(never, precision="bf16", reference=changed, passport=passport)


def test_a_choice_is_remembered(machine: Machine) -> None:
    for speed, runs in ((0.8, []), (1.2, [1, 10])):
        session, fp32 = machine.session(speed), machine.candidate("fp32", 0.7)
        bf16 = candidate("bf16", session, version=str(speed), opened=machine.opened.append)
        first = machine.select(bf16, fp32)
        machine.opened.clear()
        session.rows.clear()
        assert str(machine.select(bf16, fp32)) == str(first)
        assert session.rows == runs, "at most the check that it agrees, and no timing"
        assert machine.opened == (["bf16"] if runs else [])


def test_another_model_processor_runtime_or_number_of_threads_is_timed_again(machine: Machine) -> None:
    def opened(version: str = "2", **changes: Any) -> bool:
        machine.opened.clear()
        machine.select(replace(machine.candidate("bf16", 0.5), version=version), **changes)
        return bool(machine.opened)

    assert [opened(), opened()] == [True, False]
    assert opened(version="3")
    assert opened(passport=replace(CLIP, model="ViT-L-14"))
    assert opened(reference=replace(machine.reference, settings="1 thread"))
    assert opened(reference=replace(machine.reference, runtime="ONNX Runtime 2"))
    assert not opened()
    machine.choices = Choices(machine.choices.folder, processor="another")
    assert opened()


DAMAGES: dict[str, Callable[[str], str]] = {
    "empty": lambda text: "",
    "cut": lambda text: text[:-20],
    "list": lambda text: "[1]",
    "deep": lambda text: "[" * 100_000,
    "another version": lambda text: text.replace('"version": 2', '"version": 3'),
    "no speeds": lambda text: text.replace('"speeds"', '"rates"'),
    "unknown candidate": lambda text: text.replace("OpenVINO bf16", "Gone bf16"),
    "not ASCII": lambda text: "\u00e9",
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_file_or_one_of_another_version_is_replaced(damage: str, machine: Machine) -> None:
    assert machine.select(machine.candidate("bf16", 1.2)).model.precision == "bf16"
    (file,) = machine.choices.folder.glob("*.json")
    whole = file.read_text()
    file.write_text(DAMAGES[damage](whole))
    machine.clock.now_s = 0
    assert machine.select(machine.candidate("bf16", 1.2)).model.precision == "bf16"
    assert machine.clock.now_s > 1, "timed again"
    assert file.read_text() == whole


def test_a_choice_that_cannot_be_used_any_more_is_made_again(machine: Machine) -> None:
    machine.select(machine.candidate("bf16", 1.2), machine.candidate("fp32", 1.1))
    broken = candidate("bf16", error=LoadFailed("no memory"))
    selection = machine.select(broken, machine.candidate("fp32", 1.1))
    assert selection.model.precision == "fp32"
    assert "bf16: no memory" in selection.reason
    assert machine.select(machine.candidate("bf16", 1.2)).model.precision == "bf16", "the older choice stays"


@pytest.mark.parametrize("folder", ["file/choices", "~/choices"])
def test_a_folder_that_cannot_be_written_only_costs_time(
    folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    machine = Machine(Path(folder) if folder.startswith("~") else tmp_path / folder)
    for _ in range(2):
        selection = machine.select(machine.candidate("bf16", 1.2))
        assert selection.model.precision == "bf16"
        assert f"timed at each load, because {machine.choices.folder} cannot be written" in selection.reason
        assert not selection.disagrees
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_what_was_timed_on_a_busy_machine_is_not_remembered(machine: Machine) -> None:
    machine.clock.busy = 0.5
    selection = machine.select(machine.candidate("bf16", 0.7))
    assert "timed again at the next load, because other work held the cores for 50% of the time" in selection.reason
    machine.clock.busy = 0.1
    assert machine.select(machine.candidate("bf16", 1.3)).model.precision == "bf16"
    machine.clock.busy = 0.5
    assert machine.select(machine.candidate("bf16", 1.3)).model.precision == "bf16", "from before"


CROWDED = """
import hashlib, os
from threading import Event, Thread
from preprocess_ensemble.runtimes.timing import Timer
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
timer, data, stop = Timer(), bytes(2**24), Event()

def hash_until_stopped():
    while not stop.is_set():
        hashlib.sha256(data)

threads = [Thread(target=hash_until_stopped) for _ in range(4)]
start = timer.now()
for thread in threads:
    thread.start()
for _ in range(20):
    hashlib.sha256(data)
# Linux forgets how long a thread waited when the thread ends, so all of them still run here.
print(timer.waited() / (timer.now() - start))
stop.set()
"""
"""Five threads on one core: of each second, four of them wait."""


@pytest.mark.skipif("sys.platform != 'linux'", reason="only Linux says how long threads wait")
def test_threads_that_wait_for_a_core_are_noticed() -> None:
    done = subprocess.run([sys.executable, "-c", CROWDED], cwd=ROOT, capture_output=True, text=True, check=True)
    assert float(done.stdout) > 1


def test_of_two_processes_that_load_at_once_one_measures(machine: Machine, tmp_path: Path) -> None:
    first = machine.select(machine.candidate("bf16", 0.5))
    (file,) = machine.choices.folder.glob("*.json")
    choice = file.read_bytes()
    file.unlink()
    looked = threading.Event()

    class Announced(Choices):
        def get(self, about: Mapping[str, str]) -> Choice | None:
            found = super().get(about)
            looked.set()
            return found

    second = Machine(machine.choices.folder)
    second.choices = Announced(machine.choices.folder)
    with ThreadPoolExecutor(1) as other:
        with machine.choices.measuring():
            waiting = other.submit(second.select, second.candidate("bf16", 0.5))
            assert looked.wait(60)
            with pytest.raises(TimeoutError):
                waiting.result(0.5)
            file.write_bytes(choice)
        assert str(waiting.result(60)) == str(first)
    assert second.opened == []
