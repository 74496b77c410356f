"""Where a Triton spends its time: its own counters, and how much they grew between two readings."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

STAGES: Final = ("queue", "compute_input", "compute_infer", "compute_output")
"""The stages of a request inside a model, in order, by Triton's names."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelStatistics:
    """Counters of one model, since it was loaded or between two readings."""

    requests: int
    """Requests that were answered."""
    rows: int
    """Images of all requests."""
    runs: int
    """How often the model ran; one run may serve many requests."""
    total_ns: int
    """Time from the arrival of a request to its answer, summed over requests."""
    stages_ns: Mapping[str, int]
    """:data:`STAGES` -> the same sum for that stage; empty for an ensemble."""
    batches: Mapping[int, int]
    """Images per run -> number of runs of that size."""

    def since(self, before: ModelStatistics | None) -> ModelStatistics:
        if before is None:
            return self
        return ModelStatistics(
            requests=self.requests - before.requests,
            rows=self.rows - before.rows,
            runs=self.runs - before.runs,
            total_ns=self.total_ns - before.total_ns,
            stages_ns={name: value - before.stages_ns.get(name, 0) for name, value in self.stages_ns.items()},
            batches=Counter(self.batches) - Counter(before.batches),
        )

    def mean_ms(self) -> dict[str, float]:
        """Return the mean milliseconds per request, ``total`` and for each stage; empty if there was no request."""
        if not self.requests:
            return {}
        return {
            name: value / self.requests / 1e6 for name, value in (("total", self.total_ns), *self.stages_ns.items())
        }

    @property
    def share_batched(self) -> float:
        """Share of the images that shared a run with others, from 0 to 1; 0 if there were no images."""
        rows = sum(size * count for size, count in self.batches.items())
        return 1 - self.batches.get(1, 0) / rows if rows else 0.0

    def to_mapping(self) -> dict[str, Any]:
        return {
            **asdict(self),
            "batches": {str(size): count for size, count in sorted(self.batches.items())},
            "mean_ms": self.mean_ms(),
            "share_batched": self.share_batched,
        }


def read_statistics(response: Any) -> dict[str, ModelStatistics]:
    """Read Triton's ``ModelStatisticsResponse`` into counters by model name."""
    return {
        model.name: ModelStatistics(
            requests=model.inference_stats.success.count,
            rows=model.inference_count,
            runs=model.execution_count,
            total_ns=model.inference_stats.success.ns,
            stages_ns={
                stage: getattr(model.inference_stats, stage).ns
                for stage in STAGES
                if getattr(model.inference_stats, stage).count
            },
            batches={batch.batch_size: batch.compute_infer.count for batch in model.batch_stats},
        )
        for model in response.model_stats
    }
