"""Chooses what runs the model: the fastest runtime and precision here whose vectors agree with those of fp32."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Final

from preprocess_ensemble.errors import ReportedError, first_line
from preprocess_ensemble.runtimes.agreement import AgreementCheck, Disagreement
from preprocess_ensemble.runtimes.choices import Choice, Choices
from preprocess_ensemble.runtimes.model import Candidate, LoadFailed, OpenModel, RuntimeUnusable
from preprocess_ensemble.runtimes.timing import CONTENDED, Timer, Timing, time_against

if TYPE_CHECKING:
    from preprocess_ensemble.model_repository.passport import Passport
    from preprocess_ensemble.runtimes.precision import Precision

_TIE: Final = 1.03
"""If two are closer than this ratio of speeds, the more exact one is taken: the reference first, then fp32."""

_FAR_AHEAD: Final = 1.5
"""A candidate this much faster than the reference ends the search, because the next one would take 2 to 4 s to open and
time. OpenVINO in fp32 was 0.9 to 1.2 times as fast as ONNX Runtime on three kinds of processor."""

_NOTHING_ELSE: Final = "nothing else may run it here"


@dataclass(frozen=True, kw_only=True)
class Selection:
    """What runs the model, and why."""

    model: OpenModel
    reason: str
    """Clauses, such as ``"fp32 was asked for"`` or those of a :class:`Choice`."""
    disagrees: bool = False
    """Whether a runtime was opened and computed other vectors than the reference."""

    def __str__(self) -> str:
        return f"{self.model} ({self.reason})"


def select(
    reference: OpenModel,
    passport: Passport | None,
    precision: Precision,
    candidates: Sequence[Candidate],
    *,
    tokenizer: Path | None = None,
    choices: Choices | None = None,
    timer: Timer | None = None,
) -> Selection:
    """Return what runs the model of ``passport`` in ``precision``: ``reference``, or one of ``candidates``.

    It is the image tower, or the text tower if ``tokenizer`` is the folder of its files.

    ``"fp32"`` means the reference, untimed, and ``"bf16"`` the first candidate in that precision that agrees with it.
    ``"auto"`` means the fastest that agrees. It is timed once and remembered in ``choices`` (default: those of the
    user); ``candidates`` come in the order in which they are tried, and two are open at a time, the reference included.

    ``passport`` is None for a model that is not CLIP, which cannot be checked. Raises RuntimeUnusable if ``precision``
    is ``"bf16"`` and that cannot be used.
    """
    if passport is None or reference.precision != "fp32":
        reason = "other precisions need an fp32 export with a passport, on a CPU"
        if precision == "bf16":
            raise RuntimeUnusable(f"the model cannot run in bf16 ({reason})")
        return Selection(model=reference, reason=reason)
    if precision == "fp32":
        return Selection(model=reference, reason="fp32 was asked for")
    search = _Search(reference, passport, tokenizer, {candidate.name: candidate for candidate in candidates})
    if precision == "bf16":
        return search.demanded(precision)
    if not candidates:
        return Selection(model=reference, reason=_NOTHING_ELSE)
    return search.fastest(choices or Choices(), timer or Timer())


@dataclass(frozen=True)
class _Search:
    """Opens candidates, compares them with the reference, and keeps why some cannot be used."""

    reference: OpenModel
    passport: Passport
    tokenizer: Path | None
    candidates: Mapping[str, Candidate]
    refused: dict[str, Exception] = field(default_factory=dict)
    timings: dict[str, Timing] = field(default_factory=dict)

    @cached_property
    def check(self) -> AgreementCheck:
        return AgreementCheck(self.reference.session, self.passport, self.tokenizer)

    def demanded(self, precision: Precision) -> Selection:
        """Return the first candidate in ``precision`` that agrees. Raises RuntimeUnusable if none does."""
        for candidate in self.candidates.values():
            if candidate.precision == precision and (opened := self._open(candidate)):
                return opened
        reasons = "; ".join(f"{name}: {reason}" for name, reason in self._reasons().items())
        raise RuntimeUnusable(f"the model cannot run in {precision} ({reasons or _NOTHING_ELSE})")

    def fastest(self, choices: Choices, timer: Timer) -> Selection:
        """Return the remembered choice, or measure which is the fastest."""
        about = {
            "model": self.passport.id if self.tokenizer is None else f"the text tower of {self.passport.id}",
            "reference": str(self.reference),
            "settings": self.reference.settings,
            **{name: candidate.version for name, candidate in self.candidates.items() if candidate.version},
        }
        if selection := self._remembered(choices.get(about)):
            return selection
        with choices.measuring():
            # Another process may have measured while this one waited.
            return self._remembered(choices.get(about)) or self._measured(choices, about, timer)

    def _open(self, candidate: Candidate, timer: Timer | None = None) -> Selection | None:
        """Open ``candidate``, check that it agrees, and time it with ``timer``; None if it cannot be used."""
        self.refused.pop(candidate.name, None)
        try:
            model = candidate.open()
            cosine = self.check.lowest_cosine(model.session)
            if timer is not None:
                timing = time_against(model.session, self.reference.session, self.check.sample, timer)
                self.timings[candidate.name] = timing
        except Exception as error:  # The runtimes' exceptions share no base class.
            self.refused[candidate.name] = error.with_traceback(None)  # whose frames would keep the model open
            return None
        return Selection(model=model, reason=f"cosine to fp32 on this processor at least {cosine:.6f}")

    def _reasons(self) -> dict[str, str]:
        """Candidate -> why it cannot be used, as a clause."""
        return {
            name: str(error) if isinstance(error, ReportedError) else f"it cannot run the model ({first_line(error)})"
            for name, error in self.refused.items()
        }

    def _remembered(self, choice: Choice | None) -> Selection | None:
        """Return what a remembered choice means; None without one, or if it cannot be used any more."""
        if choice is None:
            return None
        if not choice.name:
            return self._selection(None, choice)
        candidate = self.candidates.get(choice.name)
        opened = self._open(candidate) if candidate else None
        return self._selection(opened, choice) if opened else None

    def _measured(self, choices: Choices, about: Mapping[str, str], timer: Timer) -> Selection:
        last, opened = "", None
        for name, candidate in self.candidates.items():
            opened = None  # Closes the one before, so that memory holds two models at most.
            last, opened = name, self._open(candidate, timer)
            if opened and self.timings[name].speed > _FAR_AHEAD:
                break
        speeds = {name: timing.speed for name, timing in self.timings.items()}
        name = self._most_exact_of_the_fastest(speeds)
        if name != last:
            opened = None
            opened = self._open(self.candidates[name]) if name else None
        choice = Choice(
            name=name if opened else "",
            speeds=speeds,
            refused=self._reasons(),
            # A runtime that should work here computed other vectors, or failed to.
            disagrees=any(not isinstance(error, RuntimeUnusable) for error in self.refused.values()),
            day=datetime.now(UTC).date().isoformat(),
        )
        return self._selection(opened, choice, self._keep(choices, about, choice) if speeds else "")

    def _most_exact_of_the_fastest(self, speeds: Mapping[str, float]) -> str:
        """Return the name of the candidate to take, empty for the reference."""
        fastest = max(speeds.values(), default=0.0)
        if fastest < _TIE:
            return ""
        near = [name for name, speed in speeds.items() if speed * _TIE >= fastest]
        return min(near, key=lambda name: (self.candidates[name].precision != "fp32", -speeds[name]))

    def _keep(self, choices: Choices, about: Mapping[str, str], choice: Choice) -> str:
        """Remember ``choice``; return why that is not possible, or an empty text."""
        waiting = max(timing.waiting for timing in self.timings.values())
        if waiting > CONTENDED:
            return f"timed again at the next load, because other work held the cores for {waiting:.0%} of the time"
        # These last; any other error, and a load that failed, may not occur the next time.
        lasting = (RuntimeUnusable, Disagreement)
        if any(isinstance(error, LoadFailed) or not isinstance(error, lasting) for error in self.refused.values()):
            return "timed again at the next load, because one of them failed"
        try:
            choices.keep(about, choice)
        except OSError as error:
            return f"timed at each load, because {choices.folder} cannot be written ({error.strerror or error})"
        return ""

    def _selection(self, chosen: Selection | None, choice: Choice, *more: str) -> Selection:
        clauses = (str(choice), chosen.reason if chosen else "", *more)
        return Selection(
            model=chosen.model if chosen else self.reference,
            reason="; ".join(filter(None, clauses)),
            disagrees=choice.disagrees,
        )
