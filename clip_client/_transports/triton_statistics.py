"""Where a Triton spends its time: its own counters, and what they grew by between two looks."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

STAGES: Final = ("queue", "compute_input", "compute_infer", "compute_output")
"""What happens to a request inside a model, in order, by Triton's names."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelStatistics:
    """Counters of one model since it was loaded, or between two looks."""

    requests: int
    """Requests that were answered."""
    rows: int
    """Rows of all requests."""
    runs: int
    """How often the model ran; a run may take many requests."""
    total_ns: int
    """From the arrival of each request to its answer, added up over requests."""
    stages_ns: Mapping[str, int]
    """:data:`STAGES` -> the same for that stage; empty for an ensemble."""
    batches: Mapping[int, int]
    """Rows to a run -> how many runs were that large."""

    def since(self, before: ModelStatistics | None) -> ModelStatistics:
        """What was added after ``before``."""
        if before is None:
            return self
        numbers = {
            name: getattr(self, name) - getattr(before, name) for name in ("requests", "rows", "runs", "total_ns")
        }
        return ModelStatistics(
            **numbers,
            stages_ns={name: value - before.stages_ns.get(name, 0) for name, value in self.stages_ns.items()},
            batches={
                size: count - before.batches.get(size, 0)
                for size, count in self.batches.items()
                if count > before.batches.get(size, 0)
            },
        )

    def mean_ms(self) -> dict[str, float]:
        """Milliseconds a request: ``total`` and each stage; empty where there was no request."""
        if not self.requests:
            return {}
        return {
            name: value / self.requests / 1e6 for name, value in (("total", self.total_ns), *self.stages_ns.items())
        }

    @property
    def share_batched(self) -> float:
        """Share of the rows that shared a run with other rows; 0 where there were none."""
        rows = sum(size * count for size, count in self.batches.items())
        return 1 - self.batches.get(1, 0) / rows if rows else 0.0

    def to_mapping(self) -> dict[str, Any]:
        """For JSON."""
        document = {field.name: getattr(self, field.name) for field in fields(self)}
        return {**document, "batches": {str(size): count for size, count in sorted(self.batches.items())}}


def read_statistics(response: Any) -> dict[str, ModelStatistics]:
    """Model name -> its counters, from Triton's ``ModelStatisticsResponse``."""
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
