"""What the authors of the replaced system published, for the comparison in the report; we measured none of it.

Their hardware was one NVIDIA A100, an RTX 4080 and up to four RTX A4000. Figures of other hardware show what a design
costs, not which is faster.
"""

from __future__ import annotations

from typing import Final, NamedTuple

HARDWARE: Final = "A100, RTX 4080, RTX A4000"


class Published(NamedTuple):
    """One figure."""

    what: str
    value: float
    unit: str
    ours: str
    """Key of our own value in ``report.command.measured_here``; empty if there is none."""


FIGURES: Final = (
    Published("a single image, as the client saw it", 182.9, "ms", "single_p50_ms"),
    Published("a single image, its other figure", 56.9, "ms", "single_p50_ms"),
    Published("of that, compute", 4.4, "ms", "single_model_ms"),
    Published("of that, spent on moving it; here: not in the model", 91.7, "%", "single_other_percent"),
    Published("images per second", 64.3, "images/s", "saturated_rate"),
    Published("images per second on four GPUs", 43.2, "images/s", ""),
    Published("requests batched", 22.0, "%", "share_batched_percent"),
)
